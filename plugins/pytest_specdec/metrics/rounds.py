"""Rounds of decoding: how long each took, how well a rate is known, how far it moved, and how far sessions differ.

The interval of a rate is Student's for the mean over rounds; that of a ratio is taken on the logarithms of pairs.
Rounds of one process are correlated, so errors are taken larger (`squared_error`); how often the intervals then hold
the truth is simulated in docs/measurements.md. Arms that go first in turn cancel a steady drift. One that is not
steady, all of it in one of n pairs at worst, widens the interval by an n-th of it; where that alone is too much there
is no figure. How far another day would differ is estimated from earlier runs, and from
docs/evidence/regression-gate.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, linear_regression, variance

from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Generation, Run, Runs, Speculation, sum_told
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import EnergyPart

LEVEL = 0.95
LEAST_FOR_ORDER = 4
HIGHEST = 0.85
LEAST_SEEN = 0.05
MOST_DRIFT = 0.05
FEWEST_FOR_DRIFT = 3
SCATTER = 0.025
WORTH = 19
TELLING = 4
MOST_SESSIONS = 8
SURE = 0.99
DETERMINED = ("acceptance_rate", "mean_accepted_length")
IS_BASELINE = "this is the target-only baseline"
NO_STEPS = "the engine does not tell in which steps tokens came"
SEVERAL_STEPS = "more tokens came than accepted ones and one a chunk: a chunk carried several steps"
FEW_BESIDE = "fewer than two timed rounds beside the target's"
NOT_TIMED = "pytest-benchmark is disabled (--benchmark-disable, or pytest-xdist), so nothing was timed"
NO_ENERGY = missing(EnergyPart, NOT_TIMED)
BY_NUMBER = "number of rounds"
BY_INTERVAL = "interval"
BY_BUDGET = "time budget"
STEADY_SHARE = 0.05


class Contradiction(EngineError, ValueError):
    """What an engine counted or timed contradicts itself; the message gives both figures."""


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


def bounds_of(known: Interval | None, why: str) -> Figure[tuple[float, float]]:
    """The two bounds as the record has them, or why there is no interval."""
    return Figure((known.low, known.high) if known else None, why)


def bounds_in_words(bounds: tuple[float, float]) -> str:
    """Of a ratio, e.g. "[2.39, 2.47]"; what two rounds leave open is no figure: "[<0.01, >100]"."""
    low, high = ("<0.01" if each < 0.01 else ">100" if each > 100 else f"{each:.2f}" for each in bounds)
    return f"[{low}, {high}]"


def mean_interval(values: Sequence[float], fitted: int = 1) -> Interval | None:
    """Student's interval of the mean; None with fewer than two values. `fitted`: figures estimated from them."""
    if len(values) < 2:
        return None
    middle, half = fmean(values), half_width(squared_error(values), len(values) - fitted)
    return Interval(middle - half, middle, middle + half)


def ratio_interval(ours: Sequence[float], base: Sequence[float], drift: Drift | None = None) -> Interval | None:
    """The interval of ours over base, pair by pair. None with fewer than two pairs, or a value that is not positive.

    `drift`: of the base, which may have moved the ratio beside the scatter of the pairs.
    """
    if len(ours) != len(base) or len(ours) < 2 or min(*ours, *base) <= 0:
        return None
    pairs = [math.log(mine) - math.log(its) for mine, its in zip(ours, base, strict=True)]
    differs = mean_interval(_without_order(pairs), fitted=2) if len(pairs) >= LEAST_FOR_ORDER else mean_interval(pairs)
    if differs is None:
        return None
    moved = drift.moved if drift is not None else 0.0
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
    count, told = sum(map(len, series)), 0.0
    for values in series:
        middle = fmean(values)
        apart = [each - middle for each in values]
        total = sum(each**2 for each in apart)
        told += len(values) * (sum(one * next_ for one, next_ in pairwise(apart)) / total if total else 0.0)
    told /= count
    bias = (1 + 3 * max(told, 0.0)) * len(series) / count
    return min(max(0.0, told + bias + 1 / math.sqrt(count)), HIGHEST)


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


