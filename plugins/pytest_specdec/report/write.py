"""Write a report over saved runs, or their table into a page.

In the page everything is escaped but the drawings, and a policy in its head forbids scripts and any look outside; in
Markdown, every text that comes from a record is. A table in a page stands between two marks: `<!-- table of RUN … -->`
stands for every gate of the runs, `<!-- decision of RUN … -->` for what they decide.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.saved import SavedRun, read_run
from pytest_specdec.record import to_json
from pytest_specdec.report.content import Content, gather
from pytest_specdec.report.decision import write_lines
from pytest_specdec.report.drawing import Figure, draw_svg
from pytest_specdec.report.findings import decisions_on
from pytest_specdec.report.rates import UNITS, rate_lines
from pytest_specdec.report.table import print_table

MARKUP = re.compile(r"([\\`*_\[\]<>|~$&#])")
MOST_ROWS = 60


def _render(template: str, content: Content, autoescape: bool) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_specdec.report"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = plain
    return environment.get_template(template).render(content=content, table=table, draw=draw_svg, units=UNITS)


def plain(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def table(figure: Figure) -> tuple[list[str], list[list[str]], int]:
    """The figure as a table: heads, rows of texts, and how many rows in the middle are left out of a long one."""
    values = {(line.name, x): y for line, x, y in figure.points()}
    xs = list(dict.fromkeys(x for _, x, _ in figure.points()))
    if not figure.x_names:
        xs.sort(key=float)
    kept = xs if len(xs) <= MOST_ROWS else [*xs[: MOST_ROWS // 2], *xs[-MOST_ROWS // 2 :]]
    told = {key: "–" if y is None else f"{y:.4g}" for key, y in values.items()}
    rows = [[x, *(told.get((line.name, x), "–") for line in figure.lines)] for x in kept]
    return [figure.x_label, *(line.name for line in figure.lines)], rows, len(xs) - len(kept)


COLUMNS = ("figure", "group", "line", "kind", "x", "x_label", "y", "y_label")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(content: Content) -> str:
    """One line for each point of each figure and each figure of each gate; UTF-8, a header line."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(COLUMNS)
    for row in _rows(content):  # a text that a spreadsheet would take for a formula gets an apostrophe in front
        rows.writerow([f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell for cell in row])
    return written.getvalue()


def _rows(content: Content) -> Iterator[tuple[Any, ...]]:
    for row in content.rows:
        yield "Gates", row.group, row.label, "verdict", "", "", f"{row.outcome} ({row.gate})", "verdict"
        for name, value in row.numbers:
            yield "Gates", row.group, row.label, "measured", "", "", value, name

    for figure in content.figures:
        for line, x, y in figure.points():
            kind = "modelled" if line.modelled else "measured"
            yield figure.kind, figure.group, line.name, kind, x, figure.x_label, y, figure.y_label


def as_json(content: Content) -> str:
    """The content as it is, standard JSON: nothing that is not finite."""
    figures = [{**asdict(figure), "title": figure.title} for figure in content.figures]
    told = to_json({**asdict(content), "figures": figures, "summary": content.summary, "schema": 1})
    return json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


BY_SUFFIX = {".html": "html", ".htm": "html", ".md": "markdown", ".csv": "csv", ".json": "json"}


def format_of(path: PurePath) -> str:
    """The format that a file's suffix stands for. Raises ConfigurationError for another one."""
    if path.suffix.lower() not in BY_SUFFIX:
        raise ConfigurationError(
            f"{path}: a report ends in {', '.join(BY_SUFFIX)}, not in {path.suffix or 'nothing'!r}"
        )
    return BY_SUFFIX[path.suffix.lower()]


WRITERS: dict[str, Callable[[Content], str]] = {
    "html": partial(_render, "report.html.j2", autoescape=True),
    "markdown": partial(_render, "report.md.j2", autoescape=False),
    "csv": as_csv,
    "json": as_json,
}
FORMATS = tuple(WRITERS)


def write_report(runs: Sequence[SavedRun], output: Path, format: str) -> None:
    """Write the report over `runs` to `output`, making its folder.

    Of every configuration the newest records are shown, and its history over all runs. `format`: "html", "markdown",
    "csv" or "json". Raises ConfigurationError for another format, a power series that is no JSON, or a file that cannot
    be written.
    """
    if format not in WRITERS:
        raise ConfigurationError(f"{format!r} is no format of a report; take one of {', '.join(FORMATS)}")
    text = WRITERS[format](gather(runs))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"the report cannot be written to {output}: {error.strerror}") from None


WIDTH = 130
MARKED = re.compile(
    r"(?P<begin><!-- (?P<what>table|decision) of (?P<runs>\S.*?) -->\n)"
    r"(?P<table>.*?)(?P<end><!-- end of table -->)",
    re.DOTALL,
)


def write_into(page: Path, run: SavedRun) -> None:
    """Put the tables between the marks that name this run. Raises ConfigurationError where the page has none."""
    named = Path(os.path.relpath(run.path, page.parent)).as_posix()

    def with_table(found: re.Match[str]) -> str:
        is_ours = named in found["runs"].split()
        return f"{found['begin']}{table_of(found, page.parent)}{found['end']}" if is_ours else found[0]

    try:
        text = page.read_text("utf-8")
        if named not in (each for found in MARKED.finditer(text) for each in found["runs"].split()):
            marks = f"<!-- table of {named} --> and <!-- end of table -->"
            raise ConfigurationError(f"{page}: no table of {named}: put the lines {marks} into it")
        page.write_text(MARKED.sub(with_table, text), "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{page}: cannot be read and written as a page: {error}") from None


def table_of(found: re.Match[str], folder: Path) -> str:
    """What should stand between these marks, as a block of text in Markdown; `folder`: that of the page."""
    runs = [read_run(folder / name) for name in found["runs"].split()]
    if found["what"] == "decision":
        lines = [line for line, _ in write_lines(decisions_on(runs), WIDTH)]
    else:
        printed: list[str] = []
        records = [record for run in runs for record in run.records]
        print_table(records, WIDTH, printed.append, colour=False)
        lines = [line for line in printed if line.strip() and not line.startswith("left out")]
        lines += rate_lines(records)
    return "\n".join(["```text", *lines, "```", ""])
