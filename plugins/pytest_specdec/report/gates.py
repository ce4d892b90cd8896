"""The gates that a report shows: of every configuration its newest records, grouped by what may be compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pytest_specdec.engines.spec import model_label
from pytest_specdec.history.saved import SavedRun, read_run
from pytest_specdec.metrics.speedup import explain_in_hindsight
from pytest_specdec.progress import count
from pytest_specdec.record import Record
from pytest_specdec.report.table import target_name

TARGET_ONLY = "target only"
Item = TypeVar("Item")


@dataclass(frozen=True)
class Gate:
    """One record, and the run that it comes from. `swept`: whether gates of its place differ in concurrency."""

    run: SavedRun
    record: Record
    device: str
    swept: bool = False

    @cached_property
    def place(self) -> str:
        """Scenario, engine, target with its dtype, device, and over how many."""
        asked = self.record.asked
        spread = [f"{name} {value}" for name, value in sorted(asked.parallelism.items())]
        parts = (asked.scenario, asked.engine, target_name(self.record), self.device, *spread)
        return " · ".join(part for part in parts if part)

    @property
    def group(self) -> str:
        """What is held fixed in a figure: the place, and where concurrency is swept, that."""
        return f"{self.place} · {count(self.concurrency, 'request')}" if self.swept else self.place

    @property
    def concurrency(self) -> int:
        """Requests under way at once, by the engine's own word if it takes fewer than it is asked to; 0: not known."""
        asked = self.record.workload.concurrency or 0
        return int(self.record.engine.details.get("concurrency", asked))

    @cached_property
    def family(self) -> str:
        """What a line over γ stands for: the method, and its draft where there is one."""
        asked = self.record.asked
        if not asked.speculates:
            return TARGET_ONLY
        named = f"{asked.method} {model_label(asked.draft)}" if asked.draft else asked.method
        return named if asked.unjudged is None else f"{named}, not judged"

    @property
    def label(self) -> str:
        """The engine within its group."""
        gamma = self.record.asked.gamma
        return self.family if gamma is None else f"{self.family} γ={gamma}"

    @property
    def name(self) -> str:
        """The same as decisions name it, γ first, e.g. "γ = 4 (eagle)"."""
        return f"γ = {self.gamma} ({self.family})" if self.gamma else self.family

    @property
    def gamma(self) -> int:
        """Draft tokens a step; 0 for the target alone."""
        return self.record.asked.gamma or 0

    @property
    def red(self) -> bool:
        """Whether the gate is red."""
        return self.record.red

    @cached_property
    def configuration(self) -> tuple[Any, ...]:
        """Records with the same configuration are repetitions of one measurement."""
        return (self.record.asked.engine_key, self.record.asked.scenario, self.concurrency, self.device)

    @cached_property
    def order(self) -> tuple[Any, ...]:
        """Groups together, target only first, then by method and γ."""
        return (self.place, self.concurrency, self.family != TARGET_ONLY, self.family, self.gamma)


def gates_of(runs: Iterable[SavedRun]) -> list[Gate]:
    """Every gate of every run, in the order of the runs."""
    gates = [Gate(run, record, _device(run, record)) for run in runs for record in run.records]
    at: dict[str, set[int]] = {}
    for gate in gates:
        at.setdefault(gate.place, set()).update([gate.concurrency] if gate.record.judged and gate.concurrency else [])
    return [replace(gate, swept=True) if len(at[gate.place]) > 1 else gate for gate in gates]


MOST_RUNS = 100


def read_runs(paths: Sequence[Path]) -> list[SavedRun]:
    """Runs for a report, by their time.

    `paths`: the oldest first. Of more than MOST_RUNS those that lie evenly, and whatever has a configuration's newest.
    """
    even = set(paths[:: -max(1, math.ceil(len(paths) / MOST_RUNS))])
    seen: set[tuple[Any, ...]] = set()
    kept: list[SavedRun] = []
    for path in reversed(paths):
        run = read_run(path)
        found = {gate.configuration for gate in gates_of([run])}
        kept += [run] if path in even or found - seen else []
        seen |= found
    kept.reverse()
    return sorted(kept, key=lambda run: (run.datetime, run.id))


def _device(run: SavedRun, record: Record) -> str:
    """The record's own; for an engine that did not come so far as to tell, the one that others of its run name."""
    told = {each.engine.device for each in run.records if each.engine.device}
    return record.engine.device or (told.pop() if len(told) == 1 else "")


def newest(gates: Sequence[Gate]) -> list[Gate]:
    """The gates of the last run that has their configuration; all of them, where a run has several."""
    last = {gate.configuration: gate.run.path for gate in gates}
    return sorted((gate for gate in gates if gate.run.path == last[gate.configuration]), key=lambda gate: gate.order)


def with_predictions(gates: Sequence[Gate]) -> list[Gate]:
    """The same gates, with what one γ could not predict alone told by the other γ, whichever run measured them.

    Only runs of the same versions and drivers explain each other; the engines, models and devices are the sweep's own.
    """
    versions = [f"{sorted(each.record.engine.versions.items())} {each.record.hardware.driver}" for each in gates]
    told = list(gates)
    for places in group_by(range(len(gates)), versions.__getitem__).values():
        records = explain_in_hindsight([gates[at].record for at in places])
        for at, record in zip(places, records, strict=True):
            told[at] = replace(gates[at], record=record)
    return told


def group_by(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    """The items by what `key` says of each, in their order."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
