"""The table of a saved run in a page, between two marks of which the first names the run: written, never by hand."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.saved import SavedRun
from pytest_specdec.report.table import print_table

WIDTH = 130
MARKED = re.compile(
    r"(?P<begin><!-- table of (?P<run>\S+) -->\n)(?P<table>.*?)(?P<end><!-- end of table -->)", re.DOTALL
)


def write_into(page: Path, run: SavedRun) -> None:
    """Put the run's table between the marks that name it. Raises ConfigurationError where the page has none."""
    text, named = page.read_text("utf-8"), Path(os.path.relpath(run.path, page.parent)).as_posix()
    if named not in (found["run"] for found in MARKED.finditer(text)):
        raise ConfigurationError(
            f"{page}: no table of {named}: put the lines <!-- table of {named} --> and <!-- end of table --> into it"
        )
    page.write_text(MARKED.sub(lambda found: _with_table(found, named, run), text), "utf-8")


def _with_table(found: re.Match[str], named: str, run: SavedRun) -> str:
    if found["run"] != named:
        return found[0]
    return f"{found['begin']}{table_text(run)}{found['end']}"


def table_text(run: SavedRun) -> str:
    """The run's table as a block of text in Markdown."""
    lines: list[str] = []
    print_table(run.records, WIDTH, lines.append, colour=False)
    kept = [line for line in lines if line.strip() and not line.startswith("left out")]
    return "\n".join(["```text", *kept, "```", ""])
