"""Meters of energy: whose, ticker, watch, reading, sums over rounds; and the meter of counters, NVML's and RAPL's.

A counter moves in steps, so `CounterMeter` waits for one before a round begins and for the next one after it has ended;
what they span beyond the round is charged at idle power and taken off (docs/energy.md). RAPL is read through Linux'
powercap files, for each package; since CVE-2020-8694 they are readable by root only unless the administrator says so.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_specdec.engines.process_group import is_member
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import EnergyPart

if TYPE_CHECKING:
    from pytest_specdec.engines.engine import Engine
    from pytest_specdec.metrics.phases import Trace


class Ticker:
    """Calls an action at an interval between `start` and `stop`, on a thread of its own."""

    def __init__(self, interval: float, action: Callable[[], None]) -> None:
        """`interval` in seconds between the end of one call and the next."""
        self._interval, self._action = interval, action
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._tick, name="specdec ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; nothing happens if it does not run."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _tick(self) -> None:
        while not self._ended.wait(self._interval):
            self._action()


MakeTicker = Callable[[float, Callable[[], None]], Ticker]
LEAST_STEPS = 2
ENOUGH_STEPS = 100
ENOUGH_SECONDS = 1.0
SHORT_WINDOW = "short window"
BELOW_IDLE = "mean power not above idle power"
NO_TOKEN = "no token was delivered, so there is no energy per token"
COUNTER_RESET = "counter reset"
WENT_BACK = "went back"
NO_BOUND = "an estimate, whose error has no bound"


@dataclass(frozen=True)
class Reading:
    """What a source gave over all rounds.

    `joules`, `seconds`: sums over the rounds. `idle_watts`: of the same devices, engine loaded. `step_seconds`: time
    between two changes of the source. `relative_error`: bound of the error that the edges of the rounds bring, as a
    fraction of the joules; None where it has no bound. `each_round`: joules of each.
    """

    method: str
    scope: tuple[str, ...]
    joules: float
    seconds: float
    idle_watts: float
    step_seconds: float
    relative_error: float | None
    each_round: tuple[float, ...] = ()

    @property
    def too_short(self) -> str | None:
        """Why this is no measurement, or None."""
        if self.seconds >= LEAST_STEPS * self.step_seconds and self.joules > 0:
            return None
        return (
            f"too short to measure: the rounds took {self.seconds:.3g} s, and the source moves each "
            f"{self.step_seconds:.3g} s; decode more tokens or more rounds"
        )

    @property
    def long_enough(self) -> bool:
        """Whether the window is beyond the flag `short window`."""
        return self.seconds >= max(ENOUGH_SECONDS, ENOUGH_STEPS * self.step_seconds)

    @property
    def flags(self) -> list[str]:
        """What the window itself says against the figures."""
        no_net = self.joules <= self.idle_watts * self.seconds
        return [SHORT_WINDOW] * (not self.long_enough) + [BELOW_IDLE] * no_net


def energy_part(reading: Reading, tokens: int, flags: Sequence[str]) -> EnergyPart:
    """The record's energy of a reading that may still turn out too short."""
    how: dict[str, Any] = {
        "idle_watts": Figure(reading.idle_watts),
        "scope": reading.scope,
        "seconds": Figure(reading.seconds),
        "step_seconds": Figure(reading.step_seconds),
        "relative_error": Figure(reading.relative_error, NO_BOUND),
    }
    if reading.too_short:
        return replace(missing_energy(reading.too_short, flags), **how)
    net = reading.joules - reading.idle_watts * reading.seconds
    return EnergyPart(
        **how,
        method=reading.method,
        joules=Figure(reading.joules),
        joules_per_token=Figure(reading.joules / tokens if tokens else None, NO_TOKEN),
        net_joules_per_token=Figure(net / tokens if tokens and net > 0 else None, BELOW_IDLE if tokens else NO_TOKEN),
        mean_watts=Figure(reading.joules / reading.seconds),
        joules_each_round=reading.each_round,
        flags=(*reading.flags, *flags),
    )


