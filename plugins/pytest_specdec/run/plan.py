"""What a session is about to do, in words before the first engine is loaded: its gates, its engines, and how long.

How long is what the same gates took in the latest saved runs on this machine, with the engines' loading; where one has
never run here, that is said instead.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.history.saved import saved_paths
from pytest_specdec.report.table import count

SECONDS = "specdec_seconds"
LATEST = 10


@dataclass(frozen=True)
class PlannedGate:
    """One gate: its test, the engine that it judges, its scenario by name, and how long it took when it last ran."""

    test: str
    engine: EngineSpec
    scenario: str
    seconds: float | None


def earlier_seconds(storage: Path) -> dict[str, float]:
    """How long each test's gate took when it was last saved on this machine; a file that is not whole says nothing."""
    found: dict[str, float] = {}
    for path in saved_paths(storage)[-LATEST:]:
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if content.get("machine_info", {}).get("node") == platform.node():
            told = {bench["fullname"]: bench.get("extra_info", {}).get(SECONDS) for bench in content["benchmarks"]}
            found |= {test: seconds for test, seconds in told.items() if seconds is not None}
    return found


def describe_plan(gates: Sequence[PlannedGate]) -> list[str]:
    """A line for all gates, and one for each engine in the order in which they are loaded."""
    engines: dict[EngineSpec, dict[str, None]] = {}
    for gate in gates:
        engines.setdefault(gate.engine, {})[gate.scenario] = None
    head = f"plan: {count(len(gates), 'gate')} of {count(len(engines), 'engine')}, {_how_long(gates)}"
    told = {f"{spec.label} ({spec.backend}, {spec.dtype})": names for spec, names in engines.items()}
    return [head, *(f"  {engine}: {', '.join(names)}" for engine, names in told.items())]


def _how_long(gates: Sequence[PlannedGate]) -> str:
    known = [gate.seconds for gate in gates if gate.seconds is not None]
    if not known:
        return "no saved run on this machine tells how long they take"
    whole = "" if len(known) == len(gates) else f" for the {len(known)} that ran here before"
    return f"about {sum(known):.0f} s{whole}"
