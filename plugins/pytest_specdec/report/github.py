"""What GitHub Actions shows: a job summary in Markdown, and an annotation at the test of each red gate.

Workflow commands and their escapes: "Workflow commands for GitHub Actions" in GitHub's documentation.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specdec.record import GREEN, Record
from pytest_specdec.report.findings import change_notes, name_of, worst
from pytest_specdec.report.table import rows

TITLE = "## Speculative decoding: is it exact, is it faster"


def markdown(records: Sequence[Record], partial: str = "") -> str:
    """The summary: the table of all gates, the worst findings, and the changes since the baseline runs.

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
    return [_annotation(record) for record in records if record.gate != GREEN]


def _annotation(record: Record) -> str:
    outcome, place = record.verdict.outcome, record.place
    failures = record.baseline.failures if record.baseline else ()
    said = "; ".join(failures) or (f"red, though its output is {outcome}" if record.passes else outcome)
    where = f"file={_property(place.file)},line={place.line},title={_property(name_of(record))}"
    return f"::error {where}::{_data(said)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
