"""The figures people look for first, one plain property each, for whatever reads JUnit XML and no JSON."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_specdec.record import Record

ASKED = ("scenario", "engine", "target", "draft", "method", "gamma", "dtype")


def flat(record: Record) -> Iterator[tuple[str, str]]:
    """("specdec.tokens_per_second", "123.4") and so on; what was not measured is left out."""
    for name, value in _places(record).items():
        if value is not None:
            yield f"specdec.{name}", str(value)
    for change in record.baseline.changes if record.baseline else ():
        yield f"specdec.change.{change.metric}", change.outcome


def _places(record: Record) -> dict[str, object]:
    latency, acceptance = record.latency, record.acceptance
    return {
        **{name: getattr(record.asked, name) for name in ASKED},
        "concurrency": record.workload.concurrency,
        "gate": record.gate,
        "verdict": record.verdict.outcome,
        "tokens_per_second": record.throughput.tokens_per_second.value,
        "target_tokens_per_second": record.target_alone.tokens_per_second.value,
        "speedup": record.speedup.ratio.value,
        "acceptance_rate": acceptance.rate.value,
        "mean_accepted_length": acceptance.mean_accepted_length.value,
        "ttft_p50_s": latency.ttft_s.p50,
        "ttft_p99_s": latency.ttft_s.p99,
        "itl_p50_s": latency.itl_s.p50,
        "joules_per_token": record.energy.joules_per_token.value,
        "energy_over_target": record.energy.over_target.value,
        "baseline": record.baseline.run if record.baseline else None,
    }
