"""Energy of an engine on made-up cards: the right joules on the right GPUs, or null with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.telemetry import fake_nvml as fake

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.hardware import Gpu
from pytest_specdec.metrics.base import incomparable
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import EnergyPart
from pytest_specdec.telemetry.energy import (
    HIDDEN,
    NVML_COUNTER,
    RemoteMeter,
    first_visible,
    is_own_process,
    local_meter,
    meter_for,
)
from pytest_specdec.telemetry.meter import (
    INSTANT,
    RAPL,
    WHOLE_PACKAGE,
    Instruments,
    Meter,
    NoMeter,
    Subject,
    joules_under,
)
from pytest_specdec.telemetry.nvml import MeterFault

OURS = os.getpid()
GROUP = os.getpgid(OURS)
FOREIGN = 1


@pytest.fixture
def clock() -> Any:
    return fake.FakeClock()


def card(uuid: str = "GPU-a", **traits: Any) -> Any:
    return fake.Card(uuid, **{"processes": {OURS: 10}, **traits})


def instruments(
    clock: Any, *cards: Any, powercap: Path = Path("/none"), environment: Mapping[str, str] | None = None
) -> Instruments:
    nvml = fake.FakeNvml(clock, *cards)
    return Instruments(lambda: nvml, powercap, environment or {}, clock, clock.sleep, clock.ticker)


def meter(clock: Any, *cards: Any, gpus: int = 1, given: Mapping[str, str] | None = None, **environment: str) -> Meter:
    return local_meter(Subject("H100", GROUP, gpus, given or {}), instruments(clock, *cards, environment=environment))


def decode(clock: Any, meter: Meter, seconds: float, *cards: Any, watts: float = 500.0) -> None:
    """One round at this power, after some time of preparing and before some of collecting."""
    clock.sleep(0.0371)
    meter.begin_round()
    for each in cards:
        each.draw(watts, clock())
    clock.sleep(seconds)
    for each in cards:
        each.draw(100.0, clock())
    meter.end_round()
    clock.sleep(0.0533)


def energy(clock: Any, *cards: Any, rounds: int = 1, seconds: float = 1.234, **how: Any) -> EnergyPart:
    """Measure rounds of decoding at 500 W a card, 100 tokens in all."""
    used = meter(clock, *cards, **how)
    used.start()
    for _ in range(rounds):
        decode(clock, used, seconds, *cards)
    return used.stop(100)


class TestCounter:
    """The energy counter, which moves each 100 ms."""

    @pytest.mark.parametrize("phase", [0.0, 0.013, 0.05, 0.099])
    @pytest.mark.parametrize("seconds", [0.31, 1.234, 2.0])
    def test_joules_are_those_of_the_rounds_alone(self, clock: Any, phase: float, seconds: float) -> None:
        """Wherever the counter's steps fall, and though preparing and collecting draw power too."""
        found = energy(clock, card(phase=phase), rounds=3, seconds=seconds)
        assert found.joules.value == pytest.approx(500 * seconds * 3, rel=0.004)
        assert found.joules_each_round == pytest.approx((500 * seconds,) * 3, rel=0.01)
        assert found.seconds.value == pytest.approx(3 * seconds)
        assert found.mean_watts.value == pytest.approx(500, rel=0.004)
        assert found.method == NVML_COUNTER
        assert found.joules_per_token.reason is None

    def test_net_energy_stands_beside_gross(self, clock: Any) -> None:
        found = energy(clock, card(), seconds=2.0)
        assert found.idle_watts.value == pytest.approx(100, rel=0.01)
        assert found.joules_per_token.value == pytest.approx(10, rel=0.01)
        assert found.net_joules_per_token.value == pytest.approx(8, rel=0.01)

    def test_load_that_alternates_faster_than_the_step_is_counted_in_full(self, clock: Any) -> None:
        """Sampled power would see whichever half it falls on."""
        gpu = card()
        used = meter(clock, gpu)
        used.start()
        used.begin_round()
        for _ in range(100):
            gpu.draw(700.0, clock())
            clock.sleep(0.013)
            gpu.draw(100.0, clock())
            clock.sleep(0.007)
        used.end_round()
        assert used.stop(1).joules.value == pytest.approx(100 * (700 * 0.013 + 100 * 0.007), rel=0.01)

    def test_the_error_of_the_edges_is_bounded(self, clock: Any) -> None:
        """A card that stays at full power after the round spoils the idle charge, by less than the stated bound."""
        gpu = card()
        used = meter(clock, gpu)
        used.start()
        used.begin_round()
        gpu.draw(500.0, clock())
        clock.sleep(1.05)
        used.end_round()
        found = used.stop(1)
        error = abs(found.joules.value - 525) / found.joules.value
        assert 0.01 < error < found.relative_error.value < 0.15

    @pytest.mark.parametrize("seconds", [0.0, 0.05, 0.19])
    def test_a_window_below_two_steps_is_too_short_and_never_zero(self, clock: Any, seconds: float) -> None:
        found = energy(clock, card(), seconds=seconds)
        assert found.joules.value is None
        assert found.joules_per_token.value is None
        assert found.method is None
        assert found.joules_per_token.reason.startswith("too short to measure")

    def test_short_rounds_add_up_to_a_window(self, clock: Any) -> None:
        """Repeating is what a short round needs."""
        found = energy(clock, card(), rounds=40, seconds=0.05)
        assert found.joules.value == pytest.approx(500 * 2.0, rel=0.03)

    @pytest.mark.parametrize(("seconds", "flags"), [(9.9, ("short window",)), (10.2, ())])
    def test_below_a_hundred_steps_the_window_is_flagged(
        self, clock: Any, seconds: float, flags: tuple[str, ...]
    ) -> None:
        assert energy(clock, card(), seconds=seconds).flags == flags

    def test_a_counter_that_goes_back_gives_no_energy(self, clock: Any) -> None:
        gpu = card()
        used = meter(clock, gpu)
        used.start()
        used.begin_round()
        clock.sleep(2)
        gpu.forgotten_mj = gpu.counter_mj(clock())
        used.end_round()
        found = used.stop(100)
        assert found.joules.value is None
        assert found.flags == ("counter reset",)
        assert "went back" in found.joules_per_token.reason

    def test_a_gpu_lost_on_the_way_gives_no_energy(self, clock: Any) -> None:
        gpu = card()
        used = meter(clock, gpu)
        used.start()
        used.begin_round()
        gpu.lost = True
        used.end_round()
        assert used.stop(100).joules_per_token.reason == "NVML lost the energy counter of GPU-a: Not Supported"

    def test_several_gpus_out_of_step_add_up(self, clock: Any) -> None:
        found = energy(clock, card("GPU-a"), card("GPU-b", phase=0.05), seconds=2.0)
        assert found.joules.value == pytest.approx(2 * 1000, rel=0.01)
        assert found.scope == ("GPU-a", "GPU-b")

    def test_no_token_has_no_energy_per_token(self, clock: Any) -> None:
        used = meter(clock, gpu := card())
        used.start()
        decode(clock, used, 2.0, gpu)
        found = used.stop(0)
        assert found.joules.value is not None
        assert found.joules_per_token.value is None
        assert found.joules_per_token.reason == "no token was delivered, so there is no energy per token"

    def test_no_net_energy_below_idle(self, clock: Any) -> None:
        used = meter(clock, gpu := card())
        used.start()
        decode(clock, used, 2.0, gpu, watts=60)
        found = used.stop(100)
        assert found.net_joules_per_token.value is None
        assert "mean power not above idle power" in found.flags


