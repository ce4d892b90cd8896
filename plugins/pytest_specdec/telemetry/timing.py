"""Rounds of decoding, timed: warm-up, preparing and collecting lie outside the clock, every round's tokens are kept.

pytest-benchmark holds the stopwatch for the test's own engine. The target-only engine's rounds alternate with these, by
the same clock, each going first in turn: A-B-B-A, so that what drifts hits both. Where only one of them can be awake,
the first pass of one that was woken is not timed. What else a gate's time was spent on is counted beside: each second
once, for the innermost block that is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from pytest_specdec.engines.engine import Engine, collect, one_pass
from pytest_specdec.generation import Run
from pytest_specdec.metrics.load import paces
from pytest_specdec.metrics.phases import with_phases
from pytest_specdec.metrics.rounds import BY_BUDGET, BY_INTERVAL, NO_ENERGY, STEADY_SHARE, Plan, Rounds, Warmup
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import TimesPart
from pytest_specdec.telemetry.meter import Clock, Meter, NoMeter
from pytest_specdec.workloads.workload import Workload

MORE_WARMUP = 5
NEXT_LOOK = 1.5
NOT_METERED = NoMeter("these rounds are timed, not metered")
LOAD, WARM_UP, DECODE, RATE, LOOK_AGAIN = "load_s", "warmup_s", "decode_s", "rating_s", "second_look_s"
WHY_NONE = {
    LOAD: "its engines were loaded before",
    WARM_UP: "nothing was decoded to warm up",
    DECODE: "nothing was decoded",
    RATE: "its target was calibrated before, and no answer differed from the target's own",
    LOOK_AGAIN: "the first look decided",
}


class Spent:
    """Seconds since `begin`, by name. A second look counts as such with all that it does but loading."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._names: list[str] = []
        self._since = 0.0

    def begin(self) -> None:
        """Forget what was spent until now."""
        self._seconds = {}

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Count the time of this block under this name."""
        self._count()
        self._names.append(LOOK_AGAIN if LOOK_AGAIN in self._names and name != LOAD else name)
        try:
            yield
        finally:
            self._count()
            self._names.pop()

    @property
    def part(self) -> TimesPart:
        """Of the record."""
        return TimesPart(**{name: Figure(self._seconds.get(name), why) for name, why in WHY_NONE.items()})

    def _count(self) -> None:
        now = self._clock()
        if self._names:
            name = self._names[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now


class Timed:
    """One engine's rounds on a workload, one at a time; `told` says which, and the rate of those before it."""

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        clock: Clock,
        meter: Meter = NOT_METERED,
        wake: Callable[[], bool] = lambda: False,
    ) -> None:
        """`wake`: makes sure that the engine is awake; whether it had to be woken. `spent`: what time goes into."""
        self.spent = Spent(clock)
        self.engine, self.meter = engine, meter
        self.workload, self._clock, self._wake = workload, clock, wake
        self._runs: list[Run] = []
        self._seconds: list[float] = []
        self._energy = NO_ENERGY
        self.begins = False
        self.waking_s = 0.0
        self.told = ""

    @property
    def so_far(self) -> Rounds:
        """The rounds until now; their energy once the meter has stopped."""
        return Rounds(tuple(self._runs), tuple(self._seconds), self._energy)

    @property
    def metered_so_far(self) -> Rounds:
        """The same while the meter runs, with what it has told of each round."""
        return replace(self.so_far, energy=replace(NO_ENERGY, joules_each_round=tuple(self.meter.each_round())))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._runs)

    def next_pass(self) -> Workload:
        """What the engine is to prepare; once after `begins` was set it is the pass with which a gate begins."""
        begins, self.begins = self.begins, False
        return replace(self.workload, begins=begins)

    def rouse(self) -> None:
        """Wake the engine if it sleeps; the first pass after that is not timed."""
        start = self._clock()
        if self._wake():
            one_pass(self.engine, self.workload)
            self.waking_s += self._clock() - start

    def begin(self) -> None:
        """Send the requests; the clock may start."""
        self.rouse()
        rate = self.so_far.tokens_per_second
        self.told = f"round {self.count + 1}" + (f", {rate:.1f} tokens/s" if rate is not None else "")
        self.engine.prepare(self.next_pass())
        self.meter.begin_round()

    def end(self) -> None:
        """The clock has stopped: fetch what was decoded."""
        self.meter.end_round()
        self._runs.append(collect(self.engine))

    def took(self, seconds: Iterable[float]) -> None:
        """What another clock says of rounds that were begun and ended here."""
        self._seconds.extend(seconds)

    def round(self) -> float:
        """One whole round, timed here; returns its seconds."""
        self.begin()
        start = self._clock()
        self.engine.run()
        seconds = self._clock() - start
        self.end()
        self.took([seconds])
        return seconds

    def warm_up(self, plan: Plan) -> Warmup:
        """Rounds that are judged and not timed: as many as planned, and more until two in a row take equally long."""
        took: list[float] = []
        runs: list[Run] = []
        most = plan.warmup + MORE_WARMUP if plan.steady else plan.warmup
        while len(took) < plan.warmup or (0 < len(took) < most and sum(took) < plan.budget_s and not _equal(took)):
            self.told = f"warm-up round {len(took) + 1}"
            with self.spent.on(WARM_UP):
                self.engine.prepare(self.next_pass())
                start = self._clock()
                self.engine.run()
                took.append(self._clock() - start)
                runs.append(collect(self.engine))
        return Warmup(tuple(runs), _equal(took))

    @contextmanager
    def metering(self) -> Iterator[None]:
        """Start the meter; it stops also where a round fails."""
        self.rouse()
        self.meter.start()
        try:
            yield
        finally:
            traces = self.meter.traces()
            self._energy = with_phases(self.meter.stop(self.so_far.tokens), self._runs, traces)


