"""Rounds of decoding: what was decoded, how long each took, and what a meter read over them. None is left out.

How many there are is a plan's matter, which says after each whether there have been enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Run, Speculation
from pytest_specdec.metrics.interval import Interval, mean_interval
from pytest_specdec.record import missing
from pytest_specdec.record.parts import EnergyPart


class Contradiction(EngineError, ValueError):
    """What an engine counted or timed contradicts itself; the message gives both figures."""


NOT_TIMED = "pytest-benchmark is disabled (--benchmark-disable, or pytest-xdist), so nothing was timed"
NO_ENERGY = missing(EnergyPart, NOT_TIMED)
BY_NUMBER = "number of rounds"
BY_INTERVAL = "interval"
BY_BUDGET = "time budget"
STEADY_SHARE = 0.05


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
    def judged(self) -> tuple[Run, ...]:
        """Everything that was decoded: the warm-up rounds, then the timed ones."""
        return self.warmup.runs + self.runs

    @property
    def measured(self) -> bool:
        """Whether there is a time for every round."""
        return len(self.seconds) == len(self.runs) > 0

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
        counted = [run.speculation for run in self.runs if run.speculation is not None]
        return sum(counted[1:], counted[0]) if counted else None

    @property
    def prefix_cache_hits(self) -> int | None:
        """Prompt tokens found in a prefix cache, over the rounds; None where the engine does not tell."""
        hits = [run.prefix_cache_hits for run in self.runs]
        return None if None in hits or not hits else sum(each or 0 for each in hits)


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
