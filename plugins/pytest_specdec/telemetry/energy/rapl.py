"""The processor's own energy counters (RAPL), through Linux' powercap files.

Each package counts microjoules and starts again at `max_energy_range_uj`. Since CVE-2020-8694 the files are readable by
root only unless the administrator says otherwise. A package counts everything that runs on it, not the engine alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pytest_specdec.telemetry.energy.counter import Counter
from pytest_specdec.telemetry.energy.meter import MeterFault

POWERCAP = Path("/sys/class/powercap")
RAPL = "rapl"
WHOLE_PACKAGE = "whole package: whatever else ran on the processor is included"


def packages(powercap: Path) -> list[Counter]:
    """A counter for each processor package. Raises MeterFault with the reason where there is none, or none readable."""
    if not powercap.is_dir():
        raise MeterFault(f"no RAPL: {powercap} does not exist (a virtual machine or another processor)")
    found = list(_packages(powercap))
    if not found:
        raise MeterFault(f"no RAPL: no processor package under {powercap}")
    return found


def _packages(powercap: Path) -> Iterator[Counter]:
    for folder in sorted(powercap.glob("intel-rapl:*")):
        name = _text(folder / "name")
        if name.startswith("package"):
            read = partial(_count, folder / "energy_uj")
            read()
            yield Counter(name, read, 1e-6, _count(folder / "max_energy_range_uj"))


def _count(path: Path) -> int:
    return int(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except PermissionError:
        raise MeterFault(f"RAPL is not readable: {path} is for root only; let this user read it") from None
    except OSError as error:
        raise MeterFault(f"RAPL is not readable: {path}: {error.strerror}") from None
