"""Peak memory: the engine's own where NVML tells it, else the whole GPUs' by that name; the host's from the kernel."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.telemetry import fake_nvml as fake

from pytest_specdec.record import Figure
from pytest_specdec.telemetry.meter import Instruments, Subject
from pytest_specdec.telemetry.monitor import (
    NO_PROCESS,
    NO_WAITING_TOLD,
    NOT_TOLD,
    OWN,
    WHOLE,
    CoreWait,
    PeakMemory,
    host_memory,
    subject_here,
)

OURS, FOREIGN = os.getpid(), 1
GROUP = os.getpgid(0)


def peak(clock: Any, *cards: Any, device: str = "H100") -> PeakMemory:
    nvml = fake.FakeNvml(clock, *cards)
    instruments = Instruments(lambda: nvml, Path("/none"), {}, clock, clock.sleep, clock.ticker)
    return PeakMemory(Subject(device, GROUP, 1, {}), instruments)


def test_the_peak_is_the_highest_sum_over_the_engine_s_gpus() -> None:
    clock = fake.FakeClock()
    a, b = (fake.Card(f"GPU-{letter}", processes={OURS: 10, FOREIGN: 1000}) for letter in "ab")
    memory = peak(clock, a, b)
    memory.start()
    clock.sleep(1)
    a.processes = {OURS: 70}
    clock.sleep(1)
    a.processes, b.processes = {OURS: 20}, {OURS: 50}
    clock.sleep(1)
    found = memory.stop({})
    assert found.peak_gpu_bytes.value == 80
    assert found.peak_gpu_bytes_method == OWN
    assert found.peak_gpu_bytes.reason is None


@pytest.mark.parametrize("processes", [{}, None, {FOREIGN: 5}, {OURS: None}])
def test_hidden_processes_leave_the_whole_gpu_and_its_name(processes: Any) -> None:
    clock = fake.FakeClock()
    memory = peak(clock, fake.Card("GPU-a", processes=processes, used=900))
    memory.start()
    found = memory.stop({})
    assert (found.peak_gpu_bytes.value, found.peak_gpu_bytes_method) == (900, WHOLE)


def test_a_lost_gpu_is_null_with_the_reason() -> None:
    memory = peak(fake.FakeClock(), fake.Card("GPU-a", lost=True))
    memory.start()
    found = memory.stop({})
    assert found.peak_gpu_bytes.value is None
    assert found.peak_gpu_bytes.reason == "NVML tells neither the engine's nor the GPUs' memory"


def test_an_engine_on_the_processor_has_no_gpu_memory_but_host_memory() -> None:
    memory = peak(fake.FakeClock(), device="cpu")
    memory.start()
    found = memory.stop({})
    assert found.peak_gpu_bytes == Figure(None, "the engine has no process of its own on a GPU")
    assert found.peak_host_bytes.value >= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 * 0.9


def test_host_memory_adds_up_the_group(tmp_path: Path) -> None:
    (tmp_path / str(OURS)).mkdir()
    (tmp_path / str(OURS) / "status").write_text("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
    (tmp_path / str(FOREIGN)).mkdir()
    (tmp_path / str(FOREIGN) / "status").write_text("VmHWM:\t 9999 kB\n")
    (tmp_path / "meminfo").mkdir()
    assert host_memory(GROUP, tmp_path) == Figure(2048 * 1024)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (None, "the engine has no process on this machine"),
        (2**22 + 1, "no live process of group 4194305 tells its peak memory (VmHWM)"),
    ],
)
def test_no_process_no_host_memory(group: int | None, reason: str) -> None:
    assert host_memory(group) == Figure(None, reason)


def test_weights_and_cache_are_what_the_engine_tells() -> None:
    memory = peak(fake.FakeClock(), fake.Card("GPU-a"))
    memory.start()
    found = memory.stop({"weights_bytes": 5, "other": 1})
    assert (found.weights_bytes, found.kv_cache_bytes) == (Figure(5), Figure(None, NOT_TOLD))


@pytest.mark.parametrize(("gateway", "known"), [(None, True), ("ssh=host", False)])
def test_memory_of_another_host_is_null(gateway: str | None, known: bool) -> None:
    """A process id of another host would be somebody else's here."""
    spec = SimpleNamespace(gateway=gateway, environment={}, options={}, gpus=1)
    about: Any = SimpleNamespace(spec=spec, description=SimpleNamespace(device="cpu", pid=GROUP))
    here = subject_here(about)
    memory = PeakMemory(here)
    memory.start()
    found = memory.stop({})
    assert (found.peak_host_bytes.value is not None) == known
    assert (CoreWait(here.group).share().reason == NO_PROCESS) == (not known)


def schedule(proc: Path, **threads: str) -> None:
    """What the kernel tells of this process's threads: nanoseconds on a core, waiting for one, and turns."""
    for name, told in threads.items():
        folder = proc / str(OURS) / "task" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(told)


def test_waiting_for_a_core_is_a_share_of_the_time_that_was_wanted(tmp_path: Path) -> None:
    """Of what has gone by since; a thread that came later counts whole, another's process does not."""
    schedule(tmp_path, t1="1000 1000 3", t2="500 0 1")
    (tmp_path / str(FOREIGN) / "task" / "1").mkdir(parents=True)
    (tmp_path / str(FOREIGN) / "task" / "1" / "schedstat").write_text("0 999999 1")
    waits = CoreWait(GROUP, tmp_path)
    schedule(tmp_path, t1="1600 1100 9", t2="600 0 2", t3="100 100 1")
    assert waits.share().value == pytest.approx(200 / 1000)


def test_a_process_that_ends_while_it_is_looked_at_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines start compilers and probes, and telemetry breaks no gate."""
    schedule(tmp_path, t1="1000 1000 3")

    def vanished(*_: Any) -> Any:
        raise FileNotFoundError("it has ended")

    monkeypatch.setattr(Path, "glob", vanished)
    assert CoreWait(GROUP, tmp_path).share() == Figure(None, NO_WAITING_TOLD)


def test_what_the_kernel_or_the_engine_does_not_tell_is_null(tmp_path: Path) -> None:
    schedule(tmp_path, t1="")
    assert CoreWait(GROUP, tmp_path).share() == Figure(None, NO_WAITING_TOLD)
    assert CoreWait(None, tmp_path / "none").share() == Figure(None, NO_PROCESS)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel tells no scheduler statistics")
def test_two_processes_on_one_core_wait_for_each_other() -> None:
    """The kernel's own figures: each has half of what it wants."""
    core, spin = min(os.sched_getaffinity(0)), "while True: pass"
    pin = f"import os; os.sched_setaffinity(0, {{{core}}}); print(1, flush=True)\n{spin}"
    both = [subprocess.Popen([sys.executable, "-c", pin], stdout=subprocess.PIPE, start_new_session=True) for _ in "ab"]
    try:
        for each in both:
            assert each.stdout is not None
            each.stdout.readline()
        waits = CoreWait(both[0].pid)
        time.sleep(0.2)
        share = waits.share().value
    finally:
        for each in both:
            each.kill()
            each.communicate()
    assert share is not None
    assert share > 0.1
