"""Limits are judged absolutely: length, ends, ids and finish reason against the request itself."""

from __future__ import annotations

import pytest

from pytest_specdec.generation import Generation, Score
from pytest_specdec.verdict.limits import (
    CANNOT_CHANGE_GREEDY,
    Facts,
    broken_limit,
    missed_eos,
    reshaping_fields,
    with_any_end,
    with_end,
    without_missed_eos,
)
from pytest_specdec.workloads.workload import Request

PROMPT = (5, 6)
EOS = 99
FACTS = Facts(vocabulary=100, eos_token_ids=frozenset({EOS}), context=8)
GRAMMAR = {"structured_outputs": {"choice": ["a"]}}
MAY_END = Request(PROMPT, 4, ignore_eos=False)
PADDING = "and the vocabulary has 100 tokens (padding is never an answer)"
LEAVES_OUT = Facts(vocabulary=100, eos_token_ids=frozenset({EOS, 98}), keeps_ends=False)


def generation(tokens: list[int], finish: str | None) -> Generation:
    return Generation(PROMPT, tuple(tokens), finish)


@pytest.mark.parametrize(
    ("request_", "tokens", "finish", "broken"),
    [
        (Request(PROMPT, 4), [1, 2, 3, 4, 5], "length", "5 tokens delivered, more than max_tokens = 4"),
        (Request(PROMPT, 9, 4, False), [1, 99], "stop", "2 tokens delivered, fewer than min_tokens = 4"),
        (Request(PROMPT, 4), [1, 2], "stop", "2 tokens delivered where 4 were asked for and no end was allowed"),
        (MAY_END, [], "stop", "no token was delivered"),
        (MAY_END, [1, 2], "length", "finished by 'length' after 2 tokens, not after max_tokens = 4"),
        (MAY_END, [1, 2], "stop", "finished by 'stop' on token 2, which is no stop token"),
        (MAY_END, [1, 99, 3, 4], "length", "continued past EOS at 1 (token 99)"),
        (Request(PROMPT, 4, stop_token_ids=(7,)), [7, 1, 1, 1], "length", "continued past stop token at 0 (token 7)"),
        (Request(PROMPT, 2), [1, 100], "length", f"token 1 is 100, {PADDING}"),
        (Request(PROMPT, 2), [1, -1], "length", f"token 1 is -1, {PADDING}"),
        (MAY_END, [1, 99], "stop", None),
        (Request(PROMPT, 4, 3, False), [1, 2, 3, 99], "stop", None),
        (Request(PROMPT, 4, 3, False), [1, 2, 99], "stop", "EOS at 2 (token 99), where min_tokens = 3 forbids it"),
        (Request(PROMPT, 4, 3, False), [1, 99, 2, 3], "length", "EOS at 1 (token 99), where min_tokens = 3 forbids it"),
        (
            Request(PROMPT, 4, 3, stop_token_ids=(7,)),
            [99, 7, 1, 1],
            "length",
            "stop token at 1 (token 7), where min_tokens = 3 forbids it",
        ),
        (Request(PROMPT, 4, 4), [1, 99, 99, 2], "length", None),
        (Request(PROMPT, 4, 3, False, sampling=GRAMMAR), [1, 99, 2, 99], "stop", None),
        (Request(PROMPT, 4), [1, 99, 99, 2], "length", None),
        (Request(PROMPT, 2, 0, False), [1, 99], "length", None),
        (Request(PROMPT, 4, 0, False, stop=("x",)), [1, 2], "stop", None),
        (Request(PROMPT, 4, stop=("x",)), [1, 2], None, "ended without a finish reason after 2 of 4 tokens"),
        (Request(PROMPT, 4), [1, 2, 3, 4], None, "ended without a finish reason after 4 of 4 tokens"),
        (Request(PROMPT, 4), [1, 2, 3, 4], "stop", "finished by 'stop' on token 4, which is no stop token"),
        (Request(PROMPT, 9), [1, 2, 3, 4, 5, 6], "length", None),
        (
            Request(PROMPT, 9),
            [1, 2, 3, 4, 5],
            "length",
            "5 tokens delivered where 9 were asked for and no end was allowed",
        ),
    ],
)
def test_each_limit(request_: Request, tokens: list[int], finish: str | None, broken: str | None) -> None:
    assert broken_limit(request_, generation(tokens, finish), FACTS) == broken


def test_a_missed_eos_is_no_matter_of_noise() -> None:
    asked = Request(PROMPT, 8, min_tokens=1, ignore_eos=False)
    scores = [Score(5.0, 10.0, EOS), Score(5.0, 10.0, EOS), Score(0.1, 10.0, 7)]
    assert without_missed_eos(asked, (1, 2, 3), scores, FACTS) == (scores[0], scores[2])


