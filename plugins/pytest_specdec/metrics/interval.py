"""How well a rate is known from its rounds.

A round's rate is its delivered tokens over its seconds. The interval is Student's for the mean of the rates; that of a
ratio is taken on the logarithms of pairs, each round of one arm beside one of the other. Rounds of one process are not
independent, so the error of a mean is taken larger by what their correlation makes of it, see `squared_error`; how
often the intervals then hold the truth is simulated in docs/measurements.md. They say how far the rounds of this
session scatter, not how far another day's would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, variance

LEVEL = 0.95
LEAST_FOR_ORDER = 4
HIGHEST = 0.85
LEAST_SEEN = 0.05


@dataclass(frozen=True)
class Interval:
    """An estimate between two bounds, at LEVEL."""

    low: float
    middle: float
    high: float

    @property
    def share(self) -> float:
        """Its width over its middle; without a width 0, also where nothing was delivered."""
        width = self.high - self.low
        return width / self.middle if width else 0.0


def mean_interval(values: Sequence[float], fitted: int = 1) -> Interval | None:
    """Student's interval of the mean; None with fewer than two values. `fitted`: figures estimated from them."""
    if len(values) < 2:
        return None
    middle, half = fmean(values), half_width(squared_error(values), len(values) - fitted)
    return Interval(middle - half, middle, middle + half)


def ratio_interval(ours: Sequence[float], base: Sequence[float], moved: float = 0.0) -> Interval | None:
    """The interval of ours over base, pair by pair. None with fewer than two pairs, or a value that is not positive.

    `moved`: how far, as a logarithm, a drift of the machine may have moved the ratio beside the scatter of the pairs.
    """
    if len(ours) != len(base) or len(ours) < 2 or min(*ours, *base) <= 0:
        return None
    pairs = [math.log(mine) - math.log(its) for mine, its in zip(ours, base, strict=True)]
    differs = mean_interval(_without_order(pairs), fitted=2) if len(pairs) >= LEAST_FOR_ORDER else mean_interval(pairs)
    if differs is None:
        return None
    return Interval(math.exp(differs.low - moved), math.exp(differs.middle), math.exp(differs.high + moved))


def _without_order(pairs: Sequence[float]) -> list[float]:
    """The pairs less what going first does: arms go first in turn, so a steady drift is half the difference of both."""
    first, second = fmean(pairs[::2]), fmean(pairs[1::2])
    middle = (first + second) / 2
    return [each - (middle - first if place % 2 else first - middle) for place, each in enumerate(pairs)]


def squared_error(values: Sequence[float]) -> float:
    """Of their mean, if each is correlated with the one before."""
    return variance(values) / len(values) * stretch(values) ** 2


def stretch(*series: Sequence[float]) -> float:
    """How many times as large the standard error of a mean is as that of independent values; of the shortest series.

    The square is 1 + 2 Σ (1 - k/n) ρᵏ, k from 1 to n - 1, over what is seen of the scatter: correlated values scatter
    less around their own mean than around the true one.
    """
    count, rho = min(map(len, series)), correlation(*series)
    inflation = 1 + 2 * sum((1 - lag / count) * rho**lag for lag in range(1, count))
    return math.sqrt(inflation / max((count - inflation) / (count - 1), LEAST_SEEN))


def correlation(*series: Sequence[float]) -> float:
    """That of each value with the one before, as high as it may well be, from 0 to HIGHEST.

    The estimate from a short series is too low by about (1 + 3ρ)/n (Marriott and Pope 1954), and uncertain by 1/√n.
    """
    count = sum(map(len, series))
    told = sum(len(values) * _with_the_one_before(values) for values in series) / count
    bias = (1 + 3 * max(told, 0.0)) * len(series) / count
    return min(max(0.0, told + bias + 1 / math.sqrt(count)), HIGHEST)


def _with_the_one_before(values: Sequence[float]) -> float:
    middle = fmean(values)
    apart = [each - middle for each in values]
    total = sum(each**2 for each in apart)
    return sum(earlier * later for earlier, later in pairwise(apart)) / total if total else 0.0


MOST_ROUNDS = 1000


def rounds_to_decide(half: float, distance: float, rounds: int) -> int | None:
    """Rounds after which `half` an interval is shorter than the way to a threshold; it shrinks as 1/√n.

    None where more than MOST_ROUNDS would be needed.
    """
    if distance * math.sqrt(MOST_ROUNDS) <= half * math.sqrt(rounds):
        return None
    return max(rounds + 1, math.ceil(rounds * (half / distance) ** 2))


def half_width(squared: float, freedom: float) -> float:
    """Half of Student's interval at LEVEL."""
    # Not scipy.stats.t: that module takes seconds to import, and every run would pay them.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(squared)
