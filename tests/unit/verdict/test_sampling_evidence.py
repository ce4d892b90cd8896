"""Measured tokens: how each is rated, what all of them together say, and what they would have found.

The engine is again speculative decoding by arithmetic, on a target and a drafter that are tables, so that thousands of
sound and faulty rounds can be judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import log, nan

import numpy as np
import pytest
from tests.unit.verdict.binomial import quantile
from tests.unit.verdict.test_sampling_verdict import FAULTS, GAMMA, PROMPT_END, RIGHT, TARGET, Loop

from pytest_specdec.generation import Chunk, Generation, Ranking, Run
from pytest_specdec.verdict.equivalence import Outcome, answers_of
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.rated import (
    CELLS,
    Place,
    Rated,
    Unrated,
    count_passing,
    look_at,
    rate,
    rate_answer,
)
from pytest_specdec.verdict.sampling_evidence import FAMILIES, LEVEL, Evidence, RatedVerdict
from pytest_specdec.workloads.workload import Request

HERE = Place(round=0, request=0, token=0, burst=0)
LOGITS = (4.0, 3.0, 2.0, 1.0)
SHARES = np.exp(LOGITS) / np.exp(LOGITS).sum()
SAMPLED = {"temperature": 1.0}
DECIDED = log(1 / LEVEL)


def ranking(place: int | None, logits: Sequence[float] = LOGITS, whole: bool = True) -> Ranking:
    return Ranking(logits, range(len(logits)), place, whole)


def test_the_cells_are_the_likeliest_token_and_the_others_by_the_mass_of_likelier_ones() -> None:
    """0.64, 0.24, 0.09, 0.03: the second has 0.64 before it, the third 0.88, the last 0.97."""
    found = [rate(HERE, ranking(place), SAMPLED, "float32") for place in range(4)]
    assert [each.cell for each in found if isinstance(each, Rated)] == [0, 2, 2, 3]
    assert isinstance(found[0], Rated)
    assert found[0].mass == pytest.approx((SHARES[0], 0, SHARES[1] + SHARES[2], SHARES[3], 0, 0, 0))


def test_the_temperature_is_the_requests_own() -> None:
    hot = rate(HERE, ranking(0), {"temperature": 2.0}, "float32")
    assert isinstance(hot, Rated)
    assert hot.mass[0] == pytest.approx(1 / np.exp([0.0, -0.5, -1.0, -1.5]).sum())


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"top_k": 2}, (2, 2)),
        ({"top_k": 0}, (4, 4)),
        ({"top_k": -1}, (4, 4)),
        ({"top_p": 0.7}, (2, 2)),
        ({"top_p": 1.0}, (4, 4)),
        ({"min_p": 0.2}, (2, 2)),
        ({"top_k": 3, "top_p": 0.7}, (2, 2)),
        ({"top_p": 0.9, "min_p": 0.1}, (2, 3)),
    ],
    ids=str,
)
def test_filters_leave_the_likeliest_tokens(sampling: dict[str, float], expected: tuple[int, int]) -> None:
    """The same as vLLM and Transformers do; where their order of filters matters, a token is not sure."""
    assert count_passing(np.array(LOGITS) - LOGITS[0], sampling, slack=1e-4, whole=True) == expected


@pytest.mark.parametrize(
    ("sampling", "expected"), [({"top_k": 2}, (1, 3)), ({"top_p": 0.665}, (1, 3)), ({"min_p": 0.36}, (1, 3))], ids=str
)
def test_what_rounding_may_let_pass_is_not_sure(sampling: dict[str, float], expected: tuple[int, int]) -> None:
    """The second and third token are as likely but for rounding, and lie at the filter's edge."""
    scaled = np.array([0.0, -1.0, -1.01, -3.0])
    assert count_passing(scaled, sampling, slack=0.1, whole=True) == expected


