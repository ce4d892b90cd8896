"""The kills in docs/evidence/mutants.md: one table for each suite, written by the suite, and checked against it.

A committed section that differs from what the suite would write fails its test. To rewrite it, run the suite with
MUTANTS=write: `MUTANTS=write pytest tests/mutants tests/engines/test_mutants.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "evidence" / "mutants.md"
REWRITE = "MUTANTS"
HEAD = ("mutant", "what is broken", "where", "demanded", "got")
SHIPPED = "dies on the shipped scenario"


@dataclass(frozen=True)
class Kill:
    """One row: the mutant, what is broken, in which arm, the outcome demanded and the outcome got.

    `shipped`: a shipped scenario on which it dies, as a test of its own holds; None where that is not asked.
    """

    mutant: str
    broken: str
    where: str
    demanded: str
    got: str
    shipped: str | None = None

    def row(self) -> str:
        """As a row of a Markdown table."""
        cells = (self.mutant, self.broken, self.where, self.demanded, self.got, self.shipped)
        return f"| {' | '.join(cell for cell in cells if cell is not None)} |"


def section(kills: Iterable[Kill]) -> str:
    """The table of one suite."""
    rows = list(kills)
    names = [*HEAD, *([SHIPPED] if any(kill.shipped is not None for kill in rows) else [])]
    head = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    return "\n".join([*head, *(kill.row() for kill in rows)])


def read_committed(title: str) -> str:
    """The table under this title as it stands in the document."""
    return "\n".join(line for line in _under(title)[1] if _is_row(line))


def read_shipped(title: str) -> dict[str, str]:
    """Of each mutant under this title, the shipped scenario on which it is committed to die."""
    rows = (line.strip("| ").split(" | ") for line in read_committed(title).splitlines()[2:])
    return {cells[0]: cells[-1] for cells in rows}


def rewriting() -> bool:
    """Whether the environment says that the tables are written anew."""
    return os.environ.get(REWRITE) == "write"


def rewrite_if_asked(title: str, table: str) -> None:
    """Put the table into the document, after the words under its title, where the environment says so."""
    if rewriting():
        before, body, after = _under(title)
        words = "\n".join(line for line in body if not _is_row(line)).strip()
        lines = [*before, "", *words.splitlines(), "", *table.splitlines(), *(["", *after] if after else [])]
        DOCUMENT.write_text("\n".join(lines) + "\n", "utf-8")


def _is_row(line: str) -> bool:
    return line.startswith("|")


def _under(title: str) -> tuple[list[str], list[str], list[str]]:
    """The document's lines up to and with the title, those under it, and those from the next title on."""
    lines = DOCUMENT.read_text("utf-8").splitlines()
    begin = lines.index(f"## {title}") + 1
    end = next((at for at in range(begin, len(lines)) if lines[at].startswith("## ")), len(lines))
    return lines[:begin], lines[begin:end], lines[end:]