class TestInstantPower:
    """Sampled instant power, where there is no counter."""

    def test_is_an_estimate_and_says_so(self, clock: Any) -> None:
        found = energy(clock, card(has_counter=False), rounds=2, seconds=2.0)
        assert found.method == INSTANT
        assert "estimate" in found.method
        assert found.joules.value == pytest.approx(2000, rel=0.02)
        assert found.seconds.value == pytest.approx(4)
        assert found.idle_watts.value == pytest.approx(100)
        assert found.relative_error.value is None

    def test_power_between_samples_is_taken_to_be_straight(self) -> None:
        assert joules_under([(0.0, 100.0), (1.0, 300.0), (3.0, 300.0)])[-1] == (3.0, 200 + 600)

    def test_a_gpu_lost_on_the_way_gives_no_energy(self, clock: Any) -> None:
        gpu = card(has_counter=False)
        used = meter(clock, gpu)
        used.start()
        used.begin_round()
        gpu.lost = True
        used.end_round()
        assert used.stop(1).joules_per_token.reason == "NVML lost the instant power of GPU-a"

    def test_one_card_without_a_counter_makes_all_an_estimate(self, clock: Any) -> None:
        """Methods are not mixed within one figure either."""
        assert energy(clock, card("GPU-a"), card("GPU-b", has_counter=False)).method == INSTANT


