"""Returned log-probabilities against the target's rating: count, token and number, as far as the rating tells them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_specdec.generation import Generation, Ranking
from pytest_specdec.verdict.logprobs import wrong_logprobs

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