def missing_energy(reason: str, flags: Sequence[str] = ()) -> EnergyPart:
    """Null figures, each for this reason."""
    return replace(missing(EnergyPart, reason), flags=tuple(flags))


Clock = Callable[[], float]
Sleep = Callable[[float], None]


class OfTime(NamedTuple):
    """What tells a meter the time, lets it pass, and acts at an interval."""

    clock: Clock
    sleep: Sleep
    ticker: MakeTicker


IDLE_SECONDS = 1.0


@dataclass(frozen=True)
class Subject:
    """Whose energy is measured.

    `device`: "cpu" or a GPU's name. `group`: its process group, None without one. `gpus`: how many it uses.
    `environment`: what its worker was given besides this process's own.
    """

    device: str
    group: int | None
    gpus: int
    environment: Mapping[str, str]

    @classmethod
    def of(cls, engine: Engine) -> Subject:
        """The engine's own words, and how many GPUs its specification spans."""
        spec, about = engine.spec, engine.description
        return cls(about.device, about.pid, spec.gpus, dict(spec.environment))

    def owns(self, pid: int) -> bool:
        """Whether this process belongs to the engine."""
        return is_member(pid, self.group)


class MeterFault(Exception):
    """A source of readings failed; the message says which, and becomes the reason in the record."""


class Watch:
    """Looks on while a meter measures. This one sees nothing of its own, and says what is known beforehand."""

    def __init__(self, told: Sequence[str]) -> None:
        self._told = list(told)

    def begin(self) -> None:
        """A round begins."""

    def end(self) -> None:
        """A round has ended."""

    def close(self) -> None:
        """Look no longer, also where a round has not ended because the engine died in it."""

    def flags(self) -> list[str]:
        """What was seen, in words; empty if nothing speaks against the figures."""
        return self._told

    def celsius(self) -> dict[str, dict[str, int]]:
        """First and highest temperature of each device in °C."""
        return {}


class Meter:
    """One measurement of one engine's energy, from `start` over its rounds to `stop`; a failed reading never raises."""

    def start(self) -> None:
        """Measure the idle power of the loaded engine, for at least a second. It must not be decoding."""

    def begin_round(self) -> None:
        """A round begins when this returns."""

    def end_round(self) -> None:
        """The round ended when this was called."""

    def satisfied(self) -> bool:
        """Whether the rounds so far are long enough for a figure without the flag `short window`, or none will be."""
        return True

    def each_round(self) -> Sequence[float]:
        """Joules of each round that ended; none where they are not known."""
        return ()

    def traces(self) -> Sequence[Trace]:
        """How the energy of each device grew over each round that ended; none where it is not known."""
        return ()

    def stop(self, tokens: int) -> EnergyPart:
        """The record's `energy`; `tokens`: delivered token ids over all rounds."""
        raise NotImplementedError


