"""JSON, as one object a line, or as one list of objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.rows.row import Row, Wrong
from pytest_specdec.workloads.rows.text_lines import lines

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
