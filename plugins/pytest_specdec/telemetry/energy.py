"""Energy of the timed rounds, from counters that lie outside the engine: which meter an engine gets.

The engine's GPUs are those on which NVML shows a process of the worker's group. Where NVML shows none (a container or a
virtual machine may hide process ids), they are the first that CUDA lets the engine see, and a flag says so. A slice of
a GPU (MIG) has no energy of its own, and the whole card is never charged to it. On another host a small worker measures
beside the engine: the modules that measure travel as text, and nvidia-ml-py alone is needed there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from pytest_specdec.hardware import Gpu, present_gpus, visible_gpus
from pytest_specdec.record import part_from
from pytest_specdec.record.parts import EnergyPart
from pytest_specdec.telemetry.meter import (
    RAPL,
    WHOLE_PACKAGE,
    Counter,
    CounterMeter,
    Instruments,
    Meter,
    NoMeter,
    PowerMeter,
    Subject,
    Watch,
    missing_energy,
    packages,
)
from pytest_specdec.telemetry.nvml import Device, MeterFault

if TYPE_CHECKING:
    from pytest_specdec.engines.engine import Engine
    from pytest_specdec.metrics.phases import Trace

NVML_COUNTER = "nvml counter"
IsOurs = Callable[[int], bool]
HIDDEN = (
    "NVML shows no process of the engine: its GPUs are taken to be the first that CUDA lets it see, and foreign "
    "processes could not be told"
)
ANSWER_SECONDS = 120.0
SHIPPED = (
    *("__init__.py", "errors.py", "hardware.py", "engines/__init__.py", "engines/process_group.py"),
    *("telemetry/__init__.py", "telemetry/energy.py", "telemetry/meter.py", "telemetry/nvml.py", "record/*.py"),
)


def meter_for(engine: Engine) -> Meter:
    """The meter of a loaded engine."""
    spec, subject = engine.spec, Subject.of(engine)
    if spec.gateway is not None:
        return RemoteMeter(spec.gateway, spec.python or "python3", subject)
    return local_meter(subject, Instruments())


def local_meter(subject: Subject, instruments: Instruments) -> Meter:
    """The meter of an engine on this machine."""
    if subject.group is None:
        return NoMeter("the engine has no process of its own here, so nothing tells its energy from that of others")
    try:
        if subject.device != "cpu":
            return _gpu_meter(subject, instruments)
        watch = Watch([WHOLE_PACKAGE], instruments)
        return CounterMeter(RAPL, packages(instruments.powercap), watch, instruments)
    except MeterFault as fault:
        return NoMeter(str(fault))


def _gpu_meter(subject: Subject, instruments: Instruments) -> Meter:
    devices, is_ours = own_gpus(subject, instruments)
    at_home = (lambda pid: subject.owns(pid) or is_own_process(pid)) if is_ours else None
    watch = Watch([] if is_ours else [HIDDEN], instruments, devices, at_home)
    if all(device.has_energy_counter() for device in devices):
        counters = [Counter(device.uuid, device.millijoules, 1e-3) for device in devices]
        return CounterMeter(NVML_COUNTER, counters, watch, instruments)
    if all(device.instant_watts() is not None for device in devices):
        return PowerMeter(devices, watch, instruments)
    raise MeterFault("NVML gives neither an energy counter nor instant power for the engine's GPUs")


def is_own_process(pid: int) -> bool:
    """Whether this very process started it: another engine of the session, parked, is no stranger on the GPU."""
    try:
        import psutil
    except ImportError:  # on another host, where no engine is this process's child
        return False
    with suppress(psutil.Error):
        return os.getpid() in {parent.pid for parent in psutil.Process(pid).parents()}
    return False


def own_gpus(subject: Subject, instruments: Instruments) -> tuple[list[Device], IsOurs | None]:
    """The engine's GPUs, and how to tell its processes on them (None: NVML hides them). Raises MeterFault."""
    if subject.group is None or subject.device == "cpu":
        raise MeterFault("the engine has no process of its own on a GPU")
    try:
        nvml = instruments.nvml()
    except Exception as error:
        raise MeterFault(f"NVML does not answer ({error})") from error
    environment = {**instruments.environment, **subject.environment}
    if "MIG-" in environment.get("CUDA_VISIBLE_DEVICES", ""):
        raise MeterFault("the engine has a slice of a GPU (MIG), which has no energy of its own")
    present = list(present_gpus(nvml))
    devices = [Device(nvml, gpu.uuid) for gpu in present]
    own = [device for device in devices if any(map(subject.owns, device.process_memory() or ()))]
    chosen = own or [Device(nvml, gpu.uuid) for gpu in first_visible(present, subject.gpus, environment)]
    if any(device.is_sliced() for device in chosen):
        raise MeterFault("the engine's GPU is sliced (MIG is on), and a slice has no energy of its own")
    return chosen, subject.owns if own else None


