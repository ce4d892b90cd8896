"""Where a record holds a metric: its figure, its rounds, and why it is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_specdec.results.per_round import LATENCY_OF, seconds_of_line
from pytest_specdec.results.resampling import Sample, pooled_percentile, ratio_of_totals
from pytest_specdec.thresholds import Metric

Record = Mapping[str, Any]
NO_FIGURE = "the record does not have it"


def figure_of(record: Record, metric: Metric) -> float | None:
    """The metric's value in the record's own unit; None where it was not measured."""
    latency, percent = _latency(metric)
    if latency:
        value = (record.get(f"{latency}_s") or {}).get(percent)
    elif metric.name == "joules_per_token":
        value = (record.get("energy") or {}).get("joules_per_token")
    else:
        value = record.get(metric.name)
    return None if value is None else float(value)


def reason_of(record: Record, metric: Metric) -> str:
    """Why the metric was not measured, in the record's words."""
    latency, _ = _latency(metric)
    if latency:
        reason = (record.get(f"{latency}_s") or {}).get("reason")
    elif metric.name == "joules_per_token":
        reason = (record.get("energy") or {}).get("reason")
    else:
        reason = record.get(f"{metric.name}_reason") or record.get(REASONS.get(metric.name, ""))
    return str(reason or NO_FIGURE)


REASONS = {"acceptance_rate": "acceptance_reason", "mean_accepted_length": "acceptance_reason"}


def sample_of(record: Record, metric: Metric) -> Sample | None:
    """The metric over the record's rounds; None where it has no value for each of them."""
    rounds = record.get("per_round") or {}
    latency, percent = _latency(metric)
    if latency in LATENCY_OF:
        lines = rounds.get(f"{latency}_us") or ()
        return pooled_percentile([seconds_of_line(line) for line in lines], float(percent.removeprefix("p")))
    above, below, offset = _totals(record, rounds).get(metric.name, (None, None, 0.0))
    return ratio_of_totals(above, below, offset) if above and below else None


def _totals(record: Record, rounds: Mapping[str, Any]) -> dict[str, tuple[Any, Any, float]]:
    joules = (record.get("energy") or {}).get("joules_each_round")
    return {
        "tokens_per_second": (rounds.get("tokens"), rounds.get("seconds"), 0.0),
        "joules_per_token": (joules, rounds.get("tokens"), 0.0),
        "acceptance_rate": (rounds.get("accepted_tokens"), rounds.get("draft_tokens"), 0.0),
        "mean_accepted_length": (rounds.get("accepted_tokens"), rounds.get("drafts"), 1.0),
    }


def _latency(metric: Metric) -> tuple[str, str]:
    """("ttft", "p99") of "ttft_p99"; two empty texts of a metric that is no latency."""
    name, _, percent = metric.name.rpartition("_")
    return (name, percent) if percent[:1] == "p" and percent[1:].isdigit() else ("", "")
