"""Which saved record a new one may be held against.

A record is keyed by what was measured and by where. What an upgrade changes on purpose (versions, driver, options of
the engine) is in neither key: such a record is comparable, and the difference is listed. Other hardware is refused by
name, and so is a record that is no measure of anything: a red gate, an undecided verdict, a drafter that drafted
nothing, a rate that is not known well enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_specdec.history.figures import sample_of
from pytest_specdec.history.resampling import own_width
from pytest_specdec.record import GREEN, Record
from pytest_specdec.thresholds import METRICS

WIDEST = 0.10
NAMES = {
    "scenario_digest": "the scenario's content",
    "gamma": "γ",
    "engine_key": "engine configuration",
    "gpus": "GPUs",
}
MEASURED = ("scenario_digest", "engine", "target", "draft", "method", "gamma", "dtype")


def measurement(record: Record) -> dict[str, Any]:
    """What was measured: two records that agree in all of this answer the same question."""
    asked = {key: getattr(record.asked, key) for key in MEASURED}
    return {**asked, "concurrency": record.workload.concurrency, "load_asked": record.asked.load}


def place(record: Record) -> dict[str, Any]:
    """Where: names and number of the visible GPUs, or processor and cores where there are none; parallelism."""
    hardware = record.hardware
    gpus = [gpu.name for gpu in hardware.gpus]
    host = {} if gpus else {"processor": hardware.processor, "cores": hardware.cores}
    return {"gpus": gpus, **host, "parallelism": record.asked.parallelism}


def circumstances(record: Record) -> dict[str, Any]:
    """What an upgrade changes on purpose: versions, driver, engine options."""
    return {**record.engine.versions, "driver": record.hardware.driver, "engine_key": record.asked.engine_key}


def differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """In words, "vllm 0.26.0 → 0.32.0", for each key in which the two differ."""
    keys = [key for key in dict.fromkeys((*now, *then)) if now.get(key) != then.get(key)]
    return [f"{NAMES.get(key, key)} {_format(then.get(key))} → {_format(now.get(key))}" for key in keys]


def _format(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(f"{value.count(each)} × {each}" for each in dict.fromkeys(value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items()) or "none"
    return "none" if value is None else str(value)


def counterpart(now: Record, test: str, records: Sequence[Record]) -> Record | None:
    """The record among these of the same measurement; of several the one with the same engine options, then name."""
    same = [record for record in records if measurement(record) == measurement(now)]
    if not same:
        return None
    return max(same, key=lambda then: _likeness(then, now, test))


def _likeness(then: Record, now: Record, test: str) -> tuple[bool, bool]:
    return then.asked.engine_key == now.asked.engine_key, then.place.test == test


def changed_question(now: Record, test: str, records: Sequence[Record]) -> str | None:
    """Why a test's own earlier record is no baseline run: it measured something else. None if there is none."""
    namesake = next((record for record in records if record.place.test == test), None)
    if namesake is None or measurement(namesake) == measurement(now):
        return None
    return f"{test} measured something else then: {'; '.join(differences(measurement(now), measurement(namesake)))}"


def refusals(now: Record, then: Record) -> Iterator[str]:
    """Why a record of the same measurement is no baseline run."""
    elsewhere = differences(place(now), place(then))
    if elsewhere:
        yield f"other hardware: {'; '.join(elsewhere)}"
    if now.workload.digest != then.workload.digest:
        yield "the same scenario gave other token ids: tokenizer or chat template have changed"
    yield from unfit(then)


def unfit(record: Record) -> Iterator[str]:
    """Why a record can be nobody's baseline run."""
    if not record.passes:
        yield f"its verdict is {record.verdict.outcome}"
    elif record.gate != GREEN:
        yield f"its gate is {record.gate}"
    if record.asked.speculates and not record.acceptance.drafts.value:
        yield "its drafter drafted nothing"
    if record.throughput.tokens_per_second.value is None:
        yield "nothing was timed in it"
    width = _rate_width(record)
    if width is not None and width > WIDEST:
        yield f"its tokens/s is known to ±{width:.0%} only, and ±{WIDEST:.0%} is the most: measure it with more rounds"


def _rate_width(record: Record) -> float | None:
    rate = sample_of(record, METRICS["tokens_per_second"])
    return None if rate is None else own_width(rate)
