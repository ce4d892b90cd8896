"""Saved runs are read without loss, and those of another schema are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.history.saved import UnreadableRun, read_run
from pytest_specdec.record import Figure, from_json, to_json

RESULTS = Path(__file__).parents[3] / "docs" / "evidence" / "results"
FOLLOWED = (("acceptance", "tokens_per_draft"), ("acceptance", "undrafted_steps"), ("target_alone", "draft_tokens"))


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records in a file."""
    benches = json.loads(path.read_text("utf-8"))["benchmarks"]
    return [bench["extra_info"]["specdec"] for bench in benches if "specdec" in bench["extra_info"]]


def agree(old: Any, new: Any) -> bool:
    """Whether a new value says all that the old one said; null and left out are one."""
    if isinstance(old, Mapping):
        return all(agree(value, (new or {}).get(key)) for key, value in old.items())
    return old == new or (old is None and new in ({}, [], ""))


def test_a_run_of_schema_1_is_refused(tmp_path: Path) -> None:
    """In one line that names the file, and what to do."""
    path = tmp_path / "0001_old.json"
    path.write_text('{"benchmarks": [{"fullname": "t", "extra_info": {"specdec": {"schema": 1, "speedup": 2.0}}}]}')
    with pytest.raises(UnreadableRun) as refused:
        read_run(path)
    assert str(refused.value) == (
        f"{path}: the record of t cannot be read (ValueError('a record of schema 1, written before 0.1.0')): "
        "delete the file, or measure again with --benchmark-autosave"
    )


def test_a_later_schema_is_refused() -> None:
    """Rather than read by halves."""
    with pytest.raises(
        ValueError, match="a record of schema 3, which this version is too old for: install a newer one"
    ):
        from_json({"schema": 3})


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_is_no_value(number: float) -> None:
    """Null with a reason, as JSON has it."""
    assert Figure(number) == Figure(None, "not a finite number")


def test_a_figure_has_a_value_or_a_reason() -> None:
    """Never both, never none."""
    assert (Figure(0.0, "why").reason, Figure(None, "why").reason, Figure().reason) == (None, "why", "not measured")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_saved_run_is_read_without_loss(path: Path) -> None:
    """What it tells is told again, but for what followed from other keys; keys that came later are null."""
    for old in read_records(path):
        for part, key in FOLLOWED:
            old[part].pop(key, None)
        assert agree(old, to_json(from_json(old)))
