"""The table of saved runs in a page, between two marks of which the first names the runs: written, never by hand.

`<!-- table of RUN … -->` stands for every gate of the runs, `<!-- speculation of RUN … -->` for those that speculate,
`<!-- decision of RUN … -->` for what they decide.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.saved import SavedRun, read_run
from pytest_specdec.record import Record
from pytest_specdec.report.decision import write_lines
from pytest_specdec.report.findings import decisions_on
from pytest_specdec.report.table import print_table

WIDTH = 130
MARKED = re.compile(
    r"(?P<begin><!-- (?P<what>table|speculation|decision) of (?P<runs>\S.*?) -->\n)"
    r"(?P<table>.*?)(?P<end><!-- end of table -->)",
    re.DOTALL,
)


def write_into(page: Path, run: SavedRun) -> None:
    """Put the tables between the marks that name this run. Raises ConfigurationError where the page has none."""
    try:
        _write_into(page, run)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{page}: cannot be read and written as a page: {error}") from None


def _write_into(page: Path, run: SavedRun) -> None:
    text, named = page.read_text("utf-8"), Path(os.path.relpath(run.path, page.parent)).as_posix()
    if named not in (each for found in MARKED.finditer(text) for each in found["runs"].split()):
        raise ConfigurationError(
            f"{page}: no table of {named}: put the lines <!-- table of {named} --> and <!-- end of table --> into it"
        )
    page.write_text(MARKED.sub(lambda found: _with_table(found, named, page.parent), text), "utf-8")


def _with_table(found: re.Match[str], named: str, folder: Path) -> str:
    return f"{found['begin']}{table_of(found, folder)}{found['end']}" if named in found["runs"].split() else found[0]


def table_of(found: re.Match[str], folder: Path) -> str:
    """What should stand between these marks, as a block of text in Markdown; `folder`: that of the page."""
    runs = [read_run(folder / name) for name in found["runs"].split()]
    if found["what"] == "decision":
        lines = [line for line, _ in write_lines(decisions_on(runs), WIDTH)]
    else:
        records = [record for run in runs for record in run.records]
        lines = _print([record for record in records if found["what"] == "table" or record.asked.speculates])
    return "\n".join(["```text", *lines, "```", ""])


def _print(records: Sequence[Record]) -> list[str]:
    lines: list[str] = []
    print_table(records, WIDTH, lines.append, colour=False)
    return [line for line in lines if line.strip() and not line.startswith("left out")]
