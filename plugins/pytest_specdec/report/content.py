"""All that a report says, gathered from runs: verdicts, figures, environments. How it looks is decided elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_specdec.history.saved import SavedRun
from pytest_specdec.record import Record
from pytest_specdec.report.curves import curves, power
from pytest_specdec.report.drawing import Figure, readable
from pytest_specdec.report.gates import Gate, by_group, gates_of, newest, with_predictions
from pytest_specdec.report.history import history
from pytest_specdec.report.verdicts import Row, notes, rows

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


@dataclass(frozen=True)
class Content:
    """`runs`: each in words, oldest first. `rows`: the newest gates. `environments`: theirs."""

    runs: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]
    environments: tuple[tuple[Facts, tuple[str, ...]], ...]

    @property
    def reds(self) -> int:
        """How many gates are red."""
        return sum(row.gate == "red" for row in self.rows)

    @property
    def figures_by_group(self) -> dict[str, list[Figure]]:
        """The figures of what may be compared, together."""
        groups: dict[str, list[Figure]] = {}
        for figure in self.figures:
            groups.setdefault(figure.group, []).append(figure)
        return groups

    @property
    def summary(self) -> str:
        """The first sentence."""
        if not self.rows:
            return "No gate was recorded."
        told = f"{self.reds} of {len(self.rows)} gates red" if self.reds else f"all {len(self.rows)} gates green"
        over = f"{len(self.runs)} runs, of each configuration the newest" if len(self.runs) > 1 else "1 run"
        return f"{told}; {over}"


def gather(runs: Sequence[SavedRun]) -> Content:
    """The content of a report over these runs, in any order. Raises ConfigurationError for an unreadable series."""
    ordered = sorted(runs, key=lambda run: (run.datetime, run.id))
    every = gates_of(ordered)
    shown = with_predictions(newest(every))
    over_runs = history(ordered, every)
    figures: list[Figure] = []
    for group, members in by_group(shown).items():
        figures += [*curves(group, members), power(group, members)]
        figures += [figure for figure in over_runs if figure.group == group]
    return Content(
        runs=tuple(map(_name_run, ordered)),
        rows=tuple(rows(shown)),
        notes=tuple(notes(shown)),
        figures=tuple(part for figure in figures for part in readable(figure)),
        environments=tuple((facts, tuple(ids)) for facts, ids in environments(shown).items()),
    )


def _name_run(run: SavedRun) -> str:
    """A run by its id, its time to the minute, its commit, and whether gates are missing."""
    commit = str(run.commit.get("id") or "")[:12]
    when = run.datetime[:16].replace("T", " ")
    known = f", commit {commit}" if commit and commit != "unknown" else ""
    return f"{run.id}, {when}{known}" + (f", partial: {run.partial}" if run.partial else "")