class TestWhichGpus:
    """The engine's own GPUs only."""

    def test_those_that_show_its_processes(self, clock: Any) -> None:
        cards = [card("GPU-a", processes={FOREIGN: 5}), card("GPU-b"), card("GPU-c", processes={})]
        found = energy(clock, *cards)
        assert found.scope == ("GPU-b",)
        assert found.flags == ("short window",)
        assert found.joules.value == pytest.approx(617, rel=0.01)

    @pytest.mark.parametrize(
        ("listed", "gpus", "scope"),
        [
            ("3", 1, ("GPU-d",)),
            ("2,0", 2, ("GPU-c", "GPU-a")),
            ("GPU-b", 1, ("GPU-b",)),
            ("1,2,3", 1, ("GPU-b",)),
        ],
    )
    def test_the_first_visible_where_processes_are_hidden(
        self, clock: Any, listed: str, gpus: int, scope: tuple[str, ...]
    ) -> None:
        cards = [card(f"GPU-{letter}", processes={}) for letter in "abcd"]
        found = energy(clock, *cards, gpus=gpus, CUDA_VISIBLE_DEVICES=listed)
        assert found.scope == scope
        assert HIDDEN in found.flags

    def test_the_engine_s_own_environment_comes_first(self, clock: Any) -> None:
        cards = [card("GPU-a", processes=None), card("GPU-b", processes=None)]
        found = energy(clock, *cards, given={"CUDA_VISIBLE_DEVICES": "1"}, CUDA_VISIBLE_DEVICES="0")
        assert found.scope == ("GPU-b",)

    def test_a_gpu_that_knows_no_slices_is_whole(self, clock: Any) -> None:
        assert energy(clock, card(mig=None)).joules.value is not None

    UNLIKE = (Gpu("GPU-slow", "T4", 0), Gpu("GPU-fast", "H100", 1))

    @pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}])
    def test_unlike_cards_in_cuda_s_own_order_are_refused(self, environment: dict[str, str]) -> None:
        with pytest.raises(MeterFault, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID or list UUIDs"):
            first_visible(self.UNLIKE, 1, environment)

    @pytest.mark.parametrize(
        ("environment", "uuid"),
        [
            ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "GPU-slow"),
            ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}, "GPU-fast"),
            ({"CUDA_VISIBLE_DEVICES": "GPU-fast,GPU-slow"}, "GPU-fast"),
        ],
    )
    def test_unlike_cards_in_a_known_order_are_told_apart(self, environment: dict[str, str], uuid: str) -> None:
        assert [gpu.uuid for gpu in first_visible(self.UNLIKE, 1, environment)] == [uuid]


NONE_VISIBLE = "1 GPU(s) wanted, 0 of 1 visible to the engine"
NO_ENERGY: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a counter that stands still": ({"stuck": True}, {}, "the energy counter of GPU-a did not move within 2 s"),
    "a short window of power": ({"has_counter": False}, {"seconds": 0.1}, "too short to measure: "),
    "neither counter nor power": (
        {"has_counter": False, "has_instant": False},
        {},
        "NVML gives neither an energy counter nor instant power for the engine's GPUs",
    ),
    "none listed": ({"processes": {}}, {"CUDA_VISIBLE_DEVICES": ""}, NONE_VISIBLE),
    "another listed": ({"processes": {}}, {"CUDA_VISIBLE_DEVICES": "7"}, NONE_VISIBLE),
    "no number listed": ({"processes": {}}, {"CUDA_VISIBLE_DEVICES": "-1"}, NONE_VISIBLE),
    "a listed slice": ({"mig": True}, {"CUDA_VISIBLE_DEVICES": "MIG-8f2"}, "the engine has a slice of a GPU (MIG)"),
    "a sliced GPU": ({"mig": True}, {}, "the engine's GPU is sliced (MIG is on)"),
}


@pytest.mark.parametrize(("traits", "how", "reason"), NO_ENERGY.values(), ids=NO_ENERGY)
def test_what_cannot_be_measured_is_null_with_the_reason(
    clock: Any, traits: dict[str, Any], how: dict[str, Any], reason: str
) -> None:
    """A slice is never charged with the whole card."""
    found = energy(clock, card(**traits), **how)
    assert found.joules.value is None
    assert found.joules_per_token.reason.startswith(reason)


