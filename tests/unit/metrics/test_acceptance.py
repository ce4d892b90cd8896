"""Acceptance from counters: the definitions, what was delivered of it, and that contradictions are never clamped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.generation import Chunk, Generation, Run, Speculation
from pytest_specdec.metrics.acceptance import (
    NO_SPECULATION,
    NOT_BY_REQUEST,
    NOTHING_DRAFTED,
    acceptance_part,
    per_token,
)
from pytest_specdec.metrics.rounds import NO_STEPS, SEVERAL_STEPS, Contradiction, Rounds
from pytest_specdec.record import Figure


@pytest.mark.parametrize("counted", [None, Speculation(0, 0, 0, ())])
def test_nothing_drafted_has_no_rate(counted: Speculation | None) -> None:
    part = acceptance_part(rounds_of((1, 1), counted=counted), 4)
    assert (part.rate.value, part.mean_accepted_length.value, part.marginal.value) == (None, None, None)


def test_counters_of_rounds_add_up() -> None:
    assert Speculation(1, 2, 1, (1, 0)) + Speculation(2, 8, 3, (2, 1, 0, 0)) == Speculation(3, 10, 4, (3, 1, 0, 0))


LONG_AND_SHORT = Speculation(10, 28, 18, (9, 7, 1, 1), (10, 10, 4, 4), (10, 9, 3, 1))


def test_a_position_is_held_against_the_drafts_that_had_a_token_there() -> None:
    """Six drafts of two tokens, four of four; of the seven in which both were right, three went on."""
    part = acceptance_part(rounds_of((1, 1), counted=LONG_AND_SHORT), 4)
    assert (part.marginal, part.conditional) == (Figure((0.9, 0.7, 0.25, 0.25)), Figure((0.9, 7 / 9, 1 / 3, 1.0)))
    assert per_token(LONG_AND_SHORT) == 18 / 23


def test_a_position_that_no_draft_reached_has_no_rate() -> None:
    """γ = 4 was the bound, and every draft had two tokens."""
    part = acceptance_part(rounds_of((1, 1), counted=Speculation(10, 20, 16, (9, 7, 0, 0), (10, 10), (10, 9))), 4)
    assert (part.marginal, part.conditional) == (Figure((0.9, 0.7)), Figure((0.9, 7 / 9)))


def test_lengths_of_drafts_add_up() -> None:
    both = LONG_AND_SHORT + Speculation(1, 1, 1, (1,), (1,), (1,))
    assert (both.drafted, both.tried) == ((11, 10, 4, 4), (11, 9, 3, 1))


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        (Speculation(10, 40, 41, ()), "more tokens accepted"),
        (Speculation(10, 40, 20, (9, 6, 3, 1)), "does not add up"),
        (Speculation(10, 40, 20, (6, 9, 3, 2)), "more often than an earlier one"),
        (Speculation(10, 40, 20, (11, 6, 2, 1)), "first position was accepted 11 times in 10 drafts"),
        (Speculation(0, 4, 0, ()), "in no draft at all"),
        (Speculation(-3, 4, 0, ()), "ran backwards"),
        (Speculation(10, 41, 0, ()), "more than γ = 4 each"),
        (Speculation(10, 40, 5, (1, 1, 1, 1, 1)), "a position past γ = 4"),
    ],
)
def test_counters_that_contradict_each_other_are_refused(counted: Speculation, message: str) -> None:
    """Above 100 %, or below nothing, is never clamped."""
    with pytest.raises(Contradiction, match=message):
        acceptance_part(rounds_of((1, 1), counted=counted), 4)


def rounds_of(*sizes: tuple[int, ...], counted: Speculation | None) -> Rounds:
    """A round of requests that came in chunks of these sizes, one a second."""
    answers = tuple(
        Generation((7,), (1,) * sum(each), "stop", tuple(Chunk(at + 1.0, size) for at, size in enumerate(each)))
        for each in sizes
    )
    return Rounds((Run(answers, counted, 9.0),), (9.0,))


def test_rates_by_position_are_told_both_ways() -> None:
    """Marginal: of all drafts. Conditional: of those accepted so far. The length is 1 + the sum of the marginals."""
    part = acceptance_part(rounds_of((1, 5, 5), counted=Speculation(10, 40, 16, (8, 6, 2, 0))), 4)
    assert (part.rate.value, part.marginal.value) == (0.4, (0.8, 0.6, 0.2, 0.0))
    assert part.conditional.value == (0.8, 0.75, pytest.approx(1 / 3), 0.0)
    assert part.mean_accepted_length.value == pytest.approx(1 + sum(part.marginal.value))
    assert part.mean_accepted_length_without_bonus.value == pytest.approx(1.6)


def test_a_position_that_was_never_reached_has_no_conditional_rate() -> None:
    part = acceptance_part(rounds_of((1, 1), counted=Speculation(4, 12, 4, (4, 0, 0))), 3)
    assert part.conditional.value == (1.0, 0.0, None)


def test_the_chance_per_token_is_acceptances_over_trials() -> None:
    """At α = 1/2 and γ = 3, of 8 drafts 4, 2, 1 get so far: 7 acceptances in 14 trials."""
    assert per_token(Speculation(8, 24, 7, (4, 2, 1))) == 0.5
    assert per_token(Speculation(8, 24, 7, ())) is None


def test_drafts_accepted_behind_an_eos_are_not_delivered() -> None:
    """[d1, d2, EOS, d4, d5, bonus]: five accepted and a bonus, three delivered; the engine's length is 6."""
    part = acceptance_part(rounds_of((3,), counted=Speculation(1, 5, 5, (1, 1, 1, 1, 1))), 5)
    assert (part.mean_accepted_length.value, part.delivered_tokens_per_step.value) == (6.0, 3.0)
    assert part.discarded_tokens.value == 3
    assert "3 tokens lay behind an end and were thrown away" in part.delivered_explained


