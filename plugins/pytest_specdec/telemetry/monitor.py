"""What is sampled while an engine decodes: its peak memory, and its GPUs' power, use, clocks and heat as a series.

GPU memory is the highest sum, over samples, of what NVML says the engine's processes hold; where NVML hides them, what
the whole GPUs hold, named so. Host memory is VmHWM of each live process of the worker's group, added up: loading is
part of it, and pages that the processes share count more than once. How long threads waited for a processor is told by
the scheduler (`schedstat` of each). The series is a file of its own beside the results; the record has its name alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_specdec.engines.process_group import is_member
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import MemoryPart
from pytest_specdec.telemetry.energy import own_gpus
from pytest_specdec.telemetry.meter import Instruments, Subject
from pytest_specdec.telemetry.nvml import Device, MeterFault

if TYPE_CHECKING:
    from pytest_specdec.engines.engine import Engine

REAL = Instruments()
SAMPLE_SECONDS = 0.25
OWN = "engine's processes, sampled"
WHOLE = "whole GPUs, sampled (others included)"
NOT_TOLD = "the engine does not tell"
PROC = Path("/proc")
LONGEST = 20_000
NOT_ASKED = "not asked for: give --specdec-monitor SECONDS"
ELSEWHERE = "the engine runs on another machine, where no samples are taken"
NO_PROCESS = "the engine has no process on this machine"
NO_WAITING_TOLD = "the kernel tells no scheduler statistics of the engine's threads"


class PeakMemory:
    """Peak memory of one engine on GPUs and host between `start` and `stop`, with a reason for what is not known."""

    def __init__(self, subject: Subject, instruments: Instruments = REAL) -> None:
        self._group = subject.group
        self._devices: list[Device] = []
        self._own: list[int] = []
        self._whole: list[int] = []
        try:
            self._devices, self._is_ours = own_gpus(subject, instruments)
            self._reason = "NVML tells neither the engine's nor the GPUs' memory"
        except MeterFault as fault:
            self._reason = str(fault)
        self._ticker = instruments.ticker(SAMPLE_SECONDS, self._sample)

    def start(self) -> None:
        """Begin to sample."""
        self._sample()
        if self._devices:
            self._ticker.start()

    def stop(self, details: Mapping[str, Any]) -> MemoryPart:
        """The peaks, and what the engine's `details` tell, each null with a reason where it is not known."""
        self._ticker.stop()
        self._sample()
        samples, method = (self._own, OWN) if self._own else (self._whole, WHOLE if self._whole else None)
        return MemoryPart(
            peak_gpu_bytes=Figure(max(samples, default=None), self._reason),
            peak_gpu_bytes_method=method,
            peak_host_bytes=host_memory(self._group),
            weights_bytes=Figure(details.get("weights_bytes"), NOT_TOLD),
            kv_cache_bytes=Figure(details.get("kv_cache_bytes"), NOT_TOLD),
        )

    def _sample(self) -> None:
        held = [device.process_memory() for device in self._devices]
        own = [bytes_ for each in held for pid, bytes_ in (each or {}).items() if self._is_ours and self._is_ours(pid)]
        for found, sums in ((own, self._own), ([device.used_bytes() for device in self._devices], self._whole)):
            if found and None not in found:
                sums.append(sum(bytes_ or 0 for bytes_ in found))


def subject_here(engine: Engine) -> Subject:
    """A loaded engine, without its process where that is on another machine, behind a gateway."""
    subject = Subject.of(engine)
    return subject if engine.spec.gateway is None else replace(subject, group=None)


def processes_of(group: int | None, proc: Path) -> Iterator[Path]:
    """The folder of each live process of a group; none for an engine without a process here."""
    numbered = (each for each in proc.iterdir() if each.name.isdigit()) if group is not None else ()
    return (each for each in numbered if is_member(int(each.name), group))


