"""A meter that reads energy counters: NVML's of a GPU, RAPL's of a processor.

Such a counter moves in steps (100 ms on a H200), so a reading is up to a step old: taken at a round's two edges it
would miss the last step's load each time, a bias and not a noise. This meter waits for a step before a round begins and
for the next one after it has ended. Between these two steps the counter is exact; what they span beyond the round is
charged at idle power and taken off. If the device was not idle there, the error is at most that span at the mean power:
`relative_error`.

RAPL is read through Linux' powercap files. Each package counts microjoules and starts again at `max_energy_range_uj`;
it counts everything that runs on it, not the engine alone. Since CVE-2020-8694 the files are readable by root only
unless the administrator says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_specdec.telemetry.energy.meter import (
    IDLE_SECONDS,
    WENT_BACK,
    Clock,
    MeterFault,
    Reading,
    RoundsMeter,
    Sleep,
    Watch,
)

POLL_SECONDS = 0.001
STEP_LIMIT_SECONDS = 2.0
POWERCAP = Path("/sys/class/powercap")
RAPL = "rapl"
WHOLE_PACKAGE = "whole package: whatever else ran on the processor is included"


@dataclass(frozen=True)
class Counter:
    """A counter of energy since some moment. `read` raises MeterFault; `wraps_at`: counts after which it is 0 again."""

    name: str
    read: Callable[[], int]
    joules_per_count: float
    wraps_at: int | None = None

    def joules(self, before: int, after: int) -> float:
        """Energy between two readings. Raises MeterFault if the counter went back and does not wrap."""
        counts = after - before
        if counts < 0 and self.wraps_at is None:
            raise MeterFault(f"the energy counter of {self.name} {WENT_BACK}: a GPU reset or a driver reload")
        return (counts if counts >= 0 else counts + (self.wraps_at or 0)) * self.joules_per_count


@dataclass(frozen=True)
class Step:
    """The moment, in seconds, at which a counter changed, and its new count."""

    at_s: float
    count: int


Steps = dict[str, Step]


class CounterMeter(RoundsMeter):
    """Energy over the rounds as differences of counters."""

    def __init__(self, method: str, counters: Sequence[Counter], watch: Watch, clock: Clock, sleep: Sleep) -> None:
        """`counters`: one for each device."""
        super().__init__(watch, clock, sleep)
        self._method, self._counters = method, counters

    def _reset(self) -> None:
        super()._reset()
        self._beyond = self._step_seconds = 0.0
        self._idle: dict[str, float] = {}
        self._before: Steps = {}
        self._began = 0.0

    def start(self) -> None:
        """Idle watts of each device, and the length of a step."""
        self._reset()
        self._guard(self._measure_idle)

    def begin_round(self) -> None:
        """Wait for a step of every counter."""
        self._guard(self._take_before)
        self._watch.begin()
        self._began = self._clock()

    def end_round(self) -> None:
        """Wait for the next step of every counter, and add up."""
        ended = self._clock()
        self._watch.end()
        self._guard(lambda: self._add_round(ended - self._began))

    def _reading(self) -> Reading:
        uncertain = self._beyond + 2 * len(self._each_round) * POLL_SECONDS
        return Reading(
            method=self._method,
            scope=tuple(counter.name for counter in self._counters),
            joules=self._joules,
            seconds=self._seconds,
            idle_watts=sum(self._idle.values()),
            step_seconds=self._step_seconds,
            relative_error=uncertain / self._seconds if self._seconds else None,
            each_round=tuple(self._each_round),
        )

    def _measure_idle(self) -> None:
        first = last = self._next_steps()
        steps, began = 0, self._clock()
        while self._clock() - began < IDLE_SECONDS:
            last, steps = self._next_steps(), steps + 1
        for counter in self._counters:
            start, end = first[counter.name], last[counter.name]
            self._idle[counter.name] = counter.joules(start.count, end.count) / (end.at_s - start.at_s)
        self._step_seconds = max((last[name].at_s - first[name].at_s) / steps for name in first)

    def _take_before(self) -> None:
        self._before = self._next_steps()

    def _add_round(self, seconds: float) -> None:
        after = self._next_steps()
        joules = sum(self._joules_of(counter, after[counter.name], seconds) for counter in self._counters)
        self._add(joules, seconds)
        self._beyond += max(after[name].at_s - step.at_s - seconds for name, step in self._before.items())

    def _joules_of(self, counter: Counter, after: Step, seconds: float) -> float:
        before = self._before[counter.name]
        beyond = after.at_s - before.at_s - seconds
        return counter.joules(before.count, after.count) - self._idle[counter.name] * beyond

    def _next_steps(self) -> Steps:
        """The next change of every counter. Raises MeterFault if one does not come."""
        known = {counter.name: counter.read() for counter in self._counters}
        found: Steps = {}
        deadline = self._clock() + STEP_LIMIT_SECONDS
        while len(found) < len(known):
            if self._clock() > deadline:
                still = ", ".join(name for name in known if name not in found)
                raise MeterFault(f"the energy counter of {still} did not move within {STEP_LIMIT_SECONDS:g} s")
            self._sleep(POLL_SECONDS)
            found |= self._read_changes(known, found)
        return found

    def _read_changes(self, known: dict[str, int], found: Steps) -> Steps:
        counts = {counter.name: counter.read() for counter in self._counters if counter.name not in found}
        return {name: Step(self._clock(), count) for name, count in counts.items() if count != known[name]}


def packages(powercap: Path) -> list[Counter]:
    """A counter for each processor package. Raises MeterFault with the reason where there is none, or none readable."""
    if not powercap.is_dir():
        raise MeterFault(f"no RAPL: {powercap} does not exist (a virtual machine or another processor)")
    found = list(_packages(powercap))
    if not found:
        raise MeterFault(f"no RAPL: no processor package under {powercap}")
    return found


def _packages(powercap: Path) -> Iterator[Counter]:
    for folder in sorted(powercap.glob("intel-rapl:*")):
        name = _text(folder / "name")
        if name.startswith("package"):
            read = partial(_count, folder / "energy_uj")
            read()
            yield Counter(name, read, 1e-6, _count(folder / "max_energy_range_uj"))


def _count(path: Path) -> int:
    return int(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except PermissionError:
        raise MeterFault(f"RAPL is not readable: {path} is for root only; let this user read it") from None
    except OSError as error:
        raise MeterFault(f"RAPL is not readable: {path}: {error.strerror}") from None