def test_steps_without_a_draft_explain_the_rest() -> None:
    """A prompt's own step gives one token: 1 + 5 in two steps, though every step gave 5."""
    part = acceptance_part(rounds_of((1, 5), counted=Speculation(1, 4, 4, (1, 1, 1, 1))), 4)
    assert (part.delivered_tokens_per_step.value, part.discarded_tokens.value) == (3.0, 0)
    assert "1 of 2 steps drafted nothing" in part.delivered_explained


def test_tokens_are_counted_for_each_request_of_all_rounds() -> None:
    """A ratio of totals; a request that delivered nothing has none."""
    once = rounds_of((1, 5), (1,), (), counted=Speculation(1, 4, 4, (1, 1, 1, 1)))
    twice = Rounds((*once.runs, *once.runs), (9.0, 9.0))
    assert acceptance_part(twice, 4).delivered_tokens_per_step_per_request.value == (3.0, 1.0, None)


def test_merged_steps_leave_no_count_of_discarded_tokens() -> None:
    part = acceptance_part(rounds_of((12,), counted=Speculation(3, 12, 9, (3, 2, 2, 2))), 4)
    assert part.discarded_tokens == Figure(None, SEVERAL_STEPS)


def test_token_ids_are_counted_and_not_their_text() -> None:
    """Fifteen spaces are fifteen tokens, though a tokenizer would make fewer of the text."""
    spaces = Generation((7,), (220,) * 15, "length", (Chunk(1.0, 15),), " " * 15)
    seen = Rounds((Run((spaces,), None, 1.0),), (1.0,))
    assert (seen.tokens, acceptance_part(seen, None).delivered_tokens_per_step.value) == (15, 15.0)


def test_the_target_alone_has_no_rates_and_says_why() -> None:
    part = acceptance_part(rounds_of((1, 1), counted=None), None)
    assert part.rate == Figure(None, NO_SPECULATION)
    assert part.marginal == Figure(None, NO_SPECULATION)
    assert part.delivered_tokens_per_step.value == 1.0