def test_tokens_at_the_edge_of_a_filter_are_left_out_and_those_beyond_are_impossible() -> None:
    logits = (4.0, 3.0, 2.999999, 1.0)
    found = [rate(HERE, ranking(place, logits), {**SAMPLED, "top_k": 2}, "float32") for place in (0, 1, 2, 3)]
    assert isinstance(found[0], Rated)
    assert found[1:] == [Unrated(HERE), Unrated(HERE), Unrated(HERE, impossible=True)]


def test_a_token_beyond_those_told_is_left_out_and_not_called_impossible() -> None:
    """Unless a filter says so."""
    assert rate(HERE, ranking(None, whole=False), SAMPLED, "float32") == Unrated(HERE)
    assert rate(HERE, ranking(None, whole=False), {**SAMPLED, "top_k": 2}, "float32") == Unrated(HERE, impossible=True)
    assert rate(HERE, ranking(None), SAMPLED, "float32") == Unrated(HERE, impossible=True)


def test_logits_that_are_no_numbers_are_told() -> None:
    assert rate(HERE, ranking(0, (nan, 1.0)), SAMPLED, "float32") == Unrated(HERE, nan=True)


def test_rounding_is_by_the_ulp_at_the_highest_logit() -> None:
    """One ULP of bfloat16 at 4 is 1/32; at temperature 2 it moves odds by half as much."""
    rated = rate(HERE, ranking(0), {"temperature": 2.0}, "bfloat16")
    assert isinstance(rated, Rated)
    assert rated.slack == 1 / 64


