"""The table of README and docs/evidence/results/h200-map.md: which γ pays, by draft and requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from pytest_specdec.history.saved import read_run
from pytest_specdec.record import Record

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "evidence" / "results"
README, PAGE = ROOT / "README.md", RESULTS / "h200-map.md"
AT_ONCE = (1, 4, 16, 32, 64, 128, 256)
DRAFTS = {
    "head, α = 0.6": "llama-8b:eagle?memory=48&alpha=0.6",
    "head, α = 0.8": "llama-8b:eagle?memory=48&alpha=0.8",
    "head, α = 0.9": "llama-8b:eagle?memory=48&alpha=0.9",
    "drafter of two layers, α = 0.8": "llama-8b:draft?memory=48&layers=2",
    "lookup, every draft right": "ngram",
}

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


@cache
def map_records() -> list[Record]:
    """Of all runs of the map."""
    return [record for run in sorted(RESULTS.glob("h200-map*.json")) for record in read_run(run).records]


def rows() -> Iterator[str]:
    """A line for each draft."""
    for name, draft in DRAFTS.items():
        gates = [each for each in map_records() if draft in (each.asked.draft or each.asked.method)]
        cells = [cell([each for each in gates if each.workload.concurrency == at]) for at in AT_ONCE]
        up_to = max(at for at, told in zip(AT_ONCE, cells, strict=True) if told.startswith("γ"))
        yield f"| {name} | {' | '.join(cells)} | {up_to} |"


@pytest.mark.parametrize("file", [PAGE, README])
def test_the_tables_are_those_of_the_saved_runs(file: Path) -> None:
    """What may pay is told apart from what surely does not."""
    page = file.read_text("utf-8").splitlines()
    begin = page.index(next(line for line in page if line.startswith("| draft |"))) + 2
    told = [*rows()]
    assert page[begin : begin + len(told) + 1] == [*told, ""]


def test_readme_counts_the_gates() -> None:
    """Of drafts: target-only gates compare nothing with it."""
    gates = [each for each in map_records() if each.asked.method != "none"]
    assert {each.gate for each in gates} == {"green"}
    assert f"by {len(gates)} green gates" in README.read_text("utf-8")
