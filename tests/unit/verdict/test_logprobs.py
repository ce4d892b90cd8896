"""Returned log-probabilities against the target's rating: count, token and number, as far as the rating tells them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_specdec.generation import Generation, Ranking, Run
from pytest_specdec.verdict.equivalence import Finding, verdict_of
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.noise import compare_near_ties, find_limits, noise_floor
from pytest_specdec.verdict.rated import (
    BATCH,
    NOT_RATED,
    NOT_TOLD,
    UNDER_A_GRAMMAR,
    Rank,
    judge_logprobs,
    wrong_logprobs,
)
from pytest_specdec.workloads.workload import Request, Workload

LOGITS = (10.0, 9.0, 2.0)
SUM = 10.0 + math.log(1 + math.exp(-1) + math.exp(-8))
RATED = [Ranking(LOGITS, (5, 6, 7), place, whole=True) for place in (0, 1)]
RIGHT = (10.0 - SUM, 9.0 - SUM)
ANSWER = Generation((1,), (5, 6), "length", logprobs=RIGHT)

WRONG = {
    "too few": ((RIGHT[0],), "1 log-probabilities for 2 tokens"),
    "none of its own": ((RIGHT[0], None), "token 1 is not among the tokens of its log-probabilities"),
    "of the token before": ((RIGHT[0], RIGHT[0]), "the log-probability of token 1 is -0.3135, where the target has"),
    "0 beyond rounding": ((0.0, 0.0), "the log-probability of token 0 is 0, where the target has"),
    "not a number": ((math.nan, RIGHT[1]), "the log-probability of token 0 is nan"),
}


@pytest.mark.parametrize(("told", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(told: tuple[float | None, ...], words: str) -> None:
    """By the first token of which it is known."""
    assert words in str(wrong_logprobs(replace(ANSWER, logprobs=told), RATED, "float32", 3))


def test_the_targets_own_are_right() -> None:
    """Within rounding of the dtype: what is 0.1 off is right in bfloat16, wrong in float32."""
    off = replace(ANSWER, logprobs=(RIGHT[0] - 0.1, RIGHT[1]))
    assert [wrong_logprobs(ANSWER, RATED, dtype, 3) for dtype in ("float32", "bfloat16")] == [None, None]
    assert wrong_logprobs(off, RATED, "bfloat16", 3) is None
    assert wrong_logprobs(off, RATED, "float32", 3) is not None


def test_a_token_far_below_zero_is_rounded_by_its_own_size() -> None:
    """At a temperature: an ULP of bfloat16 at -8 is eight times that at 1.9."""
    sampled = [Ranking((1.9, 1.0, -8.0), (5, 6, 7), 2, whole=True)] * 2
    right = -8.0 - (1.9 + math.log(1 + math.exp(-0.9) + math.exp(-9.9)))
    told = replace(ANSWER, token_ids=(7, 7), logprobs=(right - 0.0625, right))
    assert wrong_logprobs(told, sampled, "bfloat16", 3) is None
    assert wrong_logprobs(told, sampled, "float32", 3) is not None


def test_all_zero_is_told_though_each_is_within_rounding() -> None:
    """In bfloat16 a certain token's log-probability is 0 but for rounding; not one of them is exactly that."""
    certain = [Ranking((10.0, 2.0), (5, 6), 0, whole=True)] * 2
    zero = replace(ANSWER, token_ids=(5, 5), logprobs=(0.0, 0.0))
    assert wrong_logprobs(zero, certain, "bfloat16", 2) == "all log-probabilities are 0"


