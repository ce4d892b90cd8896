"""Meters of energy: ticker, watch, sums over rounds; the meter of counters, NVML's and RAPL's, and that of GPU power.

A counter moves in steps, so `CounterMeter` waits for one before a round begins and for the next one after it has ended;
what they span beyond the round is charged at idle power and taken off (docs/energy.md). RAPL is read through Linux'
powercap files, for each package; since CVE-2020-8694 they are readable by root only unless the administrator says so.

Without an energy counter, instant power is sampled and integrated: an estimate, and named so. The driver looks at a
part of the time (arXiv 2312.02741: a quarter of it on A100 and H100), so `relative_error` is null. The 1 s average
(nvmlDeviceGetPowerUsage on Ampere and later, GA100 excepted) is never used.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_specdec.engines.process_group import is_member
from pytest_specdec.hardware import open_nvml
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import EnergyPart
from pytest_specdec.telemetry.nvml import Device, MeterFault

if TYPE_CHECKING:
    from pytest_specdec.engines.engine import Engine
    from pytest_specdec.metrics.phases import Trace

POWERCAP = Path("/sys/class/powercap")


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


Clock = Callable[[], float]
MakeTicker = Callable[[float, Callable[[], None]], Ticker]


@dataclass(frozen=True)
class Instruments:
    """Where readings come from; tests put others in. `nvml` returns the initialised module or raises."""

    nvml: Callable[[], Any] = open_nvml
    powercap: Path = POWERCAP
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Clock = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    ticker: MakeTicker = Ticker


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


WATCH_SECONDS = 0.25
WARMING_CELSIUS = 10


class Watch:
    """What speaks against the figures: throttling, heat and foreign processes of GPUs, and what is told beforehand."""

    def __init__(
        self,
        told: Sequence[str],
        instruments: Instruments,
        devices: Sequence[Device] = (),
        is_ours: Callable[[int], bool] | None = None,
    ) -> None:
        """`is_ours`: whether a process id belongs to the engine; None where NVML does not show its processes."""
        self._told, self._devices, self._is_ours = told, devices, is_ours
        self._throttled: set[str] = set()
        self._foreign: set[int] = set()
        self._celsius: dict[str, list[int]] = {}
        self._ticker = instruments.ticker(WATCH_SECONDS, self._look)

    def begin(self) -> None:
        """A round begins."""
        self._look()
        if self._devices:
            self._ticker.start()

    def end(self) -> None:
        """A round has ended."""
        self._look()
        self.close()

    def close(self) -> None:
        """Look no longer, also where a round has not ended because the engine died in it."""
        self._ticker.stop()

    def flags(self) -> list[str]:
        """What was seen, in words; empty if nothing speaks against the figures."""
        throttled = [f"throttled: {', '.join(sorted(self._throttled))}"] if self._throttled else []
        foreign = [f"foreign processes: {', '.join(map(str, sorted(self._foreign)))}"] if self._foreign else []
        rises = [max(read) - read[0] for read in self._celsius.values()]
        warming = [f"temperature rose by {max(rises)} °C"] if rises and max(rises) >= WARMING_CELSIUS else []
        return [*self._told, *throttled, *warming, *foreign]

    def celsius(self) -> dict[str, dict[str, int]]:
        """First and highest temperature of each GPU in °C."""
        return {uuid: {"first": read[0], "highest": max(read)} for uuid, read in self._celsius.items()}

    def _look(self) -> None:
        for device in self._devices:
            self._throttled |= device.throttle_reasons()
            celsius = device.celsius()
            if celsius is not None:
                self._celsius.setdefault(device.uuid, []).append(celsius)
            if self._is_ours is not None:
                self._foreign |= {pid for pid in device.process_memory() or {} if not self._is_ours(pid)}


def missing_energy(reason: str, flags: Sequence[str] = ()) -> EnergyPart:
    """Null figures, each for this reason."""
    return replace(missing(EnergyPart, reason), flags=tuple(flags))


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


LEAST_STEPS = 2
ENOUGH_STEPS = 100
ENOUGH_SECONDS = 1.0
SHORT_WINDOW = "short window"
BELOW_IDLE = "mean power not above idle power"
NO_TOKEN = "no token was delivered, so there is no energy per token"
COUNTER_RESET = "counter reset"
WENT_BACK = "went back"
NO_BOUND = "an estimate, whose error has no bound"
IDLE_SECONDS = 1.0


class RoundsMeter(Meter, ABC):
    """What the meters here share: sums over rounds, a watch, a ticker, and the first fault, which leaves no figure.

    A meter that has started knows `_idle_watts` of its devices, the engine loaded, and `_step_seconds`, the time
    between two changes of its source.
    """

    def __init__(
        self, method: str, scope: Sequence[str], watch: Watch, instruments: Instruments, look_seconds: float
    ) -> None:
        """`watch` looks for what speaks against the figures. `look_seconds`: between two looks at the source."""
        self._method, self._scope, self._watch = method, tuple(scope), watch
        self._clock, self._sleep = instruments.clock, instruments.sleep
        self._ticker = instruments.ticker(look_seconds, lambda: self._guard(self._look))
        self._joules = self._seconds = self._idle_watts = self._step_seconds = 0.0
        self._each_round: list[float] = []
        self._traces: list[Trace] = []
        self._fault: str | None = None

    def _guard(self, action: Callable[[], None]) -> None:
        if self._fault is None:
            try:
                action()
            except MeterFault as fault:
                self._fault = str(fault)

    @abstractmethod
    def _look(self) -> None:
        """Read the source within a round. Raises MeterFault."""

    def _add(self, seconds: float, trace: Trace) -> None:
        """A round; of each device the last point of its trace has the joules."""
        joules = sum(points[-1][1] for points in trace)
        self._traces.append(trace)
        self._joules += joules
        self._each_round.append(joules)
        self._seconds += seconds

    def satisfied(self) -> bool:
        return self._fault is not None or self._seconds >= max(ENOUGH_SECONDS, ENOUGH_STEPS * self._step_seconds)

    def each_round(self) -> Sequence[float]:
        return () if self._fault else tuple(self._each_round)

    def traces(self) -> Sequence[Trace]:
        return () if self._fault else tuple(self._traces)

    def stop(self, tokens: int) -> EnergyPart:
        self._ticker.stop()
        self._watch.close()
        if self._fault is None:
            part = self._part(tokens)
        else:
            reset = [COUNTER_RESET] if WENT_BACK in self._fault else []
            part = missing_energy(self._fault, reset + self._watch.flags())
        return replace(part, temperature_celsius=self._watch.celsius())

    def _part(self, tokens: int) -> EnergyPart:
        joules, seconds, idle = self._joules, self._seconds, self._idle_watts * self._seconds
        how: dict[str, Any] = {
            "idle_watts": Figure(self._idle_watts),
            "scope": self._scope,
            "seconds": Figure(seconds),
            "step_seconds": Figure(self._step_seconds),
            "relative_error": Figure(self._relative_error(), NO_BOUND),
        }
        if seconds < LEAST_STEPS * self._step_seconds or joules <= 0:
            too_short = (
                f"too short to measure: the rounds took {seconds:.3g} s, and the source moves each "
                f"{self._step_seconds:.3g} s; decode more tokens or more rounds"
            )
            return replace(missing_energy(too_short, self._watch.flags()), **how)
        net = joules - idle if tokens and joules > idle else None
        flags = [SHORT_WINDOW] * (not self.satisfied()) + [BELOW_IDLE] * (joules <= idle)
        return EnergyPart(
            **how,
            method=self._method,
            joules=Figure(joules),
            joules_per_token=Figure(joules / tokens if tokens else None, NO_TOKEN),
            net_joules_per_token=Figure(net and net / tokens, BELOW_IDLE if tokens else NO_TOKEN),
            mean_watts=Figure(joules / seconds),
            joules_each_round=tuple(self._each_round),
            flags=(*flags, *self._watch.flags()),
        )

    def _relative_error(self) -> float | None:
        """Bound of the error that the edges of the rounds bring, as a fraction of the joules; None: it has none."""
        return None


POLL_SECONDS = 0.001
LOOK_SECONDS = 0.01
STEP_LIMIT_SECONDS = 2.0
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


class CounterMeter(RoundsMeter):
    """Energy over the rounds as differences of counters, and their steps within each round as it is looked at."""

    def __init__(self, method: str, counters: Sequence[Counter], watch: Watch, instruments: Instruments) -> None:
        super().__init__(method, [counter.name for counter in counters], watch, instruments, LOOK_SECONDS)
        self._counters = counters
        self._beyond = self._began = 0.0
        self._idle: dict[str, float] = {}
        self._steps: dict[str, list[Step]] = {}

    def start(self) -> None:
        self._guard(self._measure_idle)

    def begin_round(self) -> None:
        self._guard(self._begin_steps)
        self._watch.begin()
        self._began = self._clock()
        self._ticker.start()

    def end_round(self) -> None:
        ended = self._clock()
        self._ticker.stop()
        self._watch.end()
        self._guard(lambda: self._add_round(ended - self._began))

    def _relative_error(self) -> float | None:
        uncertain = self._beyond + 2 * len(self._each_round) * POLL_SECONDS
        return uncertain / self._seconds if self._seconds else None

    def _measure_idle(self) -> None:
        first = last = self._next_steps()
        steps, began = 0, self._clock()
        while self._clock() - began < IDLE_SECONDS:
            last, steps = self._next_steps(), steps + 1
        for counter in self._counters:
            start, end = first[counter.name], last[counter.name]
            self._idle[counter.name] = counter.joules(start.count, end.count) / (end.at_s - start.at_s)
        self._idle_watts = sum(self._idle.values())
        self._step_seconds = max((last[name].at_s - first[name].at_s) / steps for name in first)

    def _begin_steps(self) -> None:
        self._steps = {name: [step] for name, step in self._next_steps().items()}

    def _add_round(self, seconds: float) -> None:
        after, trace, beyond = self._next_steps(), [], []
        for counter in self._counters:
            before, last = self._steps[counter.name][0], after[counter.name]
            beyond.append(last.at_s - before.at_s - seconds)
            own = counter.joules(before.count, last.count) - self._idle[counter.name] * beyond[-1]
            trace.append([(0.0, 0.0), *self._steps_within(counter, seconds), (seconds, own)])
        self._add(seconds, trace)
        self._beyond += max(beyond)

    def _steps_within(self, counter: Counter, seconds: float) -> list[tuple[float, float]]:
        first, *steps = self._steps[counter.name]
        told = ((step.at_s - self._began, counter.joules(first.count, step.count)) for step in steps)
        return [(at_s, joules) for at_s, joules in told if 0 < at_s < seconds]

    def _look(self) -> None:
        for counter in self._counters:
            count, steps = counter.read(), self._steps[counter.name]
            if count != steps[-1].count:
                steps.append(Step(self._clock(), count))

    def _next_steps(self) -> dict[str, Step]:
        known = {counter.name: counter.read() for counter in self._counters}
        found: dict[str, Step] = {}
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


INSTANT = "nvml instant power (estimate)"
SAMPLE_SECONDS = 0.02
REFRESH_SECONDS = 0.1


def joules_under(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Seconds and joules since the first of these (second, watt) samples, by the trapezoid rule."""
    seconds = [at_s - samples[0][0] for at_s, _ in samples] or [0.0]
    pieces = ((later - earlier) * (low + high) / 2 for (earlier, low), (later, high) in pairwise(samples))
    return list(zip(seconds, accumulate(pieces, initial=0.0), strict=True))