def _equal(took: list[float]) -> bool | None:
    if len(took) < 2:
        return None
    earlier, later = took[-2:]
    return abs(later - earlier) <= STEADY_SHARE * earlier


class Turns:
    """Another engine's rounds, one for each of the timed ones: before it and after it in turn."""

    def __init__(self, timed: Timed, beside: Timed | None = None) -> None:
        self._timed, self._beside = timed, beside
        self._next_look = 0

    def before(self) -> None:
        """The other engine goes first in rounds 0, 2, 4, …"""
        if self._beside is not None and self._beside.count == self._timed.count and self._timed.count % 2 == 0:
            self._other(self._beside)

    def after(self) -> None:
        """And second in rounds 1, 3, 5, …"""
        if self._beside is not None and self._beside.count < self._timed.count:
            self._other(self._beside)

    def _other(self, beside: Timed) -> None:
        self._timed.told = "the target's turn"
        beside.round()

    def ended_by(self, plan: Plan) -> str | None:
        """Why no further round is needed; the time of both engines' rounds counts, and that of waking them.

        A meter whose window is too short yet asks for more of them, and so does a question that they do not decide,
        unless their number or their time is up.
        """
        both = [each for each in (self._timed, self._beside) if each is not None]
        spent_s = sum(sum(each.so_far.seconds) + each.waking_s for each in both)
        ended_by = plan.ended_by(paces(self._timed.so_far), spent_s)
        if ended_by == BY_INTERVAL and not (all(each.meter.satisfied() for each in both) and self._decided(plan)):
            return BY_BUDGET if spent_s >= plan.budget_s else None
        return ended_by

    def _decided(self, plan: Plan) -> bool:
        """Looked at now and then only: each look is another chance to be wrong."""
        if plan.decided is None:
            return True
        if self._timed.count < self._next_look:
            return False
        self._next_look = math.ceil(NEXT_LOOK * self._timed.count)
        beside = self._beside.metered_so_far if self._beside is not None else None
        return plan.decided(self._timed.metered_so_far, beside)


def time_rounds(timed: Timed, plan: Plan, beside: Timed | None = None, benchmark: Any = None) -> Rounds:
    """Let pytest-benchmark time the rounds after untimed ones. One untimed round if it is disabled.

    `beside`: the engine that takes turns with this one. Rounds past the fewest, and all without `benchmark`, are timed
    by the clock of `timed`, which is to be pytest-benchmark's own. Only `timed` begins with an empty prefix cache: the
    other has no untimed round in which to fill it anew.
    """
    timed.begins = True
    if benchmark is not None and benchmark.disabled:
        *before, last = [one_pass(timed.engine, timed.next_pass()) for _ in range(plan.warmup + 1)]
        return Rounds((last,), (), warmup=Warmup(tuple(before)))
    warmup, turns = timed.warm_up(plan), Turns(timed, beside)
    with timed.metering(), beside.metering() if beside is not None else nullcontext():
        if benchmark is not None:
            _fewest(benchmark, timed, turns, plan.rounds)
        while (ended_by := turns.ended_by(plan)) is None:
            turns.before()
            seconds = timed.round()
            if benchmark is not None:
                benchmark.stats.update(seconds)
            turns.after()
    return replace(timed.so_far, warmup=warmup, ended_by=ended_by)


def _fewest(benchmark: Any, timed: Timed, turns: Turns, rounds: int) -> None:
    """The rounds that pytest-benchmark runs itself. What it decodes beyond them, for a profile, is no round."""

    def begin() -> None:
        if timed.count < rounds:
            turns.before()
            timed.begin()
        else:
            timed.rouse()

    def decode() -> None:
        if timed.count < rounds:
            timed.engine.run()
        else:
            one_pass(timed.engine, timed.next_pass())

    def end() -> None:
        if timed.count < rounds:
            timed.end()
            timed.took(benchmark.stats.stats.data[timed.count - 1 :])
            turns.after()

    benchmark.pedantic(decode, setup=begin, teardown=end, rounds=rounds, iterations=1)
