"""Rows of a file, one by one: CSV, JSON and JSONL, Parquet, or a dataset of the Hugging Face Hub.

Each row comes with its place. Text files are read line by line, so that a long trace need not be read to its end.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.rows.row import Row, Wrong

POINTER = b"version https://git-lfs.github.com/spec/v1"


def readable(path: Path) -> None:
    """Raise ConfigurationError unless the file can be opened and holds data."""
    try:
        with path.open("rb") as file:
            start = file.read(len(POINTER))
    except FileNotFoundError:
        raise ConfigurationError(
            f"no such file {path}: the path is relative to the folder of the scenario file"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}): name a readable file") from None
    if start == POINTER:
        raise ConfigurationError(f"{path} is an LFS pointer, not data: git lfs pull")


def lines(path: Path) -> Iterator[str]:
    """Each line with its end; a byte order mark is left out. Raises ConfigurationError where it is not UTF-8."""
    readable(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ConfigurationError(
                    f"{path}:{number} is not UTF-8 at byte {error.start} of the line: save the file as UTF-8"
                ) from None


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


_BEGIN = re.compile(r"\s*\[\s*")
_NEXT = re.compile(r"\s*,\s*")
_END = re.compile(r"\s*\]")


def json_lines(path: Path) -> Iterator[Row | Wrong]:
    """The object on each line; blank lines are passed over."""
    for number, line in enumerate(lines(path), start=1):
        if line.strip():
            yield _line(f":{number}", line)


def _line(at: str, line: str) -> Row | Wrong:
    try:
        return _row(at, json.loads(line))
    except json.JSONDecodeError as error:
        return Wrong(at, f"not JSON ({error.msg}): write one object a line")


def _row(at: str, value: Any) -> Row | Wrong:
    return Row(at, value) if isinstance(value, dict) else Wrong(at, "not an object: write its values under names")


def json_list(path: Path) -> Iterator[Row | Wrong]:
    """The objects of the list that the file holds, each parsed when it is reached.

    Raises ConfigurationError where the file is no list.
    """
    text = "".join(lines(path))
    begin = _BEGIN.match(text)
    if begin is None:
        raise ConfigurationError(f'{path} is not a list of objects: for one object a line write format = "jsonl"')
    at, line = begin.end(), 1 + text.count("\n", 0, begin.end())
    while _END.match(text, at) is None:
        value, end = _value(path, text, at)
        yield _row(f":{line}", value)
        comma = _NEXT.match(text, end)
        if comma is None and _END.match(text, end) is None:
            raise _not_a_list(path, text, end)
        after = comma.end() if comma else end
        line += text.count("\n", at, after)
        at = after


def _value(path: Path, text: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}:{error.lineno} is not JSON ({error.msg}): correct the file") from None


def _not_a_list(path: Path, text: str, at: int) -> ConfigurationError:
    line = 1 + text.count("\n", 0, at)
    return ConfigurationError(f"{path}:{line} is not JSON (Expecting ',' or ']'): correct the file")


INSTALL = "pip install 'pytest-specdec[datasets]'"
_BATCH = 256


def parquet_rows(path: Path) -> Iterator[Row | Wrong]:
    """Each row, counted from 1. Raises ConfigurationError without pyarrow, or where the file is not Parquet."""
    readable(path)
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigurationError(f"{path} needs pyarrow, which is not installed: {INSTALL}") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f" row {number}", values)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{path} is not Parquet ({_first_line(error)}): name a .parquet file") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def hub_rows(name: str, config: str | None, split: str, revision: str | None) -> Iterator[Row | Wrong]:
    """Each row of the split, counted from 1.

    Raises ConfigurationError without the library, without a network, and for a name, config or split that is none.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise ConfigurationError(f"{name} needs the library datasets, which is not installed: {INSTALL}") from None
    try:
        rows = load_dataset(name, config, split=split, revision=revision, streaming=True)
        for number, values in enumerate(rows, start=1):
            yield Row(f" row {number}", values)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigurationError(_unreachable(name, error)) from None


def _unreachable(name: str, error: Exception) -> str:
    why = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (
        f"{name} cannot be read ({type(error).__name__}: {why}): check name, config, split and network, or fetch it"
        ' once and write format = "parquet" or "jsonl"'
    )