def first_visible(present: Sequence[Gpu], wanted: int, environment: Mapping[str, str]) -> Sequence[Gpu]:
    """The first `wanted` that CUDA shows. Raises MeterFault where there are fewer, or CUDA's order is not known."""
    visible = visible_gpus(tuple(present), environment)
    if len(visible) < wanted:
        raise MeterFault(f"{wanted} GPU(s) wanted, {len(visible)} of {len(present)} visible to the engine")
    # CUDA numbers unlike cards fastest first, NVML by the bus; UUIDs need no number.
    listed = environment.get("CUDA_VISIBLE_DEVICES", "0" if len(visible) > wanted else "")
    by_number = any(entry.strip().isdigit() for entry in listed.split(","))
    unlike = len({gpu.name for gpu in present}) > 1
    if unlike and by_number and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise MeterFault(
            "unlike GPUs, which CUDA numbers fastest first and NVML by the bus: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID or list UUIDs in CUDA_VISIBLE_DEVICES"
        )
    return visible[:wanted]


class RemoteMeter(Meter):
    """Passes each call on. A host that fails leaves null figures with the reason."""

    def __init__(self, gateway: str, python: str, subject: Subject) -> None:
        """`gateway`: an execnet specification; `python`: the interpreter there."""
        self._where, self._fault = f"{gateway}//python={python}", ""
        self._group: Any = None
        with self._noting():
            import execnet

            from pytest_specdec.engines import meter

            self._group = execnet.Group()
            self._channel = self._group.makegateway(self._where).remote_exec(meter)
            self._channel.send((_archive(), asdict(subject)))

    def start(self) -> None:
        self._call("start")

    def begin_round(self) -> None:
        """A round begins when the host has answered."""
        self._call("begin_round")

    def end_round(self) -> None:
        """The round ended when the host heard of it."""
        self._call("end_round")

    def satisfied(self) -> bool:
        """What the host says; a host that fails has nothing to wait for."""
        return self._call("satisfied") is not False

    def each_round(self) -> Sequence[float]:
        return self._call("each_round") or ()

    def traces(self) -> Sequence[Trace]:
        told = self._call("traces") or ()  # lists all the way, by way of JSON
        return [[[(at_s, joules) for at_s, joules in points] for points in trace] for trace in told]

    def stop(self, tokens: int) -> EnergyPart:
        result = self._call("stop", tokens)
        if self._group is not None:
            self._group.terminate(timeout=1.0)
        return missing_energy(self._fault) if self._fault else part_from(EnergyPart, result)

    def _call(self, command: str, *arguments: Any) -> Any:
        if self._fault:
            return None
        with self._noting():
            self._channel.send((command, arguments))
            return self._channel.receive(ANSWER_SECONDS)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            words = str(error).strip() or f"no answer ({type(error).__name__})"
            self._fault = f"the meter at {self._where} failed: {words.splitlines()[-1]}"


def _archive() -> bytes:
    """The modules that measure, as a zip file from which Python imports them."""
    root, content = Path(__file__).parents[1], BytesIO()
    with ZipFile(content, "w", strict_timestamps=False) as archive:  # some images date files before 1980
        for path in (path for pattern in SHIPPED for path in root.glob(pattern)):
            archive.write(path, path.relative_to(root.parent))
    return content.getvalue()
