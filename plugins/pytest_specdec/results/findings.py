"""What a session found, in words: the worst of it, and what has changed since the baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_specdec.engines.spec import model_label
from pytest_specdec.results.compare import Outcome, in_words
from pytest_specdec.results.history import PASSING

Record = Mapping[str, Any]
MOST = 3


def name_of(record: Record) -> str:
    """A record in a few words: target, method, γ, scenario."""
    gamma = f" γ={record['gamma']}" if record.get("gamma") else ""
    return f"{model_label(record['target'])} {record['engine']} {record['method']}{gamma} on {record['scenario']}"


def worst(records: Sequence[Record]) -> list[str]:
    """The worst findings, at most MOST: wrong output, then what got worse, then what loses to the target alone."""
    found = sorted((finding for record in records for finding in _findings(record)), key=lambda each: each[:2])
    more = [f"… and {len(found) - MOST} more"] if len(found) > MOST else []
    return [f"worst: {words}" for _, _, words in found[:MOST]] + more


def _findings(record: Record) -> Iterator[tuple[int, float, str]]:
    """(rank, order within the rank, words), the worst lowest."""
    name, outcome = name_of(record), record["verdict"]["outcome"]
    if outcome not in PASSING:
        yield 0, 0.0, f"{name}: {outcome}"
    elif record.get("gate") == "red":
        yield 1, 0.0, f"{name}: red, though its output is {outcome}"
    for complaint in (record.get("baseline") or {}).get("complaints") or ():
        yield 2, _largest_change(record), f"{name}: {complaint}"
    speedup = record.get("speedup")
    if record.get("gate") != "red" and speedup is not None and speedup < 1:
        yield 3, speedup, f"{name}: slower than the target alone, {speedup:.2f} of its tokens/s"


def _largest_change(record: Record) -> float:
    return -max((abs(change["change"] or 0.0) for change in record["baseline"]["changes"]), default=0.0)


def change_notes(records: Sequence[Record], verbose: bool) -> list[str]:
    """What has changed since the baselines: versions once, then what is not good or has no baseline, else a count."""
    held = [record for record in records if record.get("baseline")]
    notes = list(dict.fromkeys(note for record in held for note in _around(record)))
    changes = [(record, change) for record in held for change in record["baseline"]["changes"]]
    told = [each for each in changes if verbose or each[1]["outcome"] != Outcome.GOOD.value]
    notes += [f"{name_of(record)} since run {record['baseline']['run']}: {in_words(change)}" for record, change in told]
    if len(told) < len(changes):
        notes.append(f"within their thresholds: {len(changes) - len(told)} of {len(changes)} changes")
    return notes


def _around(record: Record) -> Iterator[str]:
    baseline = record["baseline"]
    if baseline["reason"]:
        yield f"{name_of(record)}: not compared: {baseline['reason']}"
    yield from (f"passed over: {refused}" for refused in baseline["passed_over"])
    if baseline["circumstances"]:
        yield f"changed since run {baseline['run']}: {'; '.join(baseline['circumstances'])}"