def test_eos_is_missed_where_it_is_permitted_and_wanted() -> None:
    asked = Request(PROMPT, 8, min_tokens=1, ignore_eos=False)
    scores = [Score(5.0, 10.0, EOS), Score(5.0, 10.0, EOS)]
    told = missed_eos(asked, generation([1, 2], "length"), scores, FACTS, lambda score: score.gap > 0.1)
    assert told == "missed EOS at token 1; min_tokens = 1 permits it there"


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_nothing_is_missed_within_the_floor_or_without_eos(ignore_eos: bool) -> None:
    asked = Request(PROMPT, 8, ignore_eos=ignore_eos)
    within = [Score(0.05, 10.0, EOS)]
    assert missed_eos(asked, generation([1], "length"), within, FACTS, lambda score: score.gap > 0.1) is None


@pytest.mark.parametrize("reason", ["abort", "error", "repetition", "a reason that is yet to be thought of"])
def test_any_other_finish_reason_is_a_failure(reason: str) -> None:
    """Whatever tokens there are; only the two that a whole answer has are none."""
    assert generation([1, 2], reason).failure == f"the engine ended it by {reason!r} after 2 tokens"
    assert [generation([1], each).failure for each in ("stop", "length", None)] == [None] * 3


def test_a_field_that_cannot_change_a_greedy_choice_reshapes_nothing() -> None:
    """Truncation keeps the likeliest token, and what is told beside the tokens or in their text chooses none."""
    sampling = {"top_p": 0.9, "top_k": 3, "min_p": 0.1, "n": 1, "logprobs": 5, "seed": 3}
    sampling |= {"skip_special_tokens": False, "include_stop_str_in_output": True}
    assert reshaping_fields(Request(PROMPT, 4, sampling=sampling)) == []
    assert set(sampling) <= CANNOT_CHANGE_GREEDY
    assert reshaping_fields(Request(PROMPT, 4, sampling={**sampling, "logit_bias": {"3": 1.0}})) == ["logit_bias"]


@pytest.mark.parametrize(
    ("request_", "seen", "alone", "facts", "whole"),
    [
        (MAY_END, generation([1, 2], "stop"), [(1, 2, EOS)], LEAVES_OUT, (1, 2, EOS)),
        (MAY_END, generation([1, 2], "stop"), [(1, 2, 3, EOS), ()], LEAVES_OUT, (1, 2, 98)),
        (MAY_END, generation([], "stop"), [(EOS,)], LEAVES_OUT, (EOS,)),
        (Request(PROMPT, 2, 0, False), generation([1, 2], "length"), [(1, 2)], LEAVES_OUT, (1, 2)),
        (MAY_END, generation([1, EOS], "stop"), [], LEAVES_OUT, (1, EOS)),
        (Request(PROMPT, 4, stop=("x",)), generation([1, 2], "stop"), [], LEAVES_OUT, (1, 2)),
        (Request(PROMPT, 4, 0, False, stop=("x",)), generation([1, 2], "stop"), [(1, 2)], LEAVES_OUT, (1, 2)),
        (Request(PROMPT, 4, 0, False, stop=("x",)), generation([1, 2], "stop"), [(1, 2, EOS)], LEAVES_OUT, (1, 2, EOS)),
        (MAY_END, generation([1, 2], "stop"), [(1, 2, EOS)], FACTS, (1, 2)),
    ],
)
def test_an_end_that_the_engine_leaves_out_is_put_back(
    request_: Request, seen: Generation, alone: list[tuple[int, ...]], facts: Facts, whole: tuple[int, ...]
) -> None:
    """Where the engine says that it leaves ends out, and nowhere else: under a stop text only the target's own."""
    assert with_end(request_, seen, facts, alone).token_ids == whole


@pytest.mark.parametrize(
    ("argmax", "facts", "gap"), [(EOS, LEAVES_OUT, 0.0), (3, LEAVES_OUT, 5.0), (EOS, FACTS, 5.0)], ids=str
)
def test_an_end_that_was_put_back_is_as_good_as_the_one_that_the_target_wants(
    argmax: int, facts: Facts, gap: float
) -> None:
    """Which of two it was is not known; where the target wants no end, none is right."""
    scores = (Score(5.0, 10.0, EOS), Score(5.0, 10.0, argmax))
    rated = with_any_end(MAY_END, (1, 98), scores, facts)
    assert [score.gap for score in rated] == [5.0, gap]
