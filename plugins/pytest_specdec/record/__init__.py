"""The record of one gate: what was asked, decoded, judged and measured, and where. One frozen, versioned value.

It becomes plain JSON and comes back by its types alone: no key is written down twice. What it is made of: `parts`.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pytest_specdec.record import parts
from pytest_specdec.record.figure import NOTHING as NOTHING
from pytest_specdec.record.figure import Figure as Figure
from pytest_specdec.record.figure import Part
from pytest_specdec.record.figure import Spread as Spread
from pytest_specdec.record.figure import missing as missing

SCHEMA = 2
GREEN, RED, REGRESSED, UNJUDGED = "green", "red", "regressed", "unjudged"
CONSISTENT = "consistent"  # of samples: nothing is claimed of single tokens
PASSING = ("identical", "tie", CONSISTENT)
NOT_JUDGED = "not judged"
HOLDING = (*PASSING, NOT_JUDGED)

Value = TypeVar("Value")
Reader = Callable[[Any], Any]


class Place(Part):
    """The test that left the record."""

    test: Annotated[str, "its id"] = ""
    file: Annotated[str, "where it stands"] = ""
    line: Annotated[int, "its first line"] = 0


class Record(Part):
    """Of one gate. A part that an engine's fault left empty has null figures."""

    schema: Annotated[int, "version of this object: 2"] = SCHEMA
    gate: Annotated[
        str, '"green", "red", "regressed": nothing but a figure worse than its baseline; "unjudged": measured alone'
    ] = RED
    asked: parts.AskedPart = parts.AskedPart()
    workload: parts.WorkloadPart = parts.WorkloadPart()
    engine: parts.EnginePart = parts.EnginePart()
    verdict: parts.VerdictPart = parts.VerdictPart()
    coverage: parts.CoveragePart = parts.CoveragePart()
    detection: Annotated[parts.DetectionPart | None, "null where red, and on models without a measured table"] = None
    throughput: parts.ThroughputPart = parts.ThroughputPart()
    latency: parts.LatencyPart = parts.LatencyPart()
    acceptance: parts.AcceptancePart = parts.AcceptancePart()
    answers: parts.AnswersPart = parts.AnswersPart()
    target_alone: parts.TargetAlonePart = parts.TargetAlonePart()
    speedup: parts.SpeedupPart = parts.SpeedupPart()
    roofline: parts.RooflinePart = parts.RooflinePart()
    energy: parts.EnergyPart = parts.EnergyPart()
    memory: parts.MemoryPart = parts.MemoryPart()
    load: parts.LoadPart = parts.LoadPart()
    times: parts.TimesPart = parts.TimesPart()
    hardware: parts.HardwarePart = parts.HardwarePart()
    baseline: Annotated[parts.BaselinePart | None, "null where nothing was compared"] = None
    failures: Annotated[tuple[str, ...], "red: what the test's failure said"] = ()
    warnings: Annotated[tuple[str, ...], "what to know before comparing the figures"] = ()
    notes: Annotated[tuple[str, ...], "what was done to rows of the dataset"] = ()
    place: Place = Place()

    @property
    def red(self) -> bool:
        """Whether the gate is red: it has no speed then."""
        return self.gate == RED

    @property
    def passes(self) -> bool:
        """Whether the verdict does."""
        return self.verdict.outcome in PASSING

    @property
    def holds(self) -> bool:
        """Whether nothing is known to be wrong with its output: the verdict passes, or none was wanted."""
        return self.verdict.outcome in HOLDING

    @property
    def unjudged_in_words(self) -> str:
        """Why no verdict was wanted, and how many answers are the target's own; empty where tokens were judged."""
        verdict = self.verdict
        if verdict.outcome != NOT_JUDGED:
            return ""
        of, same = sum(verdict.counts.values()), verdict.counts.get("identical")
        compared = "no answer was compared" if same is None else f"{same} of {of} answers are the target's own"
        return f"{self.asked.unjudged}; {compared}"

    @property
    def shows_speed(self) -> bool:
        """Whether its figures of speed may be seen: not red, or red for a limit of its scenario that they miss."""
        drafted = bool(self.acceptance.drafts.value) or not self.asked.speculates
        right = self.holds and all(point.verdict in ("", *HOLDING) for point in self.load.sweep.points)
        return not self.red or (right and drafted and bool(self.failures))

    @property
    def judged(self) -> bool:
        """Whether there is a verdict at all; not where an engine failed before."""
        return self.throughput.rounds > 0

    @property
    def drafting_in_words(self) -> str:
        """Where drafting is not simply what was named: an alias, what the engine made of it, another vocabulary."""
        asked, details = self.asked, self.engine.details
        named, tokenizer = {"method": asked.method, "gamma": asked.gamma}, str(details.get("draft_tokenizer"))
        made = details.get("speculation") or named
        words = {
            f"named {asked.named_method}": asked.named_method not in (None, asked.method),
            f"the engine drafts {made['gamma']} tokens by {made['method']}": made != named,
            tokenizer: "in common" in tokenizer,
        }
        return ", ".join(each for each, differs in words.items() if differs)


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
    if isinstance(value, Enum):
        value = value.value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if isinstance(value, (str, int, float)) else str(value)


def from_json(told: Mapping[str, Any]) -> Record:
    """The record that was written. Raises ValueError for one of another schema, and for what is no number."""
    schema = told.get("schema", 1)
    if schema != SCHEMA:
        why = "written before 0.1.0" if schema == 1 else "which this version is too old for: install a newer one"
        raise ValueError(f"a record of schema {schema}, {why}")
    return part_from(Record, told)


def part_from(part: type[Value], told: Mapping[str, Any]) -> Value:
    """A part of these keys; what is left out has its default, what is unknown is passed over."""
    return part(**{name: read(told[name]) for name, read in readers(part).items() if name in told})


hints: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))
"""The types of a part's fields, with their units and meanings."""


def _reader(hint: Any) -> Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _reader(arguments[0])
    if origin is Figure:
        return partial(_figure, _reader(arguments[0]))
    if origin in (Union, types.UnionType):
        return partial(_optional, _reader(arguments[0]))
    if origin is tuple:
        each = _reader(arguments[0])
        return tuple if each in (_plain, _number) else lambda values: tuple(map(each, values))  # of rounds, long ones
    if origin is Mapping:
        return dict
    plain = _number if hint in (int, float) else _plain
    return partial(part_from, hint) if is_dataclass(hint) and isinstance(hint, type) else plain


readers: Callable[[Any], dict[str, Reader]] = cache(
    lambda part: {name: _reader(hint) for name, hint in hints(part).items()}
)


def _plain(value: Any) -> Any:
    return value


def _number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise ValueError(f"{value!r} is no number")
    return value


def _optional(read: Reader, value: Any) -> Any:
    return None if value is None else read(value)


def _figure(read: Reader, told: Mapping[str, Any]) -> Figure[Any]:
    return Figure(_optional(read, told.get("value")), told.get("reason"))