def test_places_are_settled_before_the_token_is_drawn() -> None:
    """By chunks: the first comes from the prompt's own pass. `accepted` or `rejected` would say what was drawn."""
    request = Request((7,), 5, sampling=SAMPLED)
    answer = Generation((7,), (1, 2, 3, 1, 2), "length", (Chunk(0.1, 1), Chunk(0.2, 3), Chunk(0.3, 1)))
    asked: list[int] = []

    def rank(requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> list[list[Ranking]]:
        asked.append(len(requests))
        return [[ranking(token) for token in output] for output in outputs]

    answers = answers_of([request], dict.fromkeys((0, 1), Run((answer,), None, 1.0)))
    found, _ = look_at(rank, answers, (), "float32", Facts()) or ([], [])
    assert [each.place.burst for each in found] == [0, 1, 2, 3, 1] * 2
    assert [each.place.round for each in found] == [0] * 5 + [1] * 5
    assert asked == [1]  # equal answers are ranked once
    assert look_at(lambda requests, outputs: None, answers, (), "float32", Facts()) is None


def test_an_end_that_min_tokens_withholds_has_no_probability() -> None:
    """The first token of the answer is the likeliest of the others, the second is not."""
    request = Request((7,), 2, min_tokens=1, ignore_eos=False, sampling=SAMPLED)
    answer = Generation((7,), (1, 1), "length", (Chunk(0.1, 1), Chunk(0.2, 1)))
    first, second = rate_answer((0, 0, request, answer), [ranking(1)] * 2, "float32", eos_token_ids={0})
    assert first == rate(first.place, ranking(0, LOGITS[1:]), SAMPLED, "float32")
    assert second == rate(second.place, ranking(1), SAMPLED, "float32")


def test_a_stretch_of_an_answer_grows_by_fours() -> None:
    """So that a fault beyond a position is not lost among the tokens before it."""
    starts = {0: 0, 15: 0, 16: 16, 63: 16, 64: 64, 255: 64, 256: 256, 1023: 256, 1024: 1024}
    assert {token: FAMILIES["tokens from {} on"](Place(0, 0, token, 0)) for token in starts} == starts


ANSWERS = 32


@cache
def rated_by(last: int, token: int) -> Rated:
    """A token after another, by the target's table."""
    order = np.argsort(-TARGET[last], kind="stable").tolist()
    found = rate(HERE, ranking(order.index(token), np.log(TARGET[last][order]).tolist()), SAMPLED, "float32")
    assert isinstance(found, Rated)
    return found


def rounds(loop: Loop, seed: int, answers: int = ANSWERS) -> list[Rated | Unrated]:
    """What one run of a loop gave, rated."""
    return [
        replace(rated_by(last, token), place=Place(0, answer, at, min(at, GAMMA + 1)))
        for answer, sample in enumerate(loop([seed] * answers))
        for at, (last, token) in enumerate(pairwise((PROMPT_END, *sample)))
    ]


def log_e(loop: Loop, seed: int, answers: int = ANSWERS) -> float:
    return RatedVerdict.of(rounds(loop, seed, answers), repeats=False).evidence.log_e


def test_hundreds_of_sound_engines_are_green() -> None:
    """And by Ville's inequality no more than a share 1/x reaches an e-value of x, at any x."""
    found = np.array([log_e(RIGHT, seed) for seed in range(400)])
    assert found.max() < DECIDED
    for level in (0.3, 0.05):
        assert (found >= -log(level)).sum() <= quantile(1 - 1e-4, 400, level)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_every_fault_of_the_loop_is_found(fault: Loop) -> None:
    """In 2000 answers of four tokens; the bonus token is told by its place."""
    verdict = RatedVerdict.of(rounds(fault, 1, 2000), repeats=False)
    assert verdict.outcome is Outcome.DIFFERENT
    assert verdict.in_words().startswith("different: measured tokens are not distributed as the target's; ")


def test_a_wrong_bonus_is_told_by_its_place() -> None:
    verdict = RatedVerdict.of(rounds(FAULTS["bonus from the drafter"], 1, 2000), repeats=False)
    assert verdict.evidence.strongest().startswith(f"place {GAMMA + 1} of a burst: ")


def simulated(tokens: int, top: float, seed: int, shift: float = 0.0, slack: float = 0.0) -> list[Rated]:
    """Tokens of which the likeliest has this probability, or `shift` less in truth, and another all of the rest."""
    random = np.random.default_rng(seed)
    mass = (top, 1 - top, *(0.0,) * (CELLS - 2))
    others = random.random(tokens) >= top - shift
    return [Rated(Place(0, at // 64, at % 64, at % 4), mass, int(other), slack) for at, other in enumerate(others)]


def test_rounding_that_leans_to_one_side_is_no_fault() -> None:
    """As far as it is allowed for, in as many tokens as one likes; without the allowance it would be one."""
    slack = 0.125
    lean = 0.5 - 1 / (1 + np.exp(slack))
    for seed in range(2):
        found = simulated(20_000, 0.5, seed, shift=lean, slack=slack)
        assert not Evidence(found).convicts
        assert Evidence([replace(each, slack=0.0) for each in found]).convicts


def test_what_would_have_been_found_is_found() -> None:
    """A total variation of the size stated, in 100 runs; and two thirds of it is found less often."""
    stated = Evidence(simulated(400, 0.64, 0)).detects
    assert stated is not None
    found, less = (
        sum(Evidence(simulated(400, 0.64, seed, shift=size)).convicts for seed in range(1, 101))
        for size in (stated, 2 / 3 * stated)
    )
    assert found >= quantile(1e-4, 100, 0.92)
    assert less < quantile(1e-4, 100, 0.95)


def test_as_many_tokens_as_are_said_to_be_needed_see_what_is_asked() -> None:
    """A quarter more than "about"."""
    needed = Evidence(simulated(500, 0.64, 0)).tokens_for(0.1)
    assert needed is not None
    enough = Evidence(simulated(round(1.25 * needed), 0.64, 0)).detects
    assert enough is not None
    assert enough <= 0.1 < Evidence(simulated(500, 0.64, 0)).detects  # type: ignore[operator]


def test_rounding_hides_what_no_number_of_tokens_shows() -> None:
    """0.005 of total variation where rounding alone may move 0.007."""
    coarse = Evidence(simulated(2000, 0.64, 0, slack=0.03125))
    assert coarse.hides(0.005)
    shortage = RatedVerdict(coarse).shortage(0.005)
    assert "rounding hides so little in any number of tokens: use float32" in shortage


def test_a_verdict_says_what_it_would_have_found() -> None:
    """As the total variation that was planted, and which way: a fault that now takes from the likeliest token and now
    gives to it is found later or not at all."""
    verdict = RatedVerdict(Evidence(simulated(2000, 0.64, 0)))
    assert verdict.detects is not None
    assert verdict.statement() == (
        "would have found, with 95%, in 2000 measured tokens: "
        f"a total variation of {verdict.detects:.3f} away from the likeliest tokens"
    )


def test_what_is_asked_and_not_seen_says_how_many_tokens_are_missing() -> None:
    verdict = RatedVerdict(Evidence(simulated(500, 0.64, 0)))
    assert (verdict.sees(None), verdict.sees(0.5), verdict.sees(0.02)) == (True, True, False)
    assert verdict.shortage(0.02).startswith("undecidable: detects.total_variation = 0.02 is asked, and this run would")
    needed = verdict.evidence.tokens_for(0.02)
    assert needed is not None
    assert f"too few tokens: about {needed - 500} more would do" in verdict.shortage(0.02)


@pytest.mark.parametrize("tokens", [0, 3])
def test_so_few_tokens_that_nothing_is_seen_are_no_matter_of_rounding(tokens: int) -> None:
    """More of them would help; float32 would not."""
    verdict = RatedVerdict(Evidence(simulated(tokens, 0.64, 0)))
    assert verdict.detects is None
    assert verdict.shortage(0.1).endswith("; too few tokens: many more are needed (count, max_tokens or rounds)")


def test_nothing_is_seen_where_nothing_was_rated() -> None:
    verdict = RatedVerdict.of([], repeats=False)
    assert (verdict.outcome, verdict.detects, verdict.sees(0.9)) == (Outcome.CONSISTENT, None, False)
    assert verdict.statement() == "in 0 measured tokens no difference of distribution would have been found with 95%"


def test_rounds_that_a_seed_repeats_are_no_further_evidence() -> None:
    """Three equal rounds that a chance has made improbable convict only if they are taken for three."""
    once = simulated(600, 0.64, 3, shift=0.075)
    thrice = [replace(each, place=replace(each.place, round=turn)) for turn in range(3) for each in once]
    assert Evidence(thrice).convicts
    assert not Evidence(thrice, repeats=True).convicts


def test_one_impossible_token_is_enough() -> None:
    """And is told with its place."""
    verdict = RatedVerdict.of([*simulated(50, 0.64, 0), Unrated(Place(1, 2, 3, 0), impossible=True)], repeats=False)
    assert verdict.outcome is Outcome.DIFFERENT
    assert "token 3 of request 2, round 1 has no probability" in verdict.in_words()


def test_a_few_tokens_that_are_next_to_impossible_are_enough() -> None:
    """Three of probability 10⁻⁶, or one of 10⁻¹², among a thousand certain ones; no normal approximation says so."""
    for rare, strikes in ((1e-6, 3), (1e-12, 1)):
        mass = (1 - rare, *(0.0,) * (CELLS - 2), rare)
        cells = [CELLS - 1] * strikes + [0] * (1000 - strikes)
        assert Evidence([Rated(Place(0, 0, at, 0), mass, cell, 0.0) for at, cell in enumerate(cells)]).convicts


def test_a_target_that_is_not_as_it_rates_itself_decides_nothing() -> None:
    found = RatedVerdict(Evidence(simulated(2000, 0.64, 0, shift=0.2)))
    assert found.outcome is Outcome.DIFFERENT
    assert replace(found, target_strays=True).outcome is Outcome.UNDECIDABLE
    assert "the target alone does not sample as it rates" in replace(found, target_strays=True).in_words()
    no_numbers = RatedVerdict.of([Unrated(HERE, nan=True)], repeats=False)
    assert no_numbers.outcome is Outcome.UNDECIDABLE
    assert no_numbers.in_words() == "undecidable: the target's own logits are not numbers"
