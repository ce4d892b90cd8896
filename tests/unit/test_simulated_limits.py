"""Where the statistics promise less than a reader may think: what the pages tell of it, simulated.

docs/sampling.md, docs/verdict.md, docs/report.md and docs/measurements.md say these numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pytest_specdec.generation import Ranking
from pytest_specdec.metrics.rounds import Drift, ratio_interval
from pytest_specdec.verdict.noise import (
    VERIFYING,
    NoiseFloor,
    Null,
    compare_near_ties,
    excess_of,
    least_near_ties,
    level_of_gate,
)
from pytest_specdec.verdict.rated import Place, Rated, rate
from pytest_specdec.verdict.sampling_evidence import LEVEL, Evidence

Array = Any
TOKENS, VOCABULARY = 1500, 50


def shares(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def test_tokens_from_a_draft_that_errs_either_way_move_the_likeliest_little_and_are_not_convicted() -> None:
    """As many of them as would amount to the total variation that is stated; all of them, in some engines of three."""
    random = np.random.default_rng(1)
    logits = np.sort(random.normal(0, 2.6, (TOKENS, VOCABULARY)), axis=1)[:, ::-1].copy()
    target, draft = shares(logits), shares(logits + random.normal(0, 1.0, logits.shape))
    apart = np.abs(target - draft).sum(axis=1).mean() / 2
    rated = [
        rate(
            Place(0, at % 30, at // 30, at % 5),
            Ranking(row, range(VOCABULARY), 0, True),
            {"temperature": 1.0},
            "float32",
        )
        for at, row in enumerate(logits.tolist())
    ]
    evidence = Evidence([each for each in rated if isinstance(each, Rated)])
    stated = evidence.detects
    assert stated is not None
    assert evidence.tokens == TOKENS
    cells = cells_of(target)

    def convicted(share: float) -> float:
        edges = ((1 - share) * target + share * draft).cumsum(axis=1)
        drawn = ((random.random((TOKENS, 1)) >= edges[:, :-1]).sum(axis=1) for _ in range(100))
        return sum(evidence._log_e(cells[np.arange(TOKENS), each]) >= -math.log(LEVEL) for each in drawn) / 100

    mixed = (1 - stated / apart) * target + stated / apart * draft
    assert abs((mixed - target)[:, 0].mean()) < 0.25 * stated
    assert convicted(stated / apart) == 0
    assert 0.2 < convicted(1.0) < 0.9


def cells_of(target: Array) -> Array:
    """The cell of each token of each row, likeliest first."""
    before = target.cumsum(axis=1) - target
    found = 1 + np.searchsorted((0.5, 0.9, 0.99, 0.9999, 0.999999), before.ravel(), side="right").reshape(before.shape)
    found[:, 0] = 0
    return found


def floor_at(near_ties: int, tokens: int) -> NoiseFloor:
    null = Null(near_ties, tokens, VERIFYING)
    return NoiseFloor("bfloat16", tokens, near_ties, 0, 0.0, null).for_gate(1000, level_of_gate(1))


@pytest.mark.parametrize("rate_of_ties", [0.001, 0.012, 0.05])
@pytest.mark.parametrize(("judged", "rated"), [(400, 400), (2000, 2000), (6400, 2000)])
def test_both_looks_find_the_number_of_near_ties_that_is_told_in_8_of_10_gates(
    judged: int, rated: int, rate_of_ties: float
) -> None:
    """Each look has a calibration of its own, and the number is priced at the first one's."""
    random = np.random.default_rng(5)

    def finds() -> bool:
        null, judged_ties, null_again = (int(random.poisson(rate_of_ties * each)) for each in (rated, judged, judged))
        floor = floor_at(null, rated)
        planted = least_near_ties(floor, judged_ties, judged)
        looks = ((floor, judged_ties), (floor_at(null_again, judged), int(random.poisson(rate_of_ties * judged))))
        return all(compare_near_ties(each, ties + planted, judged).suspect for each, ties in looks)

    assert sum(finds() for _ in range(500)) / 500 >= 0.8


@pytest.mark.parametrize(("factor", "low", "high"), [(1 / 30, 0.0, 2.5e-4), (1 / 15, 5e-4, 2e-3), (1 / 8, 4e-3, 1e-2)])
def test_a_target_whose_rounding_falls_off_slowly_exceeds_the_floor_more_often(
    factor: float, low: float, high: float
) -> None:
    """The chance that one of 6400 tokens of a sound engine does, by the bound that 2000 of the target set."""
    random, rate_of_ties = np.random.default_rng(3), 0.002
    chances = []
    for _ in range(2000):
        near_ties = int(random.poisson(rate_of_ties * 2000))
        excess = excess_of(1.0 + random.geometric(1 - factor, near_ties) - 1)
        null = Null(near_ties, 2000, VERIFYING)
        floor = NoiseFloor("bfloat16", 2000, near_ties, excess, 0.0, null).for_gate(6400, level_of_gate(1))
        chances.append(1 - math.exp(-rate_of_ties * 6400 * factor**floor.bound))
    assert low <= np.mean(chances) <= high


def series(random: Array, rounds: int, correlated: float) -> list[float]:
    """Rates of rounds that scatter by 2 %."""
    values = [random.normal()]
    while len(values) < rounds:
        values.append(correlated * values[-1] + math.sqrt(1 - correlated**2) * random.normal())
    return [math.exp(0.02 * each) for each in values]


@pytest.mark.parametrize(("correlated", "low", "high"), [(0.0, 0.15, 0.5), (0.5, 0.45, 0.85)])
def test_of_a_sweep_in_which_nothing_pays_some_are_told_to(correlated: float, low: float, high: float) -> None:
    """Seven numbers of requests and six γ, each gate of eight rounds by an interval of its own."""
    random = np.random.default_rng(13)

    def pays() -> bool:
        known = ratio_interval(series(random, 8, correlated), (base := series(random, 8, correlated)), Drift.of(base))
        return known is not None and known.low > 1

    one = sum(pays() for _ in range(3000)) / 3000
    assert low < 1 - (1 - one) ** 42 < high


@pytest.mark.parametrize(("correlated", "low", "high"), [(0.0, 0.05, 0.15), (0.5, 0.1, 0.25)])
def test_a_limit_at_the_very_truth_is_decided_more_often_than_an_interval_misses(
    correlated: float, low: float, high: float
) -> None:
    """Rounds are looked at after 4, 6, 9, … of them until the limit is decided, 64 at most: each look is a chance."""
    random = np.random.default_rng(17)

    def decided() -> bool:
        ours, base = series(random, 64, correlated), series(random, 64, correlated)
        looks = (ratio_interval(ours[:n], base[:n], Drift.of(base[:n])) for n in (4, 6, 9, 14, 21, 32, 48, 64))
        return any(known is not None and not known.low < 1 < known.high for known in looks)

    assert low < sum(decided() for _ in range(1000)) / 1000 < high
