"""A record as plain JSON and back, by its types alone: no key is written down twice.

Records of schema 1, an object of 111 flat keys, are read as those of schema 2: which key went where is one table.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pytest_specdec.record.figure import Figure
from pytest_specdec.record.record import GREEN, PASSING, RED, SCHEMA, Record, hints, inner, type_at

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


NOT_TOLD = "schema 1 does not tell it"
ENERGY = (
    *("joules", "joules_per_token", "net_joules_per_token", "mean_watts", "idle_watts", "method", "scope", "seconds"),
    *("step_seconds", "relative_error", "joules_each_round", "temperature_celsius", "flags"),
)
MODEL = (
    *("acceptance_per_token", "target_step_s", "draft_step_s", "verify_step_s", "draft_cost_ratio"),
    *("verify_cost_ratio", "best_gamma_latency", "break_even_acceptance"),
)
ROOFLINE = (
    *("bytes_per_step", "flops_per_step", "flops_per_byte", "bytes_per_second", "ridge_flops_per_byte"),
    *("memory_bound", "roof_share"),
)
LATENCY = ("ttft_s", "tpot_s", "itl_s", "chunk_gap_s", "e2e_s", "queue_s", "tokens_per_chunk")
ASKED = (
    *("scenario", "scenario_digest", "engine", "engine_key", "target", "draft", "method", "gamma", "dtype"),
    "parallelism",
)
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens", "accepted_per_position")
THROUGHPUT = (
    *("rounds", "rounds_ended_by", "warmup_rounds", "warmup_steady", "tokens", "seconds", "tokens_per_second"),
    *("tokens_per_second_interval", "tokens_per_second_interval_share", "prefix_cache_hits", "per_round"),
)
MEMORY = ("peak_gpu_bytes", "peak_gpu_bytes_method", "peak_host_bytes", "weights_bytes", "kv_cache_bytes")
LOAD = ("requests_left_out", "asked_per_second", "sent_per_second", "completed_per_second", "send_lag_s", "flags")
DELIVERED = ("delivered_tokens_per_step", "delivered_tokens_per_step_per_request", "discarded_tokens")
CALIBRATION = ("tokens", "near_ties", "disagreements", "compared", "rescoring_over_decoding")
SAMPLING = ("samples", "look", "plan", "power_statement", "positions")

MOVED: dict[str, str] = {
    "gate": "gate",
    "complaints": "failures",
    "warnings": "warnings",
    "workload_notes": "notes",
    **{name: f"asked.{name}" for name in ASKED},
    "load_asked": "asked.load",
    "workload": "workload.digest",
    **{name: f"workload.{name}" for name in ("requests", "concurrency", "prompt_tokens", "skipped_rows")},
    "versions": "engine.versions",
    "device": "engine.device",
    "engine_details": "engine.details",
    **{f"verdict.{name}": f"verdict.{name}" for name in ("outcome", "detail", "counts", "near_ties", "findings")},
    "verdict.reference_versions": "verdict.reference_versions",
    "verdict.max_gap": "verdict.max_gap_logits",
    "verdict.noise_floor": "verdict.noise_floor_logits",
    "verdict.control.largest_gap": "verdict.calibration.largest_gap_logits",
    "verdict.control.dtype_spacing": "verdict.calibration.ulp_logits",
    "verdict.control.gaps_in_spacings": "verdict.calibration.gaps_in_ulps",
    **{f"verdict.control.{name}": f"verdict.calibration.{name}" for name in CALIBRATION},
    **{f"verdict.{name}": f"verdict.sampling.{name}" for name in SAMPLING},
    **{name: f"throughput.{name}" for name in THROUGHPUT},
    "round_tokens": "throughput.per_round.tokens",
    "round_seconds": "throughput.per_round.seconds",
    **{name: f"latency.{name}" for name in LATENCY},
    **{name: f"acceptance.{name}" for name in (*COUNTERS, *DELIVERED, "delivered_explained")},
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
    **{name: f"speedup.model.{name}" for name in MODEL},
    "expected_tokens_per_round": "speedup.model.expected_tokens_per_step",
    "round_s": "speedup.model.step_s",
    "predicted_speedup": "speedup.model.predicted",
    "predicted_speedup_with_verify_cost": "speedup.model.predicted_with_verify_cost",
    "speedup_residual": "speedup.model.residual",
    "best_gamma_energy": "speedup.model.best_gamma_energy",
    "decomposition": "speedup.decomposition",
    **{f"roofline.{name}": f"roofline.{name}" for name in ROOFLINE},
    **{f"energy.{name}": f"energy.{name}" for name in ENERGY},
    "series": "energy.series",
    **{name: f"memory.{name}" for name in MEMORY},
    **{f"load.{name}": f"load.{name}" for name in LOAD},
    "load.latency_over_target": "load.latency_over_target",
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
}
"""Old place → new place. What else `load` had is `load.played`; reasons stand in the figure itself now."""

REASONS: dict[str, tuple[str, ...]] = {
    "throughput": ("tokens_per_second_reason",),
    "acceptance": ("acceptance_reason",),
    "acceptance.marginal": ("per_position_reason",),
    "acceptance.conditional": ("per_position_reason",),
    "acceptance.rate_per_request": ("acceptance_rate_per_request_reason",),
    "acceptance.delivered_tokens_per_step": ("delivered_tokens_per_step_reason",),
    "acceptance.delivered_tokens_per_step_per_request": ("delivered_tokens_per_step_reason",),
    "acceptance.discarded_tokens": ("discarded_tokens_reason", "acceptance_reason", "delivered_tokens_per_step_reason"),
    "target_alone.drift": ("target_drift_reason",),
    "speedup": ("predicted_speedup_reason",),
    "speedup.ratio": ("speedup_reason",),
    "speedup.interval": ("speedup_interval_reason", "speedup_reason"),
    "speedup.model.best_gamma_energy": ("best_gamma_energy_reason",),
    "speedup.decomposition": ("decomposition_reason",),
    "roofline": ("roofline.memory_bound_reason",),
    "roofline.bytes_per_second": ("roofline.bytes_per_second_reason", "roofline.memory_bound_reason"),
    "energy": ("energy.reason",),
    "energy.series": ("series_reason",),
    "memory.peak_gpu_bytes": ("peak_gpu_bytes_reason",),
    "memory.peak_host_bytes": ("peak_host_bytes_reason",),
    "load": ("load.reason",),
    "load.completed_per_second": ("load.completed_reason",),
    "load.latency_over_target": ("load.latency_over_target_reason",),
    "load.goodput": ("goodput_reason",),
    "load.sweep": ("saturation_reason",),
    "load.sweep.target_saturation_per_second": ("target_saturation_reason",),
}
"""New place, or a part → the old keys that say why its figures are null; the nearest place counts."""


def from_schema_1(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same record as JSON of schema 2."""
    made: dict[str, Any] = {}
    for old, new in MOVED.items():
        found, value = _at(told, old)
        if not found or (value is None and not _is_figure(new)):
            continue
        _put(made, new, _old_figure(told, new, value) if _is_figure(new) else _convert_list(new, value))
    made.setdefault("gate", GREEN if made["verdict"]["outcome"] in PASSING else RED)
    if isinstance(load := told.get("load"), Mapping):
        made["load"]["played"] = {key: value for key, value in load.items() if not _load_keeps(key)}
    if told.get("speedup") and told.get("tokens_per_second"):
        rate = told["tokens_per_second"] / told["speedup"]
        _put(made, "target_alone.tokens_per_second", {"value": rate})
    return made


def _load_keeps(key: str) -> bool:
    return f"load.{key}" in MOVED or key.endswith("reason")


def _convert_list(new: str, value: Any) -> Any:
    """What changed inside of a list."""
    if new != "verdict.findings":
        return value
    return [
        {
            **finding,
            "gap_logits": {"value": finding.get("gap"), "reason": NOT_TOLD},
            "hints": finding.get("suspects", ()),
        }
        for finding in value
    ]


def _is_figure(new: str) -> bool:
    return inner(type_at(Record, new)) is Figure


def _old_figure(told: Mapping[str, Any], new: str, value: Any) -> dict[str, Any]:
    return {"value": value, "reason": None if value is not None else reason_of(told, new)}


def reason_of(told: Mapping[str, Any], new: str) -> str:
    """Why the figure at this new place is null, in the old record's words."""
    place = new
    while place not in REASONS and "." in place:
        place = place.rpartition(".")[0]
    said = (_at(told, old)[1] for old in REASONS.get(place, ()))
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
    *parts, last = path.split(".")
    for part in parts:
        made = made.setdefault(part, {})
    made[last] = value