@dataclass(frozen=True)
class Drift:
    """`log`: of the last over the first round, by the line. `sure`: what of it the scatter does not explain, 0 or more.

    `rounds`: how many.
    """

    log: float
    sure: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Drift | None:
        """From rates, or joules a token, round by round; None for too few, or one that is not positive."""
        count = len(values)
        if count < FEWEST_FOR_DRIFT or min(values) <= 0:
            return None
        logs = [math.log(each) for each in values]
        slope, start = linear_regression(range(count), logs)
        apart = [each - start - slope * place for place, each in enumerate(logs)]
        scatter = squared_error(apart) * count * (count - 1) / (count - 2)
        half = half_width(scatter / (variance(range(count)) * (count - 1)), count - 2) * (count - 1)
        log = slope * (count - 1)
        return cls(log, max(0.0, abs(log) - half), count)

    @property
    def ratio(self) -> float:
        """The last round's over the first one's."""
        return math.exp(self.log)

    @property
    def moved(self) -> float:
        """How far, as a logarithm, it may have moved a mean of pairs; 0 where the scatter may explain it all."""
        return abs(self.log) / self.rounds if self.sure else 0.0

    @property
    def too_far(self) -> str | None:
        """Why there is no figure over this target, or None."""
        if self.moved <= MOST_DRIFT:
            return None
        return (
            f"{self.in_words}, which alone may have moved the figure by {self.moved:.0%}, more than {MOST_DRIFT:.0%}: "
            "measure more rounds, on a machine that is left alone"
        )

    @property
    def in_words(self) -> str:
        """How far the target moved."""
        return f"the target's own figure drifted by {self.ratio - 1:+.1%} over {self.rounds} rounds"


def sessions_differ(earlier: Sequence[float]) -> float:
    """The most, as a share, that 99 of 100 sessions of the same code are worse than the mean of these earlier ones."""
    from scipy.special import stdtrit

    logs = [math.log(each) for each in earlier]
    count, squares = len(logs), sum((each - fmean(logs)) ** 2 for each in logs)
    freedom = WORTH + count - 1
    scatter, own = (WORTH * SCATTER**2 + squares) / freedom, squares / max(count - 1, 1)
    if own > scatter:  # where sessions differ by more than elsewhere, enough of them count by themselves
        scatter, freedom = own, count - 1 if count >= TELLING else freedom
    return float(stdtrit(freedom, SURE)) * math.sqrt(scatter * (1 + 1 / count))


@dataclass(frozen=True)
class Warmup:
    """`runs`: what was decoded untimed. `steady`: whether the last two took equally long; None with fewer than two."""

    runs: tuple[Run, ...] = ()
    steady: bool | None = None

    @property
    def rounds(self) -> int:
        """How many there were."""
        return len(self.runs)


NO_WARMUP = Warmup()


@dataclass(frozen=True)
class Rounds:
    """What was decoded, how long each round took in seconds, and what a meter read over the rounds.

    `seconds` is empty when nothing was timed. `ended_by`: why there are no more of them.
    """

    runs: tuple[Run, ...]
    seconds: tuple[float, ...]
    energy: EnergyPart = NO_ENERGY
    warmup: Warmup = NO_WARMUP
    ended_by: str | None = None

    @property
    def judged(self) -> Runs:
        """Everything that was decoded."""
        return dict(enumerate(self.warmup.runs + self.runs, -self.warmup.rounds))

    @property
    def measured(self) -> bool:
        """Whether there is a time for every round."""
        return len(self.seconds) == len(self.runs) > 0

    @property
    def answers(self) -> list[Generation]:
        """Those of all rounds, warm-up aside."""
        return [answer for run in self.runs for answer in run.generations]

    @property
    def tokens(self) -> int:
        """Delivered token ids, over all rounds."""
        return sum(run.tokens for run in self.runs)

    @property
    def tokens_per_second(self) -> float | None:
        """Delivered tokens over measured seconds, a ratio of totals; None when nothing was timed."""
        return self.tokens / sum(self.seconds) if self.measured and sum(self.seconds) > 0 else None

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens/s of each round; empty when nothing was timed or a round took no time."""
        timed = self.measured and min(self.seconds) > 0
        return tuple(run.tokens / took for run, took in zip(self.runs, self.seconds, strict=True)) if timed else ()

    @property
    def interval(self) -> Interval | None:
        """That of tokens/s; None with fewer than two timed rounds."""
        return mean_interval(self.rates)

    @property
    def speculation(self) -> Speculation | None:
        """The engine's counters, summed over the rounds; None when it does not speculate."""
        return Speculation.over(self.runs)

    @property
    def prefix_cache_hits(self) -> int | None:
        """Prompt tokens found in a prefix cache, over the rounds; None where the engine does not tell."""
        return sum_told(run.prefix_cache_hits for run in self.runs)


@dataclass(frozen=True)
class Plan:
    """How many rounds are timed, after how many that are not.

    `rounds`: the fewest that are timed. `interval`: they go on until the interval of tokens/s is narrower than this
    share of it, or until `budget_s` seconds of timed rounds have gone; None: exactly `rounds`. `warmup`: the fewest
    untimed ones; where there are any, and `steady` is wanted, more follow until two in a row take equally long.
    `decided`: whether these rounds, and those of the target beside them, decide what is asked of them; while they do
    not, more follow within the budget.
    """

    rounds: int
    warmup: int
    interval: float | None = None
    budget_s: float = 0.0
    steady: bool = False
    decided: Callable[[Rounds, Rounds | None], bool] | None = None

    @property
    def for_reference(self) -> Plan:
        """For answers to be held against, whose speed counts for nothing: one round after the warm-up."""
        return replace(self, rounds=1, interval=None)

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
