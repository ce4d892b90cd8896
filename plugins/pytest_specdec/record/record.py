"""The record of one gate: what was asked, decoded, judged and measured, and where. One frozen, versioned value.

Its types tell the rest: `hints` those of a part's fields, `type_at` the one at a path.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from functools import cache, partial
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pytest_specdec.record.parts import (
    AcceptancePart,
    AskedPart,
    BaselinePart,
    CoveragePart,
    DetectionPart,
    EnergyPart,
    EnginePart,
    HardwarePart,
    LatencyPart,
    LoadPart,
    MemoryPart,
    RooflinePart,
    SpeedupPart,
    TargetAlonePart,
    ThroughputPart,
    TimesPart,
    VerdictPart,
    WorkloadPart,
)

SCHEMA = 2
GREEN, RED, REGRESSED = "green", "red", "regressed"
PASSING = ("identical", "tie", "consistent")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The test that left the record."""

    test: Annotated[str, "", "its id"] = ""
    file: Annotated[str, "", "where it stands"] = ""
    line: Annotated[int, "", "its first line"] = 0


@dataclass(frozen=True, kw_only=True)
class Record:
    """Of one gate. A part that an engine's fault left empty has null figures."""

    schema: Annotated[int, "", "version of this object: 2"] = SCHEMA
    gate: Annotated[str, "", '"green", "red", or "regressed": right output, but a figure worse than its baseline'] = RED
    asked: Annotated[AskedPart, "", ""] = field(default_factory=AskedPart)
    workload: Annotated[WorkloadPart, "", ""] = field(default_factory=WorkloadPart)
    engine: Annotated[EnginePart, "", ""] = field(default_factory=EnginePart)
    verdict: Annotated[VerdictPart, "", ""] = field(default_factory=VerdictPart)
    coverage: Annotated[CoveragePart, "", ""] = field(default_factory=CoveragePart)
    detection: Annotated[DetectionPart | None, "", "null where red, and on models without a measured table"] = None
    throughput: Annotated[ThroughputPart, "", ""] = field(default_factory=ThroughputPart)
    latency: Annotated[LatencyPart, "", ""] = field(default_factory=LatencyPart)
    acceptance: Annotated[AcceptancePart, "", ""] = field(default_factory=AcceptancePart)
    target_alone: Annotated[TargetAlonePart, "", ""] = field(default_factory=TargetAlonePart)
    speedup: Annotated[SpeedupPart, "", ""] = field(default_factory=SpeedupPart)
    roofline: Annotated[RooflinePart, "", ""] = field(default_factory=RooflinePart)
    energy: Annotated[EnergyPart, "", ""] = field(default_factory=EnergyPart)
    memory: Annotated[MemoryPart, "", ""] = field(default_factory=MemoryPart)
    load: Annotated[LoadPart, "", ""] = field(default_factory=LoadPart)
    times: Annotated[TimesPart, "", ""] = field(default_factory=TimesPart)
    hardware: Annotated[HardwarePart, "", ""] = field(default_factory=HardwarePart)
    baseline: Annotated[BaselinePart | None, "", "null where nothing was compared"] = None
    failures: Annotated[tuple[str, ...], "", "red: what the test's failure said"] = ()
    warnings: Annotated[tuple[str, ...], "", "what to know before comparing the figures"] = ()
    notes: Annotated[tuple[str, ...], "", "what was done to rows of the dataset"] = ()
    place: Annotated[Place, "", ""] = field(default_factory=Place)

    @property
    def red(self) -> bool:
        """Whether the gate is red: it has no speed then."""
        return self.gate == RED

    @property
    def passes(self) -> bool:
        """Whether the verdict does."""
        return self.verdict.outcome in PASSING

    @property
    def shows_speed(self) -> bool:
        """Whether its figures of speed may be seen: green, or red for a limit of its scenario that they miss."""
        drafted = bool(self.acceptance.drafts.value) or not self.asked.speculates
        right = self.passes and all(point.verdict in ("", *PASSING) for point in self.load.sweep.points)
        return not self.red or (right and drafted and bool(self.failures))

    @property
    def judged(self) -> bool:
        """Whether there is a verdict at all; not where an engine failed before."""
        return self.throughput.rounds > 0


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
