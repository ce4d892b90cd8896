"""The commands on saved runs: list, show, compare, report."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.compare import in_words
from pytest_specdec.history.history import LATEST, OneRun, run_path
from pytest_specdec.history.regression import RegressionGate
from pytest_specdec.history.saved import SavedRun, UnreadableRun, read_run, run_id, saved_paths
from pytest_specdec.report.findings import name_of

PLAIN_WIDTH = 160


def list_runs(options: argparse.Namespace) -> int:
    """One line a run; one that cannot be read says so in its line, and makes the command fail."""
    unreadable = 0
    for path in _list_saved(options.storage)[-options.number :]:
        try:
            print(_line(read_run(path)))
        except UnreadableRun as error:
            unreadable += 1
            print(f"{run_id(path)}  {error}")
    return 2 if unreadable else 0


def _line(run: SavedRun) -> str:
    versions = {f"{name} {version}" for each in run.records for name, version in each.engine.versions.items()}
    commit = str(run.commit.get("id", ""))[:10]
    partial = f"partial: {run.partial}" if run.partial else ""
    parts = (run.id, run.datetime[:19], commit, f"{len(run.records)} gates", ", ".join(sorted(versions)), partial)
    return "  ".join(part for part in parts if part)


def show(options: argparse.Namespace) -> int:
    """The table of one run's gates."""
    from pytest_specdec.report.table import footnotes, print_table

    run = _run(options.run_name, options.storage)
    print(_line(run))
    if run.records:
        screen = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if screen else PLAIN_WIDTH
        print_table(run.records, width, print, screen)
        print("\n".join(footnotes(run.records)))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Every gate of one run against another run; 1 if a threshold is missed or a baseline run refused."""
    then, now = _run(options.then, options.storage), _run(options.now, options.storage)
    print("".join(f"run {run.id} is partial: {run.partial}\n" for run in (then, now) if run.partial), end="")
    gate = RegressionGate(OneRun(then), options.fail)
    parts = [(record, gate.part(record, record.place.test)) for record in now.records]
    for record, part in parts:
        print(f"{name_of(record)} ({record.place.test})")
        told = [part.reason] if part.reason else [in_words(change) for change in part.changes]
        around = [f"changed: {'; '.join(part.circumstances)}"] if part.circumstances else []
        print("".join(f"  {line}\n" for line in around + told), end="")
    if not parts:
        raise ConfigurationError(f"run {now.id} ({now.path}) has no record of a gate")
    return 1 if any(part.failures for _, part in parts) else 0


def report(options: argparse.Namespace) -> int:
    """Write a page about one run or several."""
    from pytest_specdec.report import format_of, write_report

    form = options.format or format_of(options.output)
    paths = [_path(name, options.storage) for name in options.runs] or _list_saved(options.storage)
    write_report([read_run(path) for path in paths], options.output, form)
    print(f"wrote {options.output}")
    return 0


def _run(name: str, storage: Path) -> SavedRun:
    return read_run(_path(name, storage))


def _path(name: str, storage: Path) -> Path:
    return _list_saved(storage)[-1] if name == LATEST else run_path(name, storage)


def _list_saved(storage: Path) -> list[Path]:
    """The storage's files, oldest first. Raises ConfigurationError for none."""
    paths = saved_paths(storage)
    if not paths:
        raise ConfigurationError(f"no run in {storage}: save one with pytest --benchmark-autosave")
    return paths
