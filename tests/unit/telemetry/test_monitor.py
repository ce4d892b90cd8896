"""The time series of a GPU, and the ticker that takes it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.telemetry import fake_nvml as fake

from pytest_specdec.engines.fake import FakeEngine
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.record import Figure
from pytest_specdec.telemetry.meter import Instruments, Ticker
from pytest_specdec.telemetry.monitor import ELSEWHERE, NOT_ASKED, Monitor, watch
from pytest_specdec.telemetry.nvml import Device


def instruments(clock: Any, nvml: Any) -> Instruments:
    return Instruments(lambda: nvml, Path("/none"), {}, clock, clock.sleep, clock.ticker)


def start_monitor(clock: Any, card: Any, interval: float) -> Monitor:
    nvml = fake.FakeNvml(clock, card)
    return Monitor([Device(nvml, card.uuid)], instruments(clock, nvml), interval)


def test_a_series_has_one_row_an_interval() -> None:
    clock, card = fake.FakeClock(), fake.Card("GPU-a", used=7)
    monitor = start_monitor(clock, card, 0.5)
    monitor.start()
    clock.sleep(0.75)
    card.draw(300.0, clock())
    clock.sleep(0.5)
    assert monitor.stop() == {
        "interval_seconds": 0.5,
        "gpus": {
            "GPU-a": {
                "seconds": [0.0, 0.5, 1.0, 1.25],
                "watts": [100.0, 100.0, 300.0, 300.0],
                "gpu_percent": [97] * 4,
                "memory_bytes": [7] * 4,
                "sm_mhz": [1980] * 4,
                "memory_mhz": [2619] * 4,
                "celsius": [40] * 4,
            }
        },
    }


def test_what_a_gpu_does_not_tell_is_null_in_its_column() -> None:
    clock = fake.FakeClock()
    monitor = start_monitor(clock, fake.Card("GPU-a", has_instant=False, celsius=None), 0.5)
    monitor.start()
    columns = monitor.stop()["gpus"]["GPU-a"]
    assert columns["watts"] == [None, None]
    assert columns["celsius"] == [None, None]
    assert columns["sm_mhz"] == [1980, 1980]


def test_a_ticker_ticks_until_it_is_stopped_and_can_start_again() -> None:
    ticked = threading.Event()
    ticker = Ticker(0.001, ticked.set)
    for _ in range(2):
        ticked.clear()
        ticker.start()
        assert ticked.wait(600)
        ticker.stop()
        ticked.clear()
        assert not ticked.wait(0.02)
    assert not [thread for thread in threading.enumerate() if thread.name == "specdec ticker"]


def test_a_ticker_that_never_started_can_be_stopped() -> None:
    calls: list[int] = []
    Ticker(0.001, lambda: calls.append(1)).stop()
    assert calls == []


PLAIN = EngineSpec(backend="fake", target="t")


def test_a_watched_block_leaves_its_samples_in_a_file(tmp_path: Path) -> None:
    """The record has the file's name and no sample."""
    clock, about = fake.FakeClock(), SimpleNamespace(device="H100", pid=os.getpgid(0))
    engine: Any = SimpleNamespace(spec=PLAIN, description=about)
    path = tmp_path / "series" / "x.json"
    with watch(engine, 0.5, path, instruments(clock, fake.FakeNvml(clock, fake.Card("GPU-a")))) as series:
        clock.sleep(1.0)
    assert series() == Figure(str(path))
    assert json.loads(path.read_text())["gpus"]["GPU-a"]["seconds"] == [0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("interval", "spec", "reason"),
    [(None, PLAIN, NOT_ASKED), (0.5, EngineSpec(backend="fake", target="t", gateway="ssh=far"), ELSEWHERE)],
)
def test_no_samples_are_null_with_a_reason(
    interval: float | None, spec: EngineSpec, reason: str, tmp_path: Path
) -> None:
    """And no file is made."""
    with watch(FakeEngine(spec), interval, tmp_path / "x.json") as series:
        pass
    assert series() == Figure(None, reason)
    assert not (tmp_path / "x.json").exists()
