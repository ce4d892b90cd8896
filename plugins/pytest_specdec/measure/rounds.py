"""Rounds of decoding, timed: warm-up, preparing and collecting lie outside the clock, every round's tokens are kept.

pytest-benchmark holds the stopwatch for the test's own engine. The target-only engine that a test needs for comparison
is timed by the same clock in the same way when no test of its own has measured it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_specdec.engines.engine import Engine
from pytest_specdec.generation import Run, Speculation
from pytest_specdec.workloads.workload import Workload

Clock = Callable[[], float]


@dataclass(frozen=True)
class Rounds:
    """What was decoded, and how long each round took in seconds; `seconds` is empty when nothing was timed."""

    runs: tuple[Run, ...]
    seconds: tuple[float, ...]

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


def benchmarked(benchmark: Any, engine: Engine, workload: Workload, rounds: int, warmup: int) -> Rounds:
    """Let pytest-benchmark time `rounds` passes after `warmup` untimed ones. Untimed altogether if it is disabled."""
    warm_up(engine, workload, warmup)
    if benchmark.disabled:
        return Rounds((one_pass(engine, workload),), ())
    runs: list[Run] = []
    benchmark.pedantic(
        engine.run,
        setup=lambda: engine.prepare(workload),
        teardown=lambda: runs.append(engine.collect()),
        rounds=rounds,
        iterations=1,
    )
    return Rounds(tuple(runs), tuple(benchmark.stats.stats.data))


def clocked(clock: Clock, engine: Engine, workload: Workload, rounds: int, warmup: int) -> Rounds:
    """The same, timed by `clock` alone."""
    warm_up(engine, workload, warmup)
    timed = [_clocked_pass(clock, engine, workload) for _ in range(rounds)]
    return Rounds(tuple(run for run, _ in timed), tuple(seconds for _, seconds in timed))


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


def _clocked_pass(clock: Clock, engine: Engine, workload: Workload) -> tuple[Run, float]:
    engine.prepare(workload)
    start = clock()
    engine.run()
    seconds = clock() - start
    return engine.collect(), seconds
