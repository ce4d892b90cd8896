"""The table of docs/evidence/results/h200-map.md that tells which γ to take, by a head's α and requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_specdec.history.saved import read_run
from pytest_specdec.record import Record

RESULTS = Path(__file__).parents[3] / "docs" / "evidence" / "results"
RUNS = ("h200-map", "h200-map-g6", "h200-map-heads", "h200-map-heads-g12", "h200-map-heads-g368")
AT_ONCE = (1, 4, 16, 32, 64, 128, 256)

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution is without docs/evidence/results")


def bounds(record: Record) -> tuple[float, float]:
    """Of the speed-up's interval."""
    low, high = record.speedup.interval.value or (0.0, 0.0)
    return low, high


def cell(gates: Sequence[Record]) -> str:
    """The γ that surely pays and whose interval begins highest, with its speed-up; or that none does, or may."""
    best = max(gates, key=lambda each: bounds(each)[0])
    if bounds(best)[0] > 1:
        return f"γ = {best.asked.gamma}, {best.speedup.ratio.value:.2f}"
    return "not decided" if any(bounds(each)[1] >= 1 for each in gates) else "none"


def rows() -> Iterator[str]:
    """A line for each α."""
    records = [record for run in RUNS for record in read_run(RESULTS / f"{run}.json").records]
    for alpha in ("0.6", "0.8", "0.9"):
        heads = [each for each in records if (each.asked.draft or "").endswith(f"alpha={alpha}")]
        cells = [cell([each for each in heads if each.workload.concurrency == at]) for at in AT_ONCE]
        up_to = max(at for at, told in zip(AT_ONCE, cells, strict=True) if told.startswith("γ"))
        yield f"| {alpha} | {' | '.join(cells)} | {up_to} |"


def test_the_table_of_heads_is_that_of_the_saved_runs() -> None:
    """What may pay is told apart from what surely does not."""
    page = (RESULTS / "h200-map.md").read_text("utf-8").splitlines()
    assert [line for line in page if line.startswith("| 0.")] == [*rows()]
