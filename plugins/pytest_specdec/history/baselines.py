"""Where baselines come from: one saved run that is named, or the latest in the storage that has the measurement.

Files are read from the newest back, and parsed only where their text names the scenario or the test: a history of a
thousand runs costs the reading of what is needed. A file that is cut off ends the search with an error, since what it
held cannot be known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.history import changed_question, counterpart, refusals
from pytest_specdec.history.saved import SavedRun, UnreadableRun, read_run, read_text, run_id, run_of, saved_paths
from pytest_specdec.record import Record

LATEST = "latest"
WHOLE = "\n}"
REMEMBERED = 16


@dataclass(frozen=True)
class Found:
    """What the search gave: a baseline run with its record, or a problem in words.

    `refused`: whether there was something and it was refused, or there was nothing. `passed_over`: newer runs that hold
    the measurement and were refused, by name.
    """

    run: SavedRun | None = None
    record: Record | None = None
    problem: str = ""
    refused: bool = False
    passed_over: tuple[str, ...] = ()


class Baselines(Protocol):
    """Something that finds the baseline run of a record."""

    def find(self, now: Record, test: str) -> Found:
        """The baseline run of this record of `test`, or the reason why there is none."""


def baselines(named: str, storage: Path) -> Baselines:
    """`named`: "latest", a run's number in the storage, or a file. Raises ConfigurationError if that names no run."""
    return LatestRuns(storage) if named == LATEST else OneRun(read_run(run_path(named, storage)))


def run_path(named: str, storage: Path) -> Path:
    """The file of a run that is named by its number, by "machine/number" or by its path."""
    if Path(named).is_file():
        return Path(named)
    machine, _, number = named.rpartition("/")
    numbered = [
        path for path in saved_paths(storage) if run_id(path) == number.zfill(4) and machine in ("", path.parent.name)
    ]
    if len(numbered) == 1:
        return numbered[0]
    if not numbered:
        raise ConfigurationError(
            f"{named!r} is neither a file nor the number of a run in {storage}{_describe_known(storage)}"
        )
    several = ", ".join(f"{path.parent.name}/{number}" for path in numbered)
    raise ConfigurationError(f"{named!r} names several runs in {storage}: say one of {several}")


def _describe_known(storage: Path) -> str:
    known = saved_paths(storage)
    return (
        f"; the latest is {run_id(known[-1])}" if known else ", which holds no run: measure with --benchmark-autosave"
    )


class OneRun:
    """One run, named by the user."""

    def __init__(self, run: SavedRun) -> None:
        self._run = run

    def find(self, now: Record, test: str) -> Found:
        """Its record of the same measurement."""
        return find_in_run(self._run, now, test)


class LatestRuns:
    """The newest run in a storage that holds the measurement and may be its baseline run."""

    def __init__(self, storage: Path) -> None:
        self._storage = storage

    def find(self, now: Record, test: str) -> Found:
        """From the newest run back; what was refused on the way is told."""
        refused: list[str] = []
        missing: list[str] = []
        try:
            for run in runs_that_may_hold(now, test, self._storage):
                found = find_in_run(run, now, test)
                if found.record is not None:
                    return Found(found.run, found.record, passed_over=tuple(refused))
                (refused if found.refused else missing).append(found.problem)
        except UnreadableRun as error:
            return Found(problem=str(error), refused=True, passed_over=tuple(refused))
        return _none(self._storage, refused, missing)


def _none(storage: Path, refused: Sequence[str], missing: Sequence[str]) -> Found:
    if refused:
        more = f" (and {len(refused) - 1} older ones)" if len(refused) > 1 else ""
        return Found(problem=refused[0] + more, refused=True)
    if missing:
        return Found(problem=missing[0])
    return Found(problem=f"no run in {storage} has this measurement: save one with --benchmark-autosave")


def find_in_run(run: SavedRun, now: Record, test: str) -> Found:
    """The record of the measurement in this run, or why it has none that serves."""
    then = counterpart(now, test, run.records)
    if then is None:
        partial = f", and is partial: {run.partial}" if run.partial else ""
        why = changed_question(now, test, run.records) or f"it has no record of this measurement{partial}"
        return Found(run, problem=f"run {run.id} ({run.path}): {why}")
    reasons = list(refusals(now, then))
    if reasons:
        return Found(run, problem=f"run {run.id} ({run.path}) is no baseline run: {'; '.join(reasons)}", refused=True)
    return Found(run, then)


def runs_that_may_hold(now: Record, test: str, storage: Path) -> Iterator[SavedRun]:
    """Saved runs whose text names the scenario's digest or the test, newest first. Raises UnreadableRun."""
    names = [json.dumps(name)[1:-1] for name in (now.asked.scenario_digest, test) if name]
    for path in reversed(saved_paths(storage)):
        run = _run_with(path, path.stat().st_mtime_ns, tuple(names))
        if run is not None:
            yield run


@lru_cache(maxsize=REMEMBERED)
def _run_with(path: Path, _written: int, names: tuple[str, ...]) -> SavedRun | None:
    """The run, or None where its text, whole to the closing brace, has none of the names."""
    text = read_text(path)
    if text.rstrip().endswith(WHOLE) and not any(name in text for name in names):
        return None
    return run_of(path, text)
