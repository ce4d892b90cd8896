"""The types of a record's fields, by their path."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache, partial
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

hints: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))
"""The types of a part's fields, with their units and meanings."""


def plain(hint: Any) -> Any:
    """A type without its unit and meaning, and without `| None`."""
    if get_origin(hint) is Annotated or get_origin(hint) in (Union, types.UnionType):
        return plain(get_args(hint)[0])
    return hint


def inner(hint: Any) -> Any:
    """The class behind a type: Figure of Figure[float], tuple of tuple[int, ...]."""
    return get_origin(plain(hint)) or plain(hint)


def type_at(part: type[Any], path: str) -> Any:
    """The type of "speedup.ratio" in a record; `Any` inside of what is no part."""
    name, _, rest = path.partition(".")
    hint = hints(part)[name]
    if not rest:
        return hint
    found = inner(hint)
    return type_at(found, rest) if is_dataclass(found) and isinstance(found, type) else Any
