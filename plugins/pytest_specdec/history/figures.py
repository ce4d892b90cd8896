"""Where a record holds a metric: its figure, its rounds, and why it is not there."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specdec.history.resampling import Sample, pooled_percentile, ratio_of_totals
from pytest_specdec.metrics.throughput import LATENCY_OF, seconds_of_line
from pytest_specdec.record import Figure, Record, Spread
from pytest_specdec.thresholds import Metric

NO_FIGURE = "the record does not have it"


def figure_of(record: Record, metric: Metric) -> float | None:
    """The metric's value in the record's own unit; None where it was not measured."""
    latency, percent = _latency(metric)
    return _spread(record, latency).at(percent) if latency else _figure(record, metric).value


def reason_of(record: Record, metric: Metric) -> str:
    """Why the metric was not measured, in the record's words."""
    latency, _ = _latency(metric)
    reason = _spread(record, latency).reason if latency else _figure(record, metric).reason
    return str(reason or NO_FIGURE)


def _spread(record: Record, latency: str) -> Spread:
    spread: Spread = getattr(record.latency, f"{latency}_s")
    return spread


def _figure(record: Record, metric: Metric) -> Figure[float]:
    places: dict[str, Figure[float]] = {
        "tokens_per_second": record.throughput.tokens_per_second,
        "speedup": record.speedup.ratio,
        "joules_per_token": record.energy.joules_per_token,
        "acceptance_rate": record.acceptance.rate,
        "mean_accepted_length": record.acceptance.mean_accepted_length,
        "peak_gpu_bytes": record.memory.peak_gpu_bytes,
        "peak_host_bytes": record.memory.peak_host_bytes,
    }
    return places[metric.name]


def sample_of(record: Record, metric: Metric) -> Sample | None:
    """The metric over the record's rounds; None where it has no value for each of them."""
    rounds = record.throughput.per_round
    latency, percent = _latency(metric)
    if latency in LATENCY_OF:
        lines = getattr(rounds, f"{latency}_us") or ()
        return pooled_percentile([seconds_of_line(line) for line in lines], float(percent.removeprefix("p")))
    above, below, offset = _totals(record).get(metric.name, (None, None, 0.0))
    return ratio_of_totals(above, below, offset) if above and below else None


Column = Sequence[float] | None


def _totals(record: Record) -> dict[str, tuple[Column, Column, float]]:
    rounds = record.throughput.per_round
    return {
        "tokens_per_second": (rounds.tokens, rounds.seconds, 0.0),
        "joules_per_token": (record.energy.joules_each_round, rounds.tokens, 0.0),
        "acceptance_rate": (rounds.accepted_tokens, rounds.draft_tokens, 0.0),
        "mean_accepted_length": (rounds.accepted_tokens, rounds.drafts, 1.0),
    }


def _latency(metric: Metric) -> tuple[str, str]:
    """("ttft", "p99") of "ttft_p99"; two empty texts of a metric that is no latency."""
    name, _, percent = metric.name.rpartition("_")
    return (name, percent) if percent[:1] == "p" and percent[1:].isdigit() else ("", "")
