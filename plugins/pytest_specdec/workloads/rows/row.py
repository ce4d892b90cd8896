"""A row of a data file, what it asks for, and what is said of a row that asks for nothing.

Every value knows where it comes from, so that each error, note and preflight message can point at the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = tuple[str, str]
"""A role (system, user, assistant, or another that the chat template knows) and what it says."""


@dataclass(frozen=True)
class Row:
    """The values of one row by column. `at`: its place in the file, ":17" for a line, " row 17" without lines."""

    at: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Wrong:
    """A row that gives nothing to ask: its place, why, and the remedy."""

    at: str
    why: str


class Malformed(Exception):
    """Raised while a row is read; the message says why it gives nothing to ask, and the remedy."""


@dataclass(frozen=True)
class Item:
    """What one row asks for: a conversation to encode, or a length in tokens to be made up.

    `messages`: the conversation; `templated`: by the chat template, or else its bare text. `left_out`: turns of the
    file that are not part of it, since they stand before the first user turn. `length`: tokens to be made up, 0 for a
    conversation; `blocks`: names of the pieces it is made from, the same name for the same ids. `output_tokens`: how
    long the answer was. `time`: when the request came, in the trace's own unit.
    """

    at: str
    messages: tuple[Message, ...] = ()
    templated: bool = False
    left_out: int = 0
    length: int = 0
    blocks: tuple[int, ...] = ()
    output_tokens: int | None = None
    time: float = 0


def cell(row: Row, column: str, remedy: str) -> Any:
    """The value in `column`. Raises Malformed with the columns that the row has, and the remedy."""
    if column not in row.values:
        known = ", ".join(map(repr, row.values)) or "none"
        raise Malformed(f"no column {column!r}: its columns are {known}; {remedy}")
    return row.values[column]


def text_of(value: Any, name: str) -> str:
    """A text of one character or more. Raises Malformed."""
    if not isinstance(value, str) or not value:
        raise Malformed(f"{name} is not a text of one character or more: give it one")
    return value


def whole(row: Row, column: str, least: int, remedy: str) -> int:
    """A whole number of `least` or more, as a number or, in a CSV file, as digits. Raises Malformed."""
    value = cell(row, column, remedy)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if type(value) is not int or value < least:
        raise Malformed(f"column {column!r} is {value!r}, not a whole number of {least} or more")
    return value
