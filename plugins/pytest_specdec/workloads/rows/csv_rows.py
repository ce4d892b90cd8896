"""Comma-separated values under a line of column names. Cells are texts; a row may go over several lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.rows.row import Row, Wrong
from pytest_specdec.workloads.rows.text_lines import lines


def csv_rows(path: Path) -> Iterator[Row | Wrong]:
    """Each row at the line on which it begins; CRLF and a missing last line end are fine.

    Raises ConfigurationError where column names are missing or double, and where a cell is longer than Python's csv
    allows.
    """
    numbered = _cells(path)
    _, names = next(numbered, (1, []))
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"{path}:1 does not name each column once: write a line of column names")
    for number, cells in numbered:
        if len(cells) == len(names):
            yield Row(f":{number}", dict(zip(names, cells, strict=True)))
        else:
            yield Wrong(
                f":{number}", f"{len(cells)} cells under {len(names)} column names: put texts with commas in quotes"
            )


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines(path), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ConfigurationError(f"{path}:{number} is not CSV ({error}): correct it, or write JSONL") from None
        if cells is None:
            return
        if cells:
            yield number, cells
