"""The figures people look for first, one plain property each, for whatever reads JUnit XML and no JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ASKED = ("scenario", "engine", "target", "draft", "method", "gamma", "dtype", "concurrency", "gate")
PLACES = {
    "verdict": ("verdict", "outcome"),
    "tokens_per_second": ("tokens_per_second",),
    "speedup": ("speedup",),
    "acceptance_rate": ("acceptance_rate",),
    "mean_accepted_length": ("mean_accepted_length",),
    "ttft_p50_s": ("ttft_s", "p50"),
    "ttft_p99_s": ("ttft_s", "p99"),
    "itl_p50_s": ("itl_s", "p50"),
    "joules_per_token": ("energy", "joules_per_token"),
    "baseline": ("baseline", "run"),
}


def flat(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """("specdec.tokens_per_second", "123.4") and so on; what was not measured is left out."""
    places: dict[str, tuple[str, ...]] = {name: (name,) for name in ASKED} | PLACES
    for name, path in places.items():
        value = _at(record, path)
        if value is not None:
            yield f"specdec.{name}", str(value)
    for change in (record.get("baseline") or {}).get("changes") or ():
        yield f"specdec.change.{change['metric']}", str(change["outcome"])


def _at(record: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        record = (record or {}).get(key)
    return record
