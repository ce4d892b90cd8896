"""The record of one gate: what was measured, where, and the verdict. One versioned object of plain JSON values.

It lies under `extra_info["specdec"]` of pytest-benchmark's JSON and in the test's user properties. A figure that was
not measured is null, and a sibling key that ends in `reason` says why.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.measure.latency import percentile
from pytest_specdec.measure.rounds import Rounds
from pytest_specdec.results.failure import SHOWN, WINDOW
from pytest_specdec.verdict.equivalence import LEVEL, Finding, Verdict
from pytest_specdec.verdict.noise import NoiseFloor
from pytest_specdec.verdict.reference import Reference
from pytest_specdec.workloads.workload import Workload

if TYPE_CHECKING:
    from pytest_specdec.workloads.scenario import Scenario

SCHEMA = 1
NOT_TIMED = "pytest-benchmark is disabled (--benchmark-disable, or pytest-xdist), so nothing was timed"


def what_was_asked(spec: EngineSpec, scenario: str) -> dict[str, Any]:
    """The part of a record that is known before an engine is loaded."""
    return {
        "schema": SCHEMA,
        "scenario": scenario,
        "engine": spec.backend,
        "engine_key": spec.key,
        "target": spec.target,
        "draft": spec.draft,
        "method": spec.method,
        "gamma": spec.gamma,
        "dtype": spec.dtype,
        "parallelism": spec.parallelism,
    }


def scenario_part(scenario: Scenario) -> dict[str, Any]:
    """What the scenario asks for, whatever the target: a digest over its content, and how its requests arrive."""
    return {"scenario_digest": scenario.digest, "load_asked": json_safe(scenario.load.model_dump())}


def engine_error(spec: EngineSpec, scenario: str, message: str) -> dict[str, Any]:
    """The record of a gate that an engine's fault kept from a verdict."""
    return {**what_was_asked(spec, scenario), "verdict": {"outcome": "engine error", "detail": message}}


def outcome_part(verdict: Verdict, reference: Reference) -> dict[str, Any]:
    """The verdict: outcome, counts per outcome over all requests of all rounds, gaps and floor in logits."""
    return {
        "outcome": verdict.outcome.value,
        "counts": verdict.counts,
        "max_gap": verdict.max_gap,
        "noise_floor": verdict.floor.bound,
        "near_ties": {
            "count": verdict.near_ties.judged,
            "tokens": verdict.near_ties.judged_tokens,
            "p_value": verdict.near_ties.p_value,
            "level": LEVEL,
        },
        "control": control_part(verdict.floor, reference),
        "reference_versions": dict(reference.versions),
    }


def findings_part(verdict: Verdict) -> list[dict[str, Any]]:
    """The first findings of a red verdict, each with the tokens of both sides around the first difference."""
    return [_finding(finding) for finding in verdict.findings[:SHOWN]]


def _finding(finding: Finding) -> dict[str, Any]:
    told = {name: getattr(finding, name) for name in ("request", "round", "detail", "position", "gap", "suspects")}
    kept: dict[str, Any] = {**told, "outcome": finding.outcome.value}
    if finding.position is None:
        return kept
    first = max(0, finding.position - WINDOW)
    window = slice(first, finding.position + WINDOW + 1)
    return {**kept, "window_start": first, "expected": finding.expected[window], "seen": finding.seen[window]}


def control_part(floor: NoiseFloor, reference: Reference) -> dict[str, Any]:
    """What the floor was measured on, and what rescoring cost."""
    cost = reference.rescoring_seconds / reference.decoding_seconds if reference.decoding_seconds else None
    return {
        "tokens": floor.tokens,
        "near_ties": floor.near_ties,
        "largest_gap": floor.gap,
        "dtype_spacing": floor.spacing,
        "gaps_in_spacings": {str(spacings): count for spacings, count in floor.histogram},
        "disagreements": floor.disagreements,
        "compared": floor.compared,
        "rescoring_over_decoding": cost,
    }


def throughput_part(rounds: Rounds) -> dict[str, Any]:
    """Delivered tokens, measured seconds, and their ratio."""
    rate, known = rounds.tokens_per_second, rounds.interval
    return {
        "rounds": len(rounds.runs),
        "rounds_ended_by": rounds.ended_by,
        "warmup_rounds": rounds.warmup.rounds,
        "warmup_steady": rounds.warmup.steady,
        "tokens": rounds.tokens,
        "seconds": sum(rounds.seconds) if rounds.measured else None,
        "tokens_per_second": rate,
        "tokens_per_second_reason": None if rate is not None else NOT_TIMED,
        "tokens_per_second_interval": [known.low, known.high] if known else None,
        "tokens_per_second_interval_share": known.share if known else None,
        "prefix_cache_hits": rounds.prefix_cache_hits,
    }


def energy_part(rounds: Rounds) -> dict[str, Any]:
    """What the meter read over the timed rounds; null with its reason."""
    return dict(rounds.energy) if rounds.energy else {"joules": None, "reason": NOT_TIMED}


def workload_part(workload: Workload) -> dict[str, Any]:
    """Which token ids were decoded, and how many requests at once."""
    return {
        "workload": workload.digest,
        "requests": len(workload.requests),
        "concurrency": workload.concurrency,
        "prompt_tokens": prompt_lengths(workload),
        "skipped_rows": workload.skipped_rows,
        "workload_notes": list(workload.notes),
    }


def prompt_lengths(workload: Workload) -> dict[str, float]:
    """Tokens of the prompts that were sent: the ids themselves are counted, whatever the scenario says."""
    lengths = sorted(len(request.prompt_ids) for request in workload.requests)
    total = sum(lengths)
    return {
        "min": lengths[0],
        "mean": total / len(lengths),
        "p50": percentile(lengths, 50),
        "p90": percentile(lengths, 90),
        "max": lengths[-1],
        "total": total,
    }


def engine_part(description: Description) -> dict[str, Any]:
    """What the loaded engine said of itself."""
    return {
        "versions": dict(description.versions),
        "device": description.device,
        "engine_details": dict(description.details),
    }


def json_safe(value: Any) -> Any:
    """Plain JSON values: what is not finite becomes null, tuples become lists."""
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)
