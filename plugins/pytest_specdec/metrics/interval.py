"""How well a rate is known from its rounds, and when there have been enough of them.

A round's rate is its delivered tokens over its seconds. The interval is Student's for the mean of the rates, that of a
ratio is taken on their logarithms: paired where each round of one arm stands beside one of the other, Welch's else.
Rounds of one process are not quite independent, and stopping as soon as the interval is narrow makes it a little too
narrow; it says how far the rounds scatter, not how far another day's would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

LEVEL = 0.95
BY_NUMBER = "number of rounds"
BY_INTERVAL = "interval"
BY_BUDGET = "time budget"


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


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Student's interval of the mean; None with fewer than two values."""
    if len(values) < 2:
        return None
    middle, half = fmean(values), _half_width(variance(values) / len(values), len(values) - 1)
    return Interval(middle - half, middle, middle + half)


def ratio_interval(ours: Sequence[float], base: Sequence[float], paired: bool) -> Interval | None:
    """The interval of ours over base. None with fewer than two values on a side, or one that is not positive."""
    if min(len(ours), len(base)) < 2 or min(*ours, *base) <= 0:
        return None
    logs = [math.log(each) for each in ours], [math.log(each) for each in base]
    differs = mean_interval([mine - its for mine, its in zip(*logs, strict=True)]) if paired else _welch(*logs)
    if differs is None:
        return None
    return Interval(math.exp(differs.low), math.exp(differs.middle), math.exp(differs.high))


def _welch(ours: Sequence[float], base: Sequence[float]) -> Interval:
    """Two means of unequal variance (Welch 1947, with Satterthwaite's degrees of freedom)."""
    parts = [variance(each) / len(each) for each in (ours, base)]
    middle, total = fmean(ours) - fmean(base), sum(parts)
    freedom = [part**2 / (len(each) - 1) for part, each in zip(parts, (ours, base), strict=True)]
    half = _half_width(total, total**2 / sum(freedom)) if total else 0.0
    return Interval(middle - half, middle, middle + half)


def _half_width(squared_error: float, freedom: float) -> float:
    # Not scipy.stats.t: that module takes seconds to import, and every run would pay them.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(squared_error)


@dataclass(frozen=True)
class Plan:
    """How many rounds are timed, after how many that are not.

    `rounds`: the fewest that are timed. `interval`: they go on until the interval of tokens/s is narrower than this
    share of it, or until `budget_s` seconds of timed rounds have gone; None: exactly `rounds`. `warmup`: the fewest
    untimed ones; where there are any, and `steady` is wanted, more follow until two in a row take equally long.
    """

    rounds: int
    warmup: int
    interval: float | None = None
    budget_s: float = 0.0
    steady: bool = False

    def ended_by(self, rates: Sequence[float], spent_s: float) -> str | None:
        """Why no further round is needed after these rates in tokens/s and seconds of timed rounds; None if one is."""
        if len(rates) < self.rounds:
            return None
        if self.interval is None:
            return BY_NUMBER
        known = mean_interval(rates)
        if known is not None and known.share <= self.interval:
            return BY_INTERVAL
        return BY_BUDGET if spent_s >= self.budget_s else None
