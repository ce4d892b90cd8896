"""The limit of detection: what is said to be found is found when it is planted into the sample, and less is not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from pytest_specdec.generation import Score
from pytest_specdec.verdict.noise import (
    VERIFYING,
    Sensitivity,
    compare_near_ties,
    count_near_ties,
    find_limits,
    noise_floor,
    too_few_tokens,
)

TOKENS = 6400


@cache
def sample(tokens: int = TOKENS) -> list[Score]:
    """Exact choices of top logits from 4 to 40, their runner-ups 1 to 60 ULPs below."""
    draw = random.Random(5)
    tops = [draw.uniform(4.0, 40.0) for _ in range(tokens)]
    return [Score(0.0, top, 1, draw.randint(1, 60) * 2.0 ** (len(bin(int(top))) - 10)) for top in tops]


def limits_of(scores: Sequence[Score]) -> Sensitivity:
    """Judged against as many tokens of verification, none of them a near-tie."""
    floor = noise_floor([sample()], "bfloat16", judged=(VERIFYING, sample(len(scores))))
    return find_limits(scores, floor.for_gate(len(scores), floor.level), len(scores))


def plant(scores: Sequence[Score], count: int, draw: random.Random, where: Sequence[int]) -> list[Score]:
    """So many of the tokens at these places replaced by their runner-ups."""
    planted = list(scores)
    for at in draw.sample(where, count):
        planted[at] = replace(scores[at], gap=scores[at].runner_up or 0.0)
    return planted


def test_planted_near_ties_are_too_many_from_the_limit_on() -> None:
    """With the limit's number, give or take what chance does to it, in 95 of 100; with half of it in none."""
    limits, draw = limits_of(sample()), random.Random(7)
    assert limits.near_ties is not None
    runner_ups = [replace(score, gap=score.runner_up or 0.0) for score in sample()]
    within = [at for at, runner_up in enumerate(runner_ups) if not limits.floor.is_beyond(runner_up)]
    counts = [sum(draw.random() < limits.near_ties / TOKENS for _ in range(TOKENS)) for _ in range(100)]
    found = [
        compare_near_ties(limits.floor, count_near_ties(plant(sample(), count, draw, within)), TOKENS).too_many
        for count in counts
    ]
    assert sum(found) >= 92
    few = plant(sample(), limits.near_ties // 2, draw, within)
    assert not compare_near_ties(limits.floor, count_near_ties(few), TOKENS).too_many


def test_planted_runner_ups_are_beyond_the_floor_from_the_limit_on() -> None:
    """At least one of so many in 95 of 100; of one fewer, less often than that."""
    limits, draw = limits_of(sample()), random.Random(3)
    assert limits.lossy is not None
    found = [any(map(limits.floor.is_beyond, plant(sample(), limits.lossy, draw, range(TOKENS)))) for _ in range(100)]
    assert sum(found) >= 92
    assert (limits.candidates / TOKENS) ** (limits.lossy - 1) > 0.05


def test_the_statement_has_the_three_limits() -> None:
    limits = limits_of(sample())
    assert limits.statement == (
        f"would have found, with 95 %: one token beyond {limits.floor.bound} ULPs; {limits.near_ties} or more wrong "
        f"near-ties of 6400 tokens; a lossy acceptance of {limits.lossy} or more runner-ups, however far (0.03%)"
    )


def test_where_runner_ups_are_far_no_number_of_near_ties_can_be_wrong() -> None:
    far = [replace(score, runner_up=9.0) for score in sample(400)]
    limits = limits_of(far)
    assert (limits.candidates, limits.near_ties, limits.lossy) == (0, None, 1)
    assert "no number of wrong near-ties (0 of 400 tokens could be)" in limits.statement


def test_an_engine_that_tells_no_runner_up_limits_what_is_said() -> None:
    unknown = limits_of([replace(score, runner_up=None) for score in sample(400)])
    assert (unknown.near_ties, unknown.lossy) == (None, None)


def test_too_few_tokens_say_how_many_more_it_takes() -> None:
    """And with so many more the share is found."""
    limits = limits_of(sample(400))
    (words,) = too_few_tokens(limits, {"near_ties": 0.01})
    more = limits.tokens_wanted("near_ties", 0.01)
    assert words == f"too few tokens to find 1.00% wrong near-ties: {more} more; detects.near_ties"
    assert more is not None
    assert more > 0
    later = limits_of(sample(400 + more))
    assert later.near_ties is not None
    assert later.near_ties <= 0.01 * (400 + more)


def test_enough_tokens_say_nothing() -> None:
    assert too_few_tokens(limits_of(sample()), {"near_ties": 0.01, "lossy": 0.001}) == []