def host_memory(group: int | None, proc: Path = PROC) -> Figure[int]:
    """`peak_host_bytes` of a process group on this machine. `group`: None for an engine without a process here."""
    if group is None:
        return Figure(None, NO_PROCESS)
    peaks: list[int] = []
    for process in processes_of(group, proc):
        with suppress(OSError):  # it ends while it is looked at
            lines = (process / "status").read_text("utf-8").splitlines()
            peaks += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return Figure(sum(peaks) if peaks else None, f"no live process of group {group} tells its peak memory (VmHWM)")


class CoreWait:
    """Of the processor time that an engine's threads wanted since this was made: the share in which they waited."""

    def __init__(self, group: int | None, proc: Path = PROC) -> None:
        self._group, self._proc = group, proc
        self._before = self._read()

    def share(self) -> Figure[float]:
        """Null with a reason where nothing is told."""
        since = [(now, self._before.get(thread, (0, 0))) for thread, now in self._read().items()]
        ran, waited = (sum(now[at] - then[at] for now, then in since) for at in (0, 1))
        why = NO_PROCESS if self._group is None else NO_WAITING_TOLD
        return Figure(waited / (ran + waited) if ran + waited else None, why)

    def _read(self) -> dict[str, tuple[int, int]]:
        """(nanoseconds on a core, waiting for one) of each thread."""
        told: dict[str, tuple[int, int]] = {}
        for process in processes_of(self._group, self._proc):
            with suppress(OSError):  # it ends while it is looked at
                for file in process.glob("task/*/schedstat"):
                    with suppress(OSError, ValueError):
                        ran, waited, *_ = map(int, file.read_text("utf-8").split())
                        told[str(file)] = ran, waited
        return told


class Monitor:
    """Samples between `start` and `stop`."""

    def __init__(self, devices: Sequence[Device], instruments: Instruments, interval: float) -> None:
        """`interval` in seconds, more than 0."""
        self._devices, self._clock, self._interval = devices, instruments.clock, interval
        self._ticker = instruments.ticker(interval, self._sample)
        self._columns: dict[str, dict[str, list[Any]]] = {device.uuid: {} for device in devices}
        self._began = 0.0

    def start(self) -> None:
        """Begin the series with a first sample."""
        self._began = self._clock()
        self._sample()
        self._ticker.start()

    def stop(self) -> dict[str, Any]:
        """Last sample and the series: for each GPU columns of equal length, None where the GPU does not tell."""
        self._ticker.stop()
        self._sample()
        return {"interval_seconds": self._interval, "gpus": self._columns}

    def _sample(self) -> None:
        for device in self._devices:
            columns = self._columns[device.uuid]
            if len(columns.get("seconds", ())) < LONGEST:
                row = {
                    "seconds": self._clock() - self._began,
                    "watts": device.instant_watts(),
                    "gpu_percent": device.utilisation_percent(),
                    "memory_bytes": device.used_bytes(),
                    "sm_mhz": device.clock_mhz("SM"),
                    "memory_mhz": device.clock_mhz("MEM"),
                    "celsius": device.celsius(),
                }
                for name, value in row.items():
                    columns.setdefault(name, []).append(value)


@contextmanager
def watch(
    engine: Engine, interval: float | None, path: Path, instruments: Instruments = REAL
) -> Iterator[Callable[[], Figure[str]]]:
    """Sample the engine's GPUs in the block. Afterwards what is given tells the file, or why there is none.

    `interval` in seconds, None for no samples at all. Raises OSError where the file cannot be written.
    """
    try:
        if interval is None or engine.spec.gateway is not None:
            raise MeterFault(NOT_ASKED if interval is None else ELSEWHERE)
        monitor = Monitor(own_gpus(Subject.of(engine), instruments)[0], instruments, interval)
    except MeterFault as fault:
        reason = str(fault)
        yield lambda: Figure(None, reason)
        return
    monitor.start()
    try:
        yield lambda: Figure(str(path))
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(monitor.stop(), allow_nan=False), "utf-8")