def test_tokens_that_are_not_told_widen_what_is_right() -> None:
    """997 tokens more, each as likely as the least that is told, would take 0.2 more; a token that is not told is less
    likely than these."""
    some = [replace(each, whole=False) for each in RATED]
    lower = replace(ANSWER, logprobs=(RIGHT[0] - 0.2, RIGHT[1] - 0.2))
    assert wrong_logprobs(lower, some, "float32", 1000) is None
    assert wrong_logprobs(lower, some, "float32", 3) is not None
    unlisted = [replace(each, place=None) for each in some]
    assert wrong_logprobs(replace(ANSWER, logprobs=(-9.0, -9.0)), unlisted, "float32", 1000) is None
    assert wrong_logprobs(ANSWER, unlisted, "float32", 1000) is not None


VOCABULARY = (20.0, 18.0, 10.0, 9.0)  # the first ends an answer
TELLS = {"logprobs": 1}


def rank(requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> list[list[Ranking]]:
    """Of a target that has these logits everywhere."""
    return [[Ranking(VOCABULARY, range(4), token, True) for token in output] for output in outputs]


FLOOR = noise_floor((), "float32")
PASSES = verdict_of(6, [], compare_near_ties(FLOOR, 0, 6), find_limits((), FLOOR, 6))


def find_wrong(
    workload: Workload, runs: Sequence[Run], rank: Rank = rank
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """What is found though all tokens are right, and what was not compared."""
    verdict, untried = judge_logprobs(PASSES, workload, dict(enumerate(runs)), rank, Facts(vocabulary=4))
    return verdict.findings, untried


def wrong(request: Request, value: float) -> tuple[list[str], tuple[str, ...]]:
    """What is found of an answer that is all token 1, each with this log-probability."""
    tokens = request.max_tokens
    run = Run((Generation((7,), (1,) * tokens, "length", logprobs=(value,) * tokens),), None, 1.0)
    findings, untried = find_wrong(Workload("w", (request,), 1), [run])
    return [each.detail for each in findings], untried


@pytest.mark.parametrize("min_tokens", [0, 1])
def test_a_withheld_end_has_its_share_of_the_log_probability(min_tokens: int) -> None:
    """Raw ones are of all tokens: -2.127 where EOS has 20 and the emitted token 18; -0.0005 without EOS."""
    request = Request((7,), 1, min_tokens=min_tokens, sampling=TELLS)
    assert wrong(request, -2.12736) == ([], ())
    assert len(wrong(request, -0.00046)[0]) == 1


def test_under_a_grammar_they_are_not_compared_and_that_is_told() -> None:
    """The engine takes them after it has masked what the grammar forbids."""
    structured = Request((7,), 1, sampling={**TELLS, "structured_outputs": {"regex": "a"}})
    assert wrong(structured, 0.0) == ([], (UNDER_A_GRAMMAR,))


def test_what_cannot_be_compared_is_told() -> None:
    """An engine that tells none, and a target that tells no logits."""
    workload = Workload("w", (Request((7,), 1, sampling=TELLS),), 1)
    silent, wrong_one = (
        [Run((Generation((7,), (1,), "length", logprobs=told),), None, 1.0)] for told in (None, (0.0,))
    )
    assert find_wrong(workload, silent) == ((), (NOT_TOLD,))
    assert find_wrong(workload, wrong_one, lambda *_: None) == ((), (NOT_RATED,))
    assert len(find_wrong(workload, wrong_one)[0]) == 1


def test_answers_are_rated_a_few_at_a_time() -> None:
    """Each distinct one once; what is wrong in a later batch is told as well."""
    requests = tuple(Request((7,) * BATCH, 1, sampling={**TELLS, "seed": seed}) for seed in range(3))
    answers = tuple(Generation(each.prompt_ids, (1,), "length", logprobs=(0.0,)) for each in requests)
    asked: list[int] = []

    def counted(requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> list[list[Ranking]]:
        asked.append(len(requests))
        return rank(requests, outputs)

    findings, _ = find_wrong(Workload("w", requests, 1), [Run(answers, None, 1.0)] * 2, counted)
    assert asked == [1, 1, 1]
    assert sorted((each.round, each.request) for each in findings) == [(at, of) for at in range(2) for of in range(3)]
