"""Where each run was measured: its commit, versions, devices, driver and processor. Runs that agree share an entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_specdec.results.report.gates import Gate, Record
from pytest_specdec.results.saved import SavedRun

Facts = tuple[tuple[str, str], ...]


def environments(gates: Sequence[Gate]) -> dict[Facts, list[str]]:
    """The distinct environments of these gates: (name, value) pairs, and which runs had them."""
    found: dict[Facts, list[str]] = {}
    for gate in gates:
        runs = found.setdefault(_facts(gate.run, gate.record), [])
        if gate.run.id not in runs:
            runs.append(gate.run.id)
    return found


def _facts(run: SavedRun, record: Record) -> Facts:
    hardware: Mapping[str, Any] = record.get("hardware") or {}
    machine: Mapping[str, Any] = run.machine or {}
    gpus = [f"{gpu.get('name')} ({gpu.get('uuid')})" for gpu in hardware.get("gpus") or ()]
    versions = record.get("versions") or {}
    facts = {
        "engine": record.get("engine"),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        "device": record.get("device"),
        "GPUs": ", ".join(gpus),
        "driver": hardware.get("driver"),
        "processor": hardware.get("processor"),
        "cores": hardware.get("cores"),
        "Python": machine.get("python_version"),
        "system": " ".join(str(machine[key]) for key in ("system", "release") if machine.get(key)),
    }
    return tuple((name, str(value)) for name, value in facts.items() if value)
