"""The gates that a report shows: of every configuration its newest records, grouped by what may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_specdec.engines.spec import NO_SPECULATION, model_label
from pytest_specdec.measure.speedup import explained_in_hindsight
from pytest_specdec.results.saved import SavedRun
from pytest_specdec.results.table import PASSING, SHORT

Record = dict[str, Any]
TARGET_ONLY = "target only"


@dataclass(frozen=True)
class Gate:
    """One record, and the run that it comes from."""

    run: SavedRun
    record: Record
    device: str

    @property
    def group(self) -> str:
        """What is held fixed in a figure: scenario, engine, target with its dtype, device, and over how many."""
        record = self.record
        target = f"{model_label(record['target'])} {SHORT.get(record['dtype'], record['dtype'])}"
        spread = [f"{name} {value}" for name, value in sorted((record.get("parallelism") or {}).items())]
        parts = [record["scenario"], record["engine"], target, self.device, *spread]
        return " · ".join(str(part) for part in parts if part)

    @property
    def family(self) -> str:
        """What a line over γ stands for: the method, and its draft where there is one."""
        method, draft = str(self.record["method"]), self.record.get("draft")
        return TARGET_ONLY if method == NO_SPECULATION else f"{method} {model_label(draft)}" if draft else method

    @property
    def label(self) -> str:
        """The engine within its group."""
        gamma = self.record.get("gamma")
        return self.family if gamma is None else f"{self.family} γ={gamma}"

    @property
    def gamma(self) -> int:
        """Draft tokens a round; 0 for the target alone."""
        return int(self.record.get("gamma") or 0)

    @property
    def red(self) -> bool:
        """Whether the gate is red; a record without a gate's word is as its verdict."""
        told = self.record.get("gate")
        return told == "red" if told else self.record["verdict"]["outcome"] not in PASSING

    @property
    def configuration(self) -> tuple[str, ...]:
        """Records with the same configuration are repetitions of one measurement."""
        record = self.record
        return (str(record["engine_key"]), str(record["scenario"]), self.device)

    @property
    def order(self) -> tuple[Any, ...]:
        """Groups together, target only first, then by method and γ."""
        return (self.group, self.family != TARGET_ONLY, self.family, self.gamma)


def gates_of(runs: Iterable[SavedRun]) -> list[Gate]:
    """Every gate of every run, in the order of the runs."""
    return [Gate(run, record, _device(run, record)) for run in runs for record in run.records]


def _device(run: SavedRun, record: Record) -> str:
    """The record's own; for an engine that did not come so far as to tell, the one that others of its run name."""
    told = {str(each["device"]) for each in run.records if each.get("device")}
    return str(record.get("device") or (told.pop() if len(told) == 1 else ""))


def newest(gates: Sequence[Gate]) -> list[Gate]:
    """The gates of the last run that has their configuration; all of them, where a run has several."""
    last = {gate.configuration: gate.run.path for gate in gates}
    return sorted((gate for gate in gates if gate.run.path == last[gate.configuration]), key=lambda gate: gate.order)


def with_predictions(gates: Sequence[Gate]) -> list[Gate]:
    """The same gates, with what one γ could not predict alone told by the other γ, whichever run measured them.

    Only runs of the same versions and drivers explain each other; the engines, models and devices are the sweep's own.
    """
    copies = [replace(gate, record=dict(gate.record)) for gate in gates]
    where: dict[tuple[str, str], list[Record]] = {}
    for gate in copies:
        driver = str((gate.record.get("hardware") or {}).get("driver"))
        where.setdefault((str(sorted((gate.record.get("versions") or {}).items())), driver), []).append(gate.record)
    for records in where.values():
        explained_in_hindsight(records)
    return copies


def by_group(gates: Iterable[Gate]) -> dict[str, list[Gate]]:
    """Gates that may stand in one figure."""
    groups: dict[str, list[Gate]] = {}
    for gate in gates:
        groups.setdefault(gate.group, []).append(gate)
    return groups


def by_family(gates: Iterable[Gate]) -> dict[str, list[Gate]]:
    """Gates that differ in γ alone, by rising γ."""
    families: dict[str, list[Gate]] = {}
    for gate in sorted(gates, key=lambda gate: gate.gamma):
        families.setdefault(gate.family, []).append(gate)
    return families
