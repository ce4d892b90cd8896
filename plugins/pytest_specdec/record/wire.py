"""A record as plain JSON and back, by its types alone: no key is written down twice."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pytest_specdec.record.figure import Figure
from pytest_specdec.record.record import SCHEMA, Record, hints
from pytest_specdec.record.schema_1 import from_schema_1

Part = TypeVar("Part")
Reader = Callable[[Any], Any]
Parts = Mapping[str, Collection[str]]


def to_json(value: Any) -> Any:
    """Plain values: a figure with its value or with the reason, tuples as lists, what is not finite as null."""
    if isinstance(value, Figure):
        return {"value": None, "reason": value.reason} if value.value is None else {"value": to_json(value.value)}
    if is_dataclass(value):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def from_json(told: Mapping[str, Any], parts: Parts | None = None) -> Record:
    """The record that was written, of this schema or of schema 1. Raises ValueError for a later one.

    `parts`: those that are read, and which fields of each, () for all of them; the others are as if they were missing.
    """
    schema = told.get("schema", 1)
    if schema not in (1, SCHEMA):
        raise ValueError(f"a record of schema {schema}; this version reads up to {SCHEMA}: install a newer one")
    told = from_schema_1(told) if schema == 1 else told
    return part_from(Record, told if parts is None else _only(parts, told))


def _only(parts: Parts, told: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: told[name] for name in parts if name in told}
    return {
        name: {key: part[key] for key in parts[name] if key in part} if parts[name] else part
        for name, part in kept.items()
    }


def part_from(part: type[Part], told: Mapping[str, Any]) -> Part:
    """A part of these keys; what is left out has its default, what is unknown is passed over."""
    return part(**{name: read(told[name]) for name, read in _readers(part).items() if name in told})


def _read_by_name(part: type[Any]) -> dict[str, Reader]:
    return {name: _reader(hint) for name, hint in hints(part).items()}


_readers: Callable[[Any], dict[str, Reader]] = cache(_read_by_name)


def _reader(hint: Any) -> Reader:
    """What makes a value of this type of a plain one; worked out once for each type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _reader(arguments[0])
    if origin is Figure:
        return partial(_figure, _reader(arguments[0]))
    if origin in (Union, types.UnionType):
        return partial(_optional, _reader(arguments[0]))
    if origin is tuple:
        each = _reader(arguments[0])
        return tuple if each is _plain else lambda values: tuple(map(each, values))
    return partial(part_from, hint) if is_dataclass(hint) and isinstance(hint, type) else _plain


def _plain(value: Any) -> Any:
    return value


def _optional(read: Reader, value: Any) -> Any:
    return None if value is None else read(value)


def _figure(read: Reader, told: Mapping[str, Any]) -> Figure[Any]:
    return Figure(_optional(read, told.get("value")), told.get("reason"))