def test_an_engine_that_does_not_stream_has_no_steps() -> None:
    silent = Rounds((Run((Generation((7,), (1, 2), "length"),), None, 1.0),), (1.0,))
    part = acceptance_part(silent, None)
    assert part.delivered_tokens_per_step == Figure(None, NO_STEPS)


def count_requests(*pairs: tuple[int | None, int | None], accepted: int) -> Rounds:
    """One round with (drafted, accepted) of each request, and `accepted` counted over all."""
    answers = tuple(
        Generation((1,), (5, 6), "length", draft_tokens=drafted, accepted_tokens=taken) for drafted, taken in pairs
    )
    return Rounds((Run(answers, Speculation(10, 20, accepted), 1.0),), (1.0,))


def test_the_rate_of_each_request_is_told_where_the_engine_counts_it() -> None:
    """A request in which nothing was drafted has none, never zero."""
    part = acceptance_part(count_requests((8, 2), (4, 4), (0, 0), accepted=6), 2)
    assert part.rate_per_request.value == (0.25, 1.0, None)


def test_what_is_accepted_in_each_kind_of_question_is_told_over_all_rounds() -> None:
    """Those without a name stand together; a kind without a count by request has no rate, and its reason."""
    counted = count_requests((8, 2), (4, 4), (6, 1), accepted=7)
    twice = Rounds(counted.runs * 2, (1.0, 1.0))
    coding, none = acceptance_part(twice, 2, ("coding", None, "coding")).by_category
    assert (coding.name, coding.requests, coding.rate.value) == ("coding", 2, 3 / 14)
    assert (none.name, none.requests, none.rate.value) == ("none", 1, 1.0)
    assert none.delivered_tokens_per_step == Figure(None, NO_STEPS)
    (with_a_hole,) = acceptance_part(count_requests((8, 2), (None, None), accepted=6), 2, ("a", "a")).by_category
    assert with_a_hole.rate == Figure(None, NOT_BY_REQUEST)
    (undrafted,) = acceptance_part(count_requests((0, 0), accepted=0), 2, ("a",)).by_category
    assert undrafted.rate == Figure(None, NOTHING_DRAFTED)


def test_steps_tell_the_length_by_category_where_no_request_is_counted() -> None:
    """The longest steps come first in words; nothing is said of an engine that does not speculate."""
    kinds = ("essay", "coding")
    part = acceptance_part(rounds_of((1, 3), (1, 5), counted=Speculation(2, 8, 6)), 4, kinds)
    assert part.categories_in_words == ("coding 3.00 tokens a step (1 request); essay 2.00 tokens a step (1 request)")
    assert acceptance_part(rounds_of((1, 3), (1, 5), counted=None), None, kinds).by_category == ()
    seen = rounds_of((1, 3), (10,), counted=Speculation(2, 8, 6))
    steps, whole = seen.runs[0].generations
    run = replace(seen.runs[0], generations=(steps, replace(whole, chunks=())))
    (one,) = acceptance_part(replace(seen, runs=(run,)), 4, ("a", "a")).by_category
    assert one.delivered_tokens_per_step == Figure(None, NO_STEPS)


def test_requests_that_are_not_counted_leave_the_rate_null() -> None:
    """One that is not counted is enough: the others would be compared with a hole."""
    part = acceptance_part(count_requests((8, 2), (None, None), accepted=6), 2)
    assert part.rate_per_request == Figure(None, NOT_BY_REQUEST)


def test_more_accepted_by_request_than_in_all_is_refused() -> None:
    """Two counters of one thing must not contradict each other."""
    with pytest.raises(Contradiction, match="7 tokens accepted by request are more than 6 in all"):
        acceptance_part(count_requests((8, 3), (8, 4), accepted=6), 2)