class PowerMeter(RoundsMeter):
    """Energy over the rounds as the integral of sampled power."""

    def __init__(self, devices: Sequence[Device], watch: Watch, instruments: Instruments) -> None:
        """`devices` are those whose instant power NVML tells."""
        super().__init__(INSTANT, [device.uuid for device in devices], watch, instruments, SAMPLE_SECONDS)
        self._devices = devices
        self._step_seconds = REFRESH_SECONDS
        self._samples: list[tuple[float, float]] = []

    def start(self) -> None:
        self._begin_samples()
        self._sleep(IDLE_SECONDS)
        seconds, joules = self._end_samples()[-1]
        self._idle_watts = joules / seconds if seconds else 0.0

    def begin_round(self) -> None:
        self._watch.begin()
        self._begin_samples()

    def end_round(self) -> None:
        trace = self._end_samples()
        self._watch.end()
        self._add(trace[-1][0], [trace])

    def _begin_samples(self) -> None:
        self._samples.clear()
        self._guard(self._look)
        self._ticker.start()

    def _end_samples(self) -> list[tuple[float, float]]:
        self._guard(self._look)
        self._ticker.stop()
        return joules_under(sorted(self._samples))

    def _look(self) -> None:
        self._samples.append((self._clock(), sum(device.watts() for device in self._devices)))