class TestValidity:
    """What speaks against a figure is told, and the figure stays."""

    def test_what_happens_within_a_round_is_seen(self, clock: Any) -> None:
        gpu = card()
        used = meter(clock, gpu)
        used.start()
        used.begin_round()
        clock.sleep(1)
        gpu.throttle, gpu.celsius, gpu.processes = 0x4 | 0x40, 71, {OURS: 10, FOREIGN: 10}
        clock.sleep(1)
        gpu.throttle, gpu.celsius, gpu.processes = 0, 45, {OURS: 10}
        used.end_round()
        found = used.stop(100)
        assert found.flags == (
            "short window",
            "mean power not above idle power",
            "throttled: hardware thermal slowdown, power cap",
            "temperature rose by 31 °C",
            "foreign processes: 1",
        )
        assert found.temperature_celsius == {"GPU-a": {"first": 40, "highest": 71}}
        assert found.joules.value is not None

    @pytest.mark.parametrize("has_counter", [True, False])
    def test_nothing_looks_on_after_an_engine_died_in_a_round(self, clock: Any, has_counter: bool) -> None:
        used = meter(clock, card(has_counter=has_counter))
        used.start()
        used.begin_round()
        assert clock.ticking
        assert used.stop(0).joules_per_token.reason.startswith("too short to measure")
        assert not clock.ticking

    def test_idle_clocks_and_set_clocks_are_no_throttling(self, clock: Any) -> None:
        assert energy(clock, card(throttle=0x1 | 0x2)).flags == ("short window",)

    def test_no_temperature_is_null(self, clock: Any) -> None:
        assert energy(clock, card(celsius=None)).temperature_celsius == {}