class NoMeter(Meter):
    """Nothing can be measured, for this reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def stop(self, tokens: int) -> EnergyPart:
        return missing_energy(self.reason)


class RoundsMeter(Meter, ABC):
    """What the meters here share: the sums over rounds, a watch, and the first fault, which leaves no figure."""

    def __init__(self, watch: Watch, time: OfTime) -> None:
        """`watch` looks for what speaks against the figures."""
        self._watch, self._clock, self._sleep = watch, time.clock, time.sleep
        self._joules = self._seconds = 0.0
        self._each_round: list[float] = []
        self._traces: list[Trace] = []
        self._fault: str | None = None

    def _guard(self, action: Callable[[], None]) -> None:
        if self._fault is None:
            try:
                action()
            except MeterFault as fault:
                self._fault = str(fault)

    def _add(self, joules: float, seconds: float, trace: Trace) -> None:
        self._traces.append(trace)
        self._joules += joules
        self._each_round.append(joules)
        self._seconds += seconds

    def satisfied(self) -> bool:
        return self._fault is not None or self._reading().long_enough

    def each_round(self) -> Sequence[float]:
        return () if self._fault else tuple(self._each_round)

    def traces(self) -> Sequence[Trace]:
        return () if self._fault else tuple(self._traces)

    def stop(self, tokens: int) -> EnergyPart:
        self._watch.close()
        if self._fault is None:
            part = energy_part(self._reading(), tokens, self._watch.flags())
        else:
            reset = [COUNTER_RESET] if WENT_BACK in self._fault else []
            part = missing_energy(self._fault, reset + self._watch.flags())
        return replace(part, temperature_celsius=self._watch.celsius())

    @abstractmethod
    def _reading(self) -> Reading:
        """What the rounds that ended gave."""


POLL_SECONDS = 0.001
LOOK_SECONDS = 0.01
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
    """Energy over the rounds as differences of counters, and their steps within each round as it is looked at."""

    def __init__(self, method: str, counters: Sequence[Counter], watch: Watch, time: OfTime) -> None:
        """`counters`: one for each device."""
        super().__init__(watch, time)
        self._method, self._counters = method, counters
        self._ticker = time.ticker(LOOK_SECONDS, lambda: self._guard(self._look))
        self._beyond = self._step_seconds = 0.0
        self._idle: dict[str, float] = {}
        self._before: Steps = {}
        self._within: dict[str, list[Step]] = {}
        self._began = 0.0

    def start(self) -> None:
        self._guard(self._measure_idle)

    def begin_round(self) -> None:
        self._guard(lambda: setattr(self, "_before", self._next_steps()))
        self._within = {name: [step] for name, step in self._before.items()}
        self._watch.begin()
        self._began = self._clock()
        self._ticker.start()

    def end_round(self) -> None:
        ended = self._clock()
        self._ticker.stop()
        self._watch.end()
        self._guard(lambda: self._add_round(ended - self._began))

    def stop(self, tokens: int) -> EnergyPart:
        self._ticker.stop()
        return super().stop(tokens)

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

    def _add_round(self, seconds: float) -> None:
        after = self._next_steps()
        beyond = {name: after[name].at_s - step.at_s - seconds for name, step in self._before.items()}
        trace: list[list[tuple[float, float]]] = []
        for counter in self._counters:
            name, idle = counter.name, self._idle[counter.name] * beyond[counter.name]
            own = counter.joules(self._before[name].count, after[name].count) - idle
            trace.append([(0.0, 0.0), *self._steps_within(counter, seconds), (seconds, own)])
        self._add(sum(points[-1][1] for points in trace), seconds, trace)
        self._beyond += max(beyond.values())

    def _steps_within(self, counter: Counter, seconds: float) -> list[tuple[float, float]]:
        first, *steps = self._within[counter.name]
        told = ((step.at_s - self._began, counter.joules(first.count, step.count)) for step in steps)
        return [(at_s, joules) for at_s, joules in told if 0 < at_s < seconds]

    def _look(self) -> None:
        """Note each step of a counter within the round."""
        for counter in self._counters:
            count, steps = counter.read(), self._within[counter.name]
            if count != steps[-1].count:
                steps.append(Step(self._clock(), count))

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
            counts = {counter.name: counter.read() for counter in self._counters if counter.name not in found}
            found |= {name: Step(self._clock(), count) for name, count in counts.items() if count != known[name]}
        return found


def packages(powercap: Path) -> list[Counter]:
    """A counter for each processor package. Raises MeterFault with the reason where there is none, or none readable."""
    if not powercap.is_dir():
        raise MeterFault(f"no RAPL: {powercap} does not exist (a virtual machine or another processor)")
    found = [folder for folder in sorted(powercap.glob("intel-rapl:*")) if _text(folder / "name").startswith("package")]
    if not found:
        raise MeterFault(f"no RAPL: no processor package under {powercap}")
    for folder in found:
        _count(folder / "energy_uj")
    return [
        Counter(
            _text(folder / "name"), partial(_count, folder / "energy_uj"), 1e-6, _count(folder / "max_energy_range_uj")
        )
        for folder in found
    ]


def _count(path: Path) -> int:
    return int(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except PermissionError:
        raise MeterFault(f"RAPL is not readable: {path} is for root only; let this user read it") from None
    except OSError as error:
        raise MeterFault(f"RAPL is not readable: {path}: {error.strerror}") from None
