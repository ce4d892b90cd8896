"""The record of one gate: what was asked, decoded, judged and measured, and where. One frozen, versioned value.

It becomes plain JSON and comes back by its types alone: no key is written down twice. Records of schema 1, an object of
111 flat keys, are read as those of schema 2: which key went where is one table. What the record is made of: `parts`.
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
PASSING = ("identical", "tie", "consistent")
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
    """The record that was written, of this schema or of schema 1. Raises ValueError for a later one, or no number."""
    schema = told.get("schema", 1)
    if schema not in (1, SCHEMA):
        raise ValueError(f"a record of schema {schema}; this version reads up to {SCHEMA}: install a newer one")
    return part_from(Record, from_schema_1(told) if schema == 1 else told)


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


def plain(hint: Any) -> Any:
    """A type without its unit and meaning, and without `| None`."""
    if get_origin(hint) in (Annotated, Union, types.UnionType):
        return plain(get_args(hint)[0])
    return hint


def inner(hint: Any) -> Any:
    """The class behind a type: Figure of Figure[float], tuple of tuple[int, ...]."""
    return get_origin(plain(hint)) or plain(hint)


NOT_TOLD = "schema 1 does not tell it"
FLAT = {
    "asked": "scenario scenario_digest engine engine_key target draft method gamma dtype parallelism",
    "workload": "requests concurrency prompt_tokens skipped_rows",
    "throughput": "rounds rounds_ended_by warmup_rounds warmup_steady tokens seconds tokens_per_second "
    "tokens_per_second_interval tokens_per_second_interval_share prefix_cache_hits per_round",
    "latency": "ttft_s tpot_s itl_s chunk_gap_s e2e_s queue_s tokens_per_chunk",
    "acceptance": "drafts draft_tokens accepted_tokens accepted_per_position delivered_tokens_per_step "
    "delivered_tokens_per_step_per_request discarded_tokens delivered_explained",
    "speedup.model": "acceptance_per_token target_step_s draft_step_s verify_step_s draft_cost_ratio "
    "verify_cost_ratio best_gamma_latency break_even_acceptance",
    "memory": "peak_gpu_bytes peak_gpu_bytes_method peak_host_bytes weights_bytes kv_cache_bytes",
}
"""Part → its keys that schema 1 had at its top."""
NESTED = ("verdict", "roofline", "energy", "load")
"""Parts whose keys stood in them then too, but for those below."""
SAMPLING = ("samples", "look", "plan", "power_statement", "positions")
CALIBRATION = ("tokens", "near_ties", "disagreements", "compared", "rescoring_over_decoding")

MOVED: dict[str, str] = {
    **{name: f"{part}.{name}" for part, names in FLAT.items() for name in names.split()},
    "gate": "gate",
    "complaints": "failures",
    "warnings": "warnings",
    "workload_notes": "notes",
    "load_asked": "asked.load",
    "workload": "workload.digest",
    "versions": "engine.versions",
    "device": "engine.device",
    "engine_details": "engine.details",
    "verdict.max_gap": "verdict.max_gap_logits",
    "verdict.noise_floor": "verdict.noise_floor_logits",
    "verdict.control.largest_gap": "verdict.calibration.largest_gap_logits",
    "verdict.control.dtype_spacing": "verdict.calibration.ulp_logits",
    "verdict.control.gaps_in_spacings": "verdict.calibration.gaps_in_ulps",
    **{f"verdict.control.{name}": f"verdict.calibration.{name}" for name in CALIBRATION},
    **{f"verdict.{name}": f"verdict.sampling.{name}" for name in SAMPLING},
    "round_tokens": "throughput.per_round.tokens",
    "round_seconds": "throughput.per_round.seconds",
    "acceptance_rate": "acceptance.rate",
    "mean_accepted_length": "acceptance.mean_accepted_length",
    "mean_accepted_length_without_bonus": "acceptance.mean_accepted_length_without_bonus",
    "marginal_acceptance": "acceptance.marginal",
    "conditional_acceptance": "acceptance.conditional",
    "acceptance_rate_per_request": "acceptance.rate_per_request",
    "target_rounds": "target_alone.rounds",
    "target_drift": "target_alone.drift",
    "speedup": "speedup.ratio",
    "speedup_interval": "speedup.interval",
    "expected_tokens_per_round": "speedup.model.expected_tokens_per_step",
    "round_s": "speedup.model.step_s",
    "predicted_speedup": "speedup.model.predicted",
    "predicted_speedup_with_verify_cost": "speedup.model.predicted_with_verify_cost",
    "speedup_residual": "speedup.model.residual",
    "best_gamma_energy": "speedup.model.best_gamma_energy",
    "decomposition": "speedup.decomposition",
    "series": "energy.series",
    "failed_requests": "load.failed",
    "goodput": "load.goodput.share",
    "goodput_requests_per_second": "load.goodput.requests_per_second",
    "goodput_at_best": "load.goodput.at_best",
    "slo": "load.goodput.slo",
    "slo_missed": "load.goodput.missed",
    "rate_sweep": "load.sweep.points",
    "target_rate_sweep": "load.sweep.target_points",
    "sustained_share": "load.sweep.sustained_share",
    "saturation_rate": "load.sweep.saturation_per_second",
    "target_saturation_rate": "load.sweep.target_saturation_per_second",
    "hardware": "hardware",
    "baseline": "baseline",
    "baseline.complaints": "baseline.failures",
    **{place: place for part in NESTED for place in (f"{part}.{name}" for name in hints(inner(hints(Record)[part])))},
}
"""Old place → new place. What else `load` had is `load.played`; reasons stand in the figure itself now."""

REASONS: dict[str, tuple[str, ...]] = {
    "acceptance": ("acceptance_reason",),
    "acceptance.marginal": ("per_position_reason",),
    "acceptance.conditional": ("per_position_reason",),
    "acceptance.delivered_tokens_per_step_per_request": ("delivered_tokens_per_step_reason",),
    "acceptance.discarded_tokens": ("acceptance_reason", "delivered_tokens_per_step_reason"),
    "speedup": ("predicted_speedup_reason",),
    "speedup.interval": ("speedup_reason",),
    "throughput": ("tokens_per_second_reason",),
    "roofline": ("roofline.memory_bound_reason",),
    "energy": ("energy.reason",),
    "load": ("load.reason",),
    "load.completed_per_second": ("load.completed_reason",),
    "load.goodput": ("goodput_reason",),
    "load.sweep": ("saturation_reason",),
    "load.sweep.target_saturation_per_second": ("target_saturation_reason",),
}
"""New place, or a part → the old keys that, beside its own, say why its figures are null; the nearest place counts."""


def from_schema_1(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same record as JSON of schema 2."""
    made: dict[str, Any] = {}
    for old, new in MOVED.items():
        found, value = _at(told, old)
        if found and _is_figure(Record, new):
            _put(made, new, {"value": value, "reason": _reason(told, old, new) if value is None else None})
        elif value is not None:
            _put(made, new, value)
    for each in made["verdict"].get("findings", ()):
        each |= {"gap_logits": {"value": each.get("gap"), "reason": NOT_TOLD}, "hints": each.get("suspects", ())}
    made.setdefault("gate", GREEN if made["verdict"]["outcome"] in PASSING else RED)
    if isinstance(load := told.get("load"), Mapping):
        asked = {key: each for key, each in load.items() if f"load.{key}" not in MOVED and not key.endswith("reason")}
        made["load"]["played"] = asked
    if told.get("speedup") and told.get("tokens_per_second"):
        rate = told["tokens_per_second"] / told["speedup"]
        _put(made, "target_alone.tokens_per_second", {"value": rate})
    return made


def _is_figure(part: Any, path: str) -> bool:
    """Whether a record has a figure at "speedup.ratio"; what is no part has none."""
    name, _, rest = path.partition(".")
    found = inner(hints(part)[name])
    return _is_figure(found, rest) if rest and is_dataclass(found) else found is Figure


def _reason(told: Mapping[str, Any], old: str, new: str) -> str:
    """Why the figure of this old key, at its new place, is null, in the old record's words."""
    place = new
    while place not in REASONS and "." in place:
        place = place.rpartition(".")[0]
    said = (_at(told, key)[1] for key in (f"{old}_reason", *REASONS.get(place, ())))
    return next((str(reason) for reason in said if reason), NOT_TOLD)


def _at(told: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    """Whether the record has this path, and what lies there."""
    value: Any = told
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return False, None
        value = value[key]
    return True, value


def _put(made: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for part in above:
        made = made.setdefault(part, {})
    made[last] = value
