"""Saved runs of schema 1: every one in docs/results is read, and every key of it is found where the table says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.record import MOVED, REASONS, Figure, Record, from_json, to_json

RESULTS = Path(__file__).parents[3] / "docs" / "evidence" / "results"
SAVED = sorted(RESULTS.glob("*.json"))
FILES = [path for path in SAVED if '"schema": 2' not in path.read_text("utf-8")]
OF_TODAY = [path for path in SAVED if path not in FILES]
FOLLOWED = (("acceptance", "tokens_per_draft"), ("acceptance", "undrafted_steps"), ("target_alone", "draft_tokens"))
SAID_ELSEWHERE = {*(key for keys in REASONS.values() for key in keys), *(f"{old}_reason" for old in MOVED)}


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records in a file."""
    benches = json.loads(path.read_text("utf-8"))["benchmarks"]
    return [bench["extra_info"]["specdec"] for bench in benches if "specdec" in bench["extra_info"]]


def keys(told: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that has a place of its own in the table, with its value; what has none is looked into."""
    for key, value in told.items():
        place = f"{prefix}{key}"
        if place not in MOVED and isinstance(value, Mapping) and value:
            yield from keys(value, f"{place}.")
        else:
            yield place, value


def find(record: Record, path: str) -> Any:
    """What a record has at this place, as JSON; of a figure its value."""
    value: Any = record
    for name in path.split("."):
        value = getattr(value, name)
    return to_json(value.value if isinstance(value, Figure) else value)


def agree(old: Any, new: Any) -> bool:
    """Whether a new value says all that the old one said; null and left out are one."""
    if isinstance(old, Mapping):
        return all(agree(value, (new or {}).get(key)) for key, value in old.items())
    return old == new or (old is None and new in ({}, [], ""))


def list_unexplained(old: Mapping[str, Any], record: Record) -> Iterator[str]:
    """Keys whose value is not where the table says, or that it does not name."""
    for key, value in keys(old):
        if key in MOVED:
            if not agree(value, find(record, MOVED[key])):
                yield f"{key}: {value} → {find(record, MOVED[key])}"
        elif key.startswith("load."):
            name = key.removeprefix("load.")
            if record.load.played.get(name) != value and key not in SAID_ELSEWHERE:
                yield key
        elif key not in (*SAID_ELSEWHERE, "schema"):
            yield key


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_of_every_saved_run_is_found_again(path: Path) -> None:
    """Key by key, and the record is the same once written and read."""
    for old in read_records(path):
        record = from_json(old)
        assert list(list_unexplained(old, record)) == []
        assert from_json(json.loads(json.dumps(to_json(record)))) == record


def test_a_reason_of_schema_1_stands_in_its_figure() -> None:
    """Whichever of the old keys held it."""
    old = {
        "verdict": {"outcome": "identical"},
        "speedup": None,
        "speedup_reason": "no twin",
        "predicted_speedup": None,
        "predicted_speedup_reason": "one γ",
        "energy": {"joules": None, "joules_per_token": None, "reason": "no counter"},
    }
    record = from_json(old)
    assert record.speedup.ratio == Figure(None, "no twin")
    assert record.speedup.model.predicted == Figure(None, "one γ")
    assert record.energy.joules == record.energy.joules_per_token == Figure(None, "no counter")
    assert record.gate == "green"


def test_a_later_schema_is_refused() -> None:
    """Rather than read by halves."""
    with pytest.raises(ValueError, match="a record of schema 3; this version reads up to 2"):
        from_json({"schema": 3})


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_is_no_value(number: float) -> None:
    """Null with a reason, as JSON has it."""
    assert Figure(number) == Figure(None, "not a finite number")


def test_a_figure_has_a_value_or_a_reason() -> None:
    """Never both, never none."""
    assert (Figure(0.0, "why").reason, Figure(None, "why").reason, Figure().reason) == (None, "why", "not measured")


@pytest.mark.parametrize("path", OF_TODAY, ids=lambda path: path.stem)
def test_a_saved_run_of_today_is_read_without_loss(path: Path) -> None:
    """What it tells is told again, but for what followed from other keys; keys that came later are null."""
    for old in read_records(path):
        for part, key in FOLLOWED:
            old[part].pop(key, None)
        assert agree(old, to_json(from_json(old)))
