"""The report as plain numbers: CSV in long form, one value a line, and JSON. They hold what the page's figures show."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pytest_specdec.record import to_json
from pytest_specdec.report.content import Content

COLUMNS = ("figure", "group", "line", "kind", "x", "x_label", "y", "y_label")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(content: Content) -> str:
    """One line for each point of each figure and each figure of each gate; UTF-8, a header line."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows([[_no_formula(cell) for cell in row] for row in [*_verdicts(content), *_points(content)]])
    return written.getvalue()


def _verdicts(content: Content) -> Iterator[tuple[Any, ...]]:
    for row in content.rows:
        yield "Gates", row.group, row.label, "verdict", "", "", f"{row.outcome} ({row.gate})", "verdict"
        for name, value in row.numbers:
            yield "Gates", row.group, row.label, "measured", "", "", value, name


def _points(content: Content) -> Iterator[tuple[Any, ...]]:
    for figure in content.figures:
        for line, x, y in figure.points():
            kind = "modelled" if line.modelled else "measured"
            yield figure.kind, figure.group, line.name, kind, x, figure.x_label, y, figure.y_label


def _no_formula(cell: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets an apostrophe in front."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def as_json(content: Content) -> str:
    """The content as it is, standard JSON: nothing that is not finite."""
    plain = to_json({**asdict(content), "summary": content.summary, "schema": 1})
    plain["figures"] = [{**asdict(figure), "title": figure.title} for figure in content.figures]
    return json.dumps(to_json(plain), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
