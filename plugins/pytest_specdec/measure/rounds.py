"""Rounds of decoding, timed: warm-up, preparing and collecting lie outside the clock, every round's tokens are kept.

pytest-benchmark holds the stopwatch for the test's own engine. The target-only engine that a test needs for comparison
is timed by the same clock in the same way when no test of its own has measured it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_specdec.engines.engine import Engine
from pytest_specdec.generation import Run, Speculation
from pytest_specdec.measure.energy import Meter
from pytest_specdec.workloads.workload import Workload

Clock = Callable[[], float]


@dataclass(frozen=True)
class Plan:
    """How many rounds are timed, after how many that are not."""

    rounds: int
    warmup: int


@dataclass(frozen=True)
class Rounds:
    """What was decoded, how long each round took in seconds, and what a meter read over the rounds.

    `seconds` is empty when nothing was timed.
    """

    runs: tuple[Run, ...]
    seconds: tuple[float, ...]
    energy: Mapping[str, Any] = field(default_factory=dict)

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
    def speculation(self) -> Speculation | None:
        """The engine's counters, summed over the rounds; None when it does not speculate."""
        counted = [run.speculation for run in self.runs if run.speculation is not None]
        return sum(counted[1:], counted[0]) if counted else None


def benchmarked(benchmark: Any, engine: Engine, workload: Workload, plan: Plan, meter: Meter) -> Rounds:
    """Let pytest-benchmark time the rounds after untimed ones. Untimed altogether if it is disabled."""
    warm_up(engine, workload, plan.warmup)
    if benchmark.disabled:
        return Rounds((one_pass(engine, workload),), ())
    runs: list[Run] = []

    def begin() -> None:
        engine.prepare(workload)
        meter.begin_round()

    def end() -> None:
        meter.end_round()
        runs.append(engine.collect())

    with metered(meter, runs) as energy:
        benchmark.pedantic(engine.run, setup=begin, teardown=end, rounds=plan.rounds, iterations=1)
    return Rounds(tuple(runs), tuple(benchmark.stats.stats.data), energy)


def clocked(clock: Clock, engine: Engine, workload: Workload, plan: Plan, meter: Meter) -> Rounds:
    """The same, timed by `clock` alone."""
    warm_up(engine, workload, plan.warmup)
    runs: list[Run] = []
    seconds: list[float] = []
    with metered(meter, runs) as energy:
        for _ in range(plan.rounds):
            engine.prepare(workload)
            meter.begin_round()
            start = clock()
            engine.run()
            seconds.append(clock() - start)
            meter.end_round()
            runs.append(engine.collect())
    return Rounds(tuple(runs), tuple(seconds), energy)


@contextmanager
def metered(meter: Meter, runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Start the meter, and fill the figures in when the rounds are done; it stops also where a round fails."""
    energy: dict[str, Any] = {}
    meter.start()
    try:
        yield energy
    finally:
        energy.update(meter.stop(sum(run.tokens for run in runs)))


def warm_up(engine: Engine, workload: Workload, passes: int) -> None:
    """Untimed passes whose output is thrown away."""
    for _ in range(passes):
        engine.prepare(workload)
        engine.run()
    if passes:
        engine.collect()


def one_pass(engine: Engine, workload: Workload) -> Run:
    """One untimed pass."""
    engine.prepare(workload)
    engine.run()
    return engine.collect()
