"""What GitHub Actions shows: a job summary in Markdown, and an annotation at the test of each red gate.

Workflow commands and their escapes: "Workflow commands for GitHub Actions" in GitHub's documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_specdec.results.findings import change_notes, name_of, worst
from pytest_specdec.results.history import PASSING
from pytest_specdec.results.table import rows

Record = Mapping[str, Any]
TITLE = "## Speculative decoding: is it exact, is it faster"


def markdown(records: Sequence[dict[str, Any]], partial: str = "") -> str:
    """The summary: the table of all gates, the worst findings, and the changes since the baselines.

    `partial`: what ended the session before all gates had finished.
    """
    header, *body = rows(records)
    lines = [TITLE, "", _row(header), _row(["---"] * len(header)), *map(_row, body), ""]
    missing = [f"partial: {partial}"] if partial else []
    lines += [f"- {_cell(note)}" for note in (*missing, *worst(records), *change_notes(records, verbose=False))]
    return "\n".join(lines) + "\n\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def error_lines(records: Sequence[Record]) -> list[str]:
    """One `::error` line for each gate that is not green, at the test's file and line."""
    return [_annotation(record) for record in records if record.get("gate") != "green"]


def _annotation(record: Record) -> str:
    outcome = record["verdict"]["outcome"]
    complaints = (record.get("baseline") or {}).get("complaints") or ()
    said = "; ".join(complaints) or (outcome if outcome not in PASSING else f"red, though its output is {outcome}")
    place = f"file={_property(str(record['file']))},line={record['line']},title={_property(name_of(record))}"
    return f"::error {place}::{_data(said)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
