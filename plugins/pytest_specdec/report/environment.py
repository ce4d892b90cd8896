"""Where each run was measured: its commit, versions, devices, driver and processor. Runs that agree share an entry."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specdec.history.saved import SavedRun
from pytest_specdec.record import Record
from pytest_specdec.report.gates import Gate

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
    hardware, machine = record.hardware, run.machine or {}
    facts = {
        "engine": record.asked.engine,
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(record.engine.versions.items())),
        "device": record.engine.device,
        "GPUs": ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in hardware.gpus),
        "driver": hardware.driver,
        "processor": hardware.processor,
        "cores": hardware.cores,
        "Python": machine.get("python_version"),
        "system": " ".join(str(machine[key]) for key in ("system", "release") if machine.get(key)),
    }
    return tuple((name, str(value)) for name, value in facts.items() if value)