class TestProcessor:
    """RAPL where readable, else null."""

    def package(self, folder: Path, microjoules: int, name: str = "package-0") -> Path:
        place = folder / "intel-rapl:0"
        place.mkdir(exist_ok=True)
        (place / "name").write_text(name)
        (place / "energy_uj").write_text(str(microjoules))
        (place / "max_energy_range_uj").write_text("1000000000")
        return folder

    def measured(self, clock: Any, powercap: Path, start: int) -> dict[str, Any]:
        """50 W throughout, renewed each 20 ms."""
        self.package(powercap, start)
        counter = powercap / "intel-rapl:0" / "energy_uj"

        def renew() -> None:
            counter.write_text(str((start + round(50e6 * clock())) % 1_000_000_000))

        clock.ticker(0.02, renew).start()
        used = local_meter(Subject("cpu", GROUP, 1, {}), instruments(clock, powercap=powercap))
        used.start()
        used.begin_round()
        clock.sleep(2)
        used.end_round()
        return used.stop(10)

    @pytest.mark.parametrize("start", [0, 920_000_000])
    def test_packages_are_counted_also_over_the_counter_s_end(self, clock: Any, tmp_path: Path, start: int) -> None:
        found = self.measured(clock, tmp_path, start)
        assert found.joules.value == pytest.approx(100, rel=0.01)
        assert found.method == RAPL
        assert found.scope == ("package-0",)
        assert WHOLE_PACKAGE in found.flags

    def test_no_rapl_is_null_with_the_reason(self, clock: Any) -> None:
        used = local_meter(Subject("cpu", GROUP, 1, {}), instruments(clock))
        assert isinstance(used, NoMeter)
        assert used.reason == "no RAPL: /none does not exist (a virtual machine or another processor)"

    def test_no_package_is_null_with_the_reason(self, clock: Any, tmp_path: Path) -> None:
        used = local_meter(Subject("cpu", GROUP, 1, {}), instruments(clock, powercap=self.package(tmp_path, 0, "psys")))
        assert isinstance(used, NoMeter)
        assert "no processor package" in used.reason

    def test_unreadable_rapl_is_null_with_the_reason(
        self, clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.package(tmp_path, 0)
        read = Path.read_text

        def for_root_only(path: Path, *arguments: Any) -> str:
            if path.name == "energy_uj":
                raise PermissionError
            return read(path, *arguments)

        monkeypatch.setattr(Path, "read_text", for_root_only)
        used = local_meter(Subject("cpu", GROUP, 1, {}), instruments(clock, powercap=tmp_path))
        assert isinstance(used, NoMeter)
        assert "energy_uj is for root only" in used.reason


def test_without_a_driver_the_test_goes_on_and_energy_is_null(clock: Any) -> None:
    def absent() -> Any:
        raise OSError("libnvidia-ml.so.1 not found")

    used = local_meter(Subject("H100", GROUP, 1, {}), Instruments(nvml=absent))
    used.start()
    decode(clock, used, 1.0)
    assert used.stop(100).joules_per_token.reason == "NVML does not answer (libnvidia-ml.so.1 not found)"


def test_an_engine_without_a_process_has_no_energy_of_its_own(clock: Any) -> None:
    used = local_meter(Subject("fake", None, 1, {}), instruments(clock, card()))
    assert used.stop(1).joules_per_token.reason.startswith("the engine has no process of its own")


def engine_at(gateway: str | None, python: str, pid: int | None) -> Any:
    """As much of an engine as a meter looks at."""
    spec = EngineSpec(backend="vllm", target="t", gateway=gateway, python=python, options={"tensor_parallel_size": 2})
    return SimpleNamespace(spec=spec, description=SimpleNamespace(device="cpu", pid=pid))


class TestAnotherHost:
    """The meter runs where the engine does, in a process of its own."""

    def test_the_meter_works_in_an_interpreter_without_the_package(self) -> None:
        """An isolated interpreter has only what was shipped; it answers with the reason that holds there."""
        used = meter_for(engine_at("popen", f"{sys.executable} -I -S", OURS))
        here = local_meter(Subject("cpu", GROUP, 1, {}), Instruments())
        used.start()
        used.begin_round()
        used.end_round()
        found = used.stop(10)
        assert isinstance(used, RemoteMeter)
        assert found.scope or found.joules_per_token.reason == here.stop(10).joules_per_token.reason

    def test_an_engine_there_without_a_process_is_said_there(self) -> None:
        found = meter_for(engine_at("popen", sys.executable, None)).stop(1)
        assert found.joules_per_token.reason.startswith("the engine has no process")

    def test_a_host_that_cannot_be_reached_leaves_null_with_the_reason(self) -> None:
        used = meter_for(engine_at("popen", "/no/such/python", OURS))
        used.start()
        found = used.stop(10)
        assert found.joules.value is None
        assert found.joules_per_token.reason.startswith("the meter at popen//python=/no/such/python failed: ")


def test_the_subject_is_read_off_the_engine() -> None:
    assert Subject.of(engine_at(None, sys.executable, 7)) == Subject("cpu", 7, 2, {})


class TestComparison:
    """Methods are never mixed."""

    COUNTER = EnergyPart(joules_per_token=Figure(2.0), method=NVML_COUNTER, scope=("GPU-a",))

    def test_like_with_like(self) -> None:
        assert incomparable(replace(self.COUNTER, joules_per_token=Figure(1.0)), self.COUNTER) is None

    @pytest.mark.parametrize(
        ("other", "reason"),
        [
            ({"method": INSTANT}, "methods are not mixed"),
            ({"scope": ("GPU-a", "GPU-b")}, "1 device(s) here, 2 in the target-only baseline"),
            ({"joules_per_token": Figure(None, "too short")}, "the target-only baseline has no energy: too short"),
        ],
    )
    def test_unlike_is_refused(self, other: dict[str, Any], reason: str) -> None:
        assert str(incomparable(self.COUNTER, replace(self.COUNTER, **other))).startswith(reason)


def test_the_module_comes_from_the_maintained_package_and_does_not_warn() -> None:
    """The package of the module's own name is deprecated, and warns when it is imported."""
    assert packages_distributions()["pynvml"] == ["nvidia-ml-py"]
    subprocess.run([sys.executable, "-W", "error", "-c", "import pynvml"], check=True)


def test_a_process_that_left_the_group_and_not_the_session_is_the_engines() -> None:
    """As an actor of Ray's, which holds the GPU: without it the engine's GPUs would not be known."""
    command = [sys.executable, "-c", "import os; os.setpgrp(); print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as actor:
        assert actor.stdout is not None
        actor.stdout.readline()
        assert Subject("H100", os.getsid(0), 2, {}).owns(actor.pid)
        assert not Subject("H100", FOREIGN, 2, {}).owns(actor.pid)
        actor.communicate(b"\n")


def test_a_child_of_this_process_is_no_stranger() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert is_own_process(child.pid)
    finally:
        child.kill()
        child.wait()


def test_others_and_the_dead_are() -> None:
    assert not is_own_process(os.getppid())
    assert not is_own_process(2**22 + 1)
