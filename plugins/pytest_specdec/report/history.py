"""A figure over runs: each configuration's value in every run that has it, and which versions changed in between.

A red gate's speed is in no history. Runs are numbered from 1, the oldest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_specdec.history.compare import figure_of
from pytest_specdec.history.saved import SavedRun
from pytest_specdec.record import Record
from pytest_specdec.report.drawing import Figure, Line
from pytest_specdec.report.gates import Gate, by_group
from pytest_specdec.thresholds import METRICS as KNOWN

METRICS = {
    "tokens_per_second": ("History of throughput", "throughput (tokens/s)"),
    "speedup": ("History of speed-up", "speed-up (×)"),
    "acceptance_rate": ("History of acceptance", "accepted over drafted tokens"),
    "joules_per_token": ("History of energy", "energy (J/token)"),
}


def history(runs: Sequence[SavedRun], gates: Sequence[Gate]) -> list[Figure]:
    """One figure for each metric and group that two runs or more have. `runs`: the oldest first."""
    numbers = {run.path: float(number) for number, run in enumerate(runs, 1)}
    green = [gate for gate in gates if not gate.red]
    groups = by_group(green)
    return [
        _figure(metric, group, members, numbers)
        for group, members in groups.items()
        if len({gate.run.path for gate in members}) > 1
        for metric in METRICS
    ]


def _figure(metric: str, group: str, gates: Sequence[Gate], numbers: Mapping[Path, float]) -> Figure:
    kind, y_label = METRICS[metric]
    lines = tuple(line for line in _lines(metric, gates, numbers) if line.measured_points > 1)
    return Figure(kind, group, "run (1 is the oldest)", y_label, lines, marks=changes(gates, numbers))


def _lines(metric: str, gates: Sequence[Gate], numbers: Mapping[Path, float]) -> list[Line]:
    """One line for each configuration; of several records in one run, the last."""
    values: dict[tuple[str, ...], dict[float, float | None]] = {}
    names: dict[tuple[str, ...], str] = {}
    for gate in sorted(gates, key=lambda gate: (gate.order, numbers[gate.run.path])):
        values.setdefault(gate.configuration, {})[numbers[gate.run.path]] = figure_of(gate.record, KNOWN[metric])
        names[gate.configuration] = gate.label
    return [Line(names[key], tuple(series), tuple(series.values())) for key, series in values.items()]


def changes(gates: Sequence[Gate], numbers: Mapping[Path, float]) -> tuple[tuple[float, str], ...]:
    """(number of the run, "vllm 0.25 → 0.26") wherever versions or driver differ from the run before."""
    found: list[tuple[float, str]] = []
    before: dict[str, str] = {}
    seen: set[Path] = set()
    for gate in sorted(gates, key=lambda gate: numbers[gate.run.path]):
        if gate.run.path in seen:
            continue
        seen.add(gate.run.path)
        now = _versions(gate.record)
        told = [f"{name} {before.get(name, 'none')} → {now.get(name, 'none')}" for name in _differing(before, now)]
        found += [(numbers[gate.run.path], ", ".join(told))] if told and before else []
        before = now
    return tuple(found)


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _versions(record: Record) -> dict[str, str]:
    driver = {"driver": record.hardware.driver} if record.hardware.driver else {}
    return {**record.engine.versions, **driver}
