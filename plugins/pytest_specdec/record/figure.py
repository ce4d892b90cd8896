"""What a record is made of: parts, and figures, a value or the reason why there is none.

Never zero for what was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        return lambda part: part


Value_co = TypeVar("Value_co", covariant=True)
AnyPart = TypeVar("AnyPart", bound="Part")
NOT_MEASURED = "not measured"
NOT_FINITE = "not a finite number"


@dataclass(frozen=True)
class Figure(Generic[Value_co]):
    """`value`, or None and the `reason`; a reason beside a value is dropped, so that it may be given always."""

    value: Value_co | None = None
    reason: str | None = NOT_MEASURED

    def __post_init__(self) -> None:
        if isinstance(self.value, float) and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)
            object.__setattr__(self, "reason", NOT_FINITE)
        elif self.value is not None:
            object.__setattr__(self, "reason", None)
        elif self.reason is None:
            object.__setattr__(self, "reason", NOT_MEASURED)


NOTHING: Figure[Any] = Figure()


@dataclass(frozen=True)
class Spread:
    """Percentiles of `n` values in one unit; `missing` have none. `reason`: why there are no values at all."""

    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    n: int = 0
    missing: int = 0
    reason: str | None = NOT_MEASURED

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", None if self.n else self.reason or NOT_MEASURED)

    def at(self, percent: str) -> float | None:
        """The percentile of this name, "p50" and so on."""
        value: float | None = getattr(self, percent)
        return value


NO_VALUES = Spread()


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Part:
    """The base of all parts: each is a frozen dataclass, and its fields are given by keyword."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


def missing(part: type[AnyPart], reason: str) -> AnyPart:
    """A part in which nothing is known, every figure for this one reason."""
    blank = part()
    return part(**{each.name: _missing(getattr(blank, each.name), reason) for each in fields(blank)})


def _missing(value: Any, reason: str) -> Any:
    if isinstance(value, Figure):
        return Figure(None, reason)
    if isinstance(value, Spread):
        return Spread(reason=reason)
    return missing(type(value), reason) if isinstance(value, Part) else value
