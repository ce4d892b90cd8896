"""Moments are drawn as the distributions say, at exactly the asked rate; a wrong generator is found out."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest

from pytest_specdec.workloads.load import at_random, evenly, replay

RATE, COUNT = 200.0, 10_000
ENOUGH = 0.01
SEED_7 = (0.0, 0.069473, 0.09735, 0.841276, 2.0)
Generator = Callable[[int, float, float, int], tuple[float, ...]]


def gaps(moments: tuple[float, ...]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(moments)]


def p_value(generator: Generator, burstiness: float, seed: int) -> float:
    """Kolmogorov and Smirnov's, of gaps against the gamma distribution of mean 1/RATE and this shape."""
    from scipy.stats import gamma, kstest

    drawn = gaps(generator(COUNT, RATE, burstiness, seed))
    return float(kstest(drawn, gamma(a=burstiness, scale=1 / (RATE * burstiness)).cdf).pvalue)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0], ids=["bursts", "Poisson", "even"])
def test_gaps_follow_their_distribution(burstiness: float, seed: int) -> None:
    """At fixed seeds, so that the answer is always the same; 1 is the exponential of a Poisson process."""
    assert p_value(at_random, burstiness, seed) > ENOUGH


def rate_for_shape(count: int, rate: float, burstiness: float, seed: int) -> tuple[float, ...]:
    """Wrong: the shape is left out."""
    return at_random(count, rate, 1.0, seed)


def scale_forgotten(count: int, rate: float, burstiness: float, seed: int) -> tuple[float, ...]:
    """Wrong: a scale of 1/rate makes the mean gap `burstiness` times too long."""
    return tuple(moment * burstiness for moment in at_random(count, rate, burstiness, seed))


def uniform(count: int, rate: float, burstiness: float, seed: int) -> tuple[float, ...]:
    """Wrong: the right mean and another distribution."""
    dice = random.Random(seed)
    return tuple(accumulate((2 * dice.random() / rate for _ in range(count - 1)), initial=0.0))


@pytest.mark.parametrize("wrong", [rate_for_shape, scale_forgotten, uniform])
def test_a_wrong_generator_is_found_out(wrong: Generator) -> None:
    """The test above would fail for each of them, by many orders of magnitude."""
    assert p_value(wrong, 2.0, 0) < 1e-20


def test_row_32_ten_thousand_requests_at_200_a_second_are_due_at_200_a_second() -> None:
    """The schedule itself has no drift: the last of them is due at 9999 gaps of 5 ms, to the microsecond."""
    for moments in (evenly(COUNT, RATE), *(at_random(COUNT, RATE, 1.0, seed) for seed in range(3))):
        assert (len(moments), moments[0], moments[-1]) == (COUNT, 0.0, 49.995)
    assert evenly(COUNT, RATE)[:4] == (0.0, 0.005, 0.01, 0.015)


@pytest.mark.parametrize("burstiness", [0.01, 1.0])
def test_moments_never_fall(burstiness: float) -> None:
    assert all(gap >= 0 for gap in gaps(at_random(COUNT, RATE, burstiness, 3)))


def test_a_single_request_is_due_at_once() -> None:
    assert (at_random(1, 8.0, 1.0, 0), evenly(1, 8.0)) == ((0.0,), (0.0,))


def test_the_same_seed_gives_the_same_schedule_on_every_machine() -> None:
    """To the microsecond; another seed gives another, however large it is."""
    assert at_random(5, 2.0, 0.5, 7) == SEED_7
    assert at_random(5, 2.0, 0.5, 2**200) != at_random(5, 2.0, 0.5, 2**200 + 1)


def test_a_trace_starts_at_once_and_is_stretched() -> None:
    """Half the time scale plays it twice as fast; a time of 0 is a value."""
    assert replay([27.5, 27.5, 30.0, 34.5], 0.5) == (0.0, 0.0, 1.25, 3.5)
    assert replay([0.0, 1.0], 1.0) == (0.0, 1.0)
    assert replay([], 1.0) == ()
