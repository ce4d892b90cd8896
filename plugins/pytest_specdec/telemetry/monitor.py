"""Power, use, memory, clocks and temperature of the engine's GPUs at a set interval: a time series for the report.

The series is a file of its own beside the results. The record carries its name alone, so that results stay small.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_specdec.record import Figure
from pytest_specdec.telemetry.energy.choice import Instruments, own_gpus
from pytest_specdec.telemetry.energy.meter import Clock, MakeTicker, MeterFault, Subject
from pytest_specdec.telemetry.energy.nvml import Device

if TYPE_CHECKING:
    from pytest_specdec.engines.engine import Engine

INTERVAL_SECONDS = 0.5
LONGEST = 20_000
NOT_ASKED = "not asked for: give --specdec-monitor SECONDS"
ELSEWHERE = "the engine runs on another machine, where no samples are taken"


class Monitor:
    """Samples between `start` and `stop`."""

    def __init__(
        self, devices: Sequence[Device], clock: Clock, ticker: MakeTicker, interval: float = INTERVAL_SECONDS
    ) -> None:
        """`interval` in seconds. Raises ValueError unless it is positive."""
        if interval <= 0:
            raise ValueError(f"a monitor needs an interval above 0 s, not {interval:g}")
        self._devices, self._clock, self._interval = devices, clock, interval
        self._ticker = ticker(interval, self._sample)
        self._began = 0.0
        self._columns: dict[str, dict[str, list[Any]]] = {}

    def start(self) -> None:
        """Begin a new series with a first sample."""
        self._columns = {device.uuid: {} for device in self._devices}
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
                for name, value in _row(device, self._clock() - self._began).items():
                    columns.setdefault(name, []).append(value)


def monitor_of(subject: Subject, instruments: Instruments, interval: float = INTERVAL_SECONDS) -> Monitor:
    """A monitor of an engine's GPUs, every `interval` seconds. Raises MeterFault where there are none to be told."""
    devices, _ = own_gpus(subject, instruments)
    return Monitor(devices, instruments.clock, instruments.ticker, interval)


def _row(device: Device, seconds: float) -> dict[str, float | None]:
    return {
        "seconds": seconds,
        "watts": device.instant_watts(),
        "gpu_percent": device.utilisation_percent(),
        "memory_bytes": device.used_bytes(),
        "sm_mhz": device.clock_mhz("SM"),
        "memory_mhz": device.clock_mhz("MEM"),
        "celsius": device.celsius(),
    }


def write_series(series: dict[str, Any], path: Path) -> None:
    """Keep a series as JSON, making the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(series, allow_nan=False), "utf-8")


@contextmanager
def watch(engine: Engine, interval: float | None, path: Path) -> Iterator[Callable[[], Figure[str]]]:
    """Sample the engine's GPUs in the block. Afterwards what is given tells the file, or why there is none.

    `interval` in seconds, None for no samples at all.
    """
    try:
        monitor = _monitor_for(engine, interval)
    except MeterFault as fault:
        reason = str(fault)
        yield lambda: Figure(None, reason)
        return
    monitor.start()
    try:
        yield lambda: Figure(str(path))
    finally:
        write_series(monitor.stop(), path)


def _monitor_for(engine: Engine, interval: float | None) -> Monitor:
    if interval is None:
        raise MeterFault(NOT_ASKED)
    if engine.spec.gateway is not None:
        raise MeterFault(ELSEWHERE)
    return monitor_of(Subject.of(engine), Instruments(), interval)
