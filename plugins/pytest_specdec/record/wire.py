"""A record as plain JSON and back, by its types alone: no key is written down twice."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pytest_specdec.record.figure import Figure
from pytest_specdec.record.record import SCHEMA, Record, hints
from pytest_specdec.record.schema_1 import from_schema_1

Part = TypeVar("Part")


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


def from_json(told: Mapping[str, Any]) -> Record:
    """The record that was written, of this schema or of schema 1. Raises ValueError for a later one."""
    schema = told.get("schema", 1)
    if schema == 1:
        return part_from(Record, from_schema_1(told))
    if schema != SCHEMA:
        raise ValueError(f"a record of schema {schema}; this version reads up to {SCHEMA}: install a newer one")
    return part_from(Record, told)


def part_from(part: type[Part], told: Mapping[str, Any]) -> Part:
    """A part of these keys; what is left out has its default, what is unknown is passed over."""
    return part(**{name: read(hint, told[name]) for name, hint in hints(part).items() if name in told})


def read(hint: Any, value: Any) -> Any:
    """A plain value as this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return read(arguments[0], value)
    if origin is Figure:
        return _figure(arguments[0], value)
    if origin in (Union, types.UnionType):
        return None if value is None else read(arguments[0], value)
    if origin is tuple:
        return tuple(read(arguments[0], each) for each in value)
    if is_dataclass(hint) and isinstance(hint, type):
        return part_from(hint, value)
    return value


def _figure(hint: Any, told: Mapping[str, Any]) -> Figure[Any]:
    value = told.get("value")
    return Figure(None if value is None else read(hint, value), told.get("reason"))
