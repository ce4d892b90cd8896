"""The tables of docs/evidence/results/h200-correctness.md are what its sessions printed.

A session stands in the text beside the page under a line `== its name`; a line `# gate: setting` says what a key or a
test stands for. No verdict, acceptance or gap is typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

RESULTS = Path(__file__).parents[3] / "docs" / "evidence" / "results"
PAGE = RESULTS / "h200-correctness.md"
NAMES = {"none": "target only", "draft_model": "draft model, γ = 4", "eagle": "EAGLE, γ = 4", "ngram": "n-gram, γ = 4"}
METHODS = "|".join(NAMES)
ROW = re.compile(rf"^ (\S+) .*?({METHODS}) .*? (identical|tie|engine error)(, red)?  .*(?:\n  .*)?", re.MULTILINE)
ACCEPTED = re.compile(r" \d+\.\d%")
TIE = re.compile(
    rf"^tie: .* ({METHODS})(?: \S+)?(?: γ=\d+)?: (largest gap \S+ logits), within the noise floor of (\d+ ULPs)$",
    re.MULTILINE,
)
MEANT = re.compile(r"^# (\w+): (.+)$", re.MULTILINE)
AT_ONCE = {"soak-64": 64, "soak": 256}
PROMPTS = {"spec_bench": "Spec-Bench", "sharegpt": "ShareGPT"}

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution is without docs/evidence/results")


class Gate(NamedTuple):
    """A row of a printed table, with the line below it, on which a long id goes on."""

    scenario: str
    method: str
    verdict: str
    row: str


def sessions() -> dict[str, str]:
    """What was printed, by the name of the session."""
    parts = PAGE.with_suffix(".txt").read_text("utf-8").split("\n== ")[1:]
    return dict(part.split("\n", 1) for part in parts)


def gates_of(printed: str) -> list[Gate]:
    return [Gate(row[1], row[2], row[3] + (row[4] or ""), row[0]) for row in ROW.finditer(printed)]


def by_method(printed: str, scenario: str) -> dict[str, Gate]:
    return {gate.method: gate for gate in gates_of(printed) if gate.scenario == scenario}


def cell(gate: Gate | None, printed: str) -> str:
    """The verdict, and the acceptance or the gap where they were printed."""
    if gate is None:
        return "–"
    if not gate.verdict.startswith("tie"):
        return _accepted(gate)
    ((gap, allowed),) = {tie[1:] for tie in TIE.findall(printed) if tie[0] == gate.method}
    return f"{gate.verdict}, {gap}, {allowed} allowed"


def cells(gates: Mapping[str, Gate], methods: Iterable[str], printed: str) -> str:
    return " | ".join(cell(gates.get(method), printed) for method in methods)


def head(what: str, methods: Iterable[str]) -> str:
    """The head of a table whose last columns are these methods."""
    return f"| {what} | {' | '.join(NAMES[each] for each in methods)} |"


def soak_rows() -> list[str]:
    """Of each mode, those numbers at once that it reached."""
    found = [
        (mode.removeprefix("soak, "), at_once, by_method(printed, scenario), printed)
        for mode, printed in sessions().items()
        for scenario, at_once in AT_ONCE.items()
    ]
    rows = [f"| {mode} | {at_once} | {cells(gates, NAMES, text)} |" for mode, at_once, gates, text in found if gates]
    return [head("mode | at once", NAMES), *rows]


def passage_rows() -> list[str]:
    """Of each mode, by the requests at once that a row has; its ties are told together below the table."""
    methods = ("none", "draft_model", "ngram")
    rows = [head("mode | at once", methods)]
    for mode, printed in sessions().items():
        for at_once in (64, 256):
            found = {
                each.method: each
                for each in gates_of(printed)
                if re.search(rf" {at_once} (\S+ +)?{each.verdict} ", each.row)
            }
            if mode.startswith("passages, ") and found:
                told = [_accepted(found.get(method)) for method in methods]
                rows.append(f"| {mode.removeprefix('passages, ')} | {at_once} | {' | '.join(told)} |")
    return rows


def _accepted(gate: Gate | None) -> str:
    if gate is None:
        return "–"
    accepted = ACCEPTED.search(gate.row)
    return gate.verdict + (f",{accepted[0]}" if accepted else "")


def prompt_rows() -> list[str]:
    printed, methods = sessions()["public prompts"], ("none", "draft_model", "ngram")
    rows = [f"| {name} | {cells(by_method(printed, each), methods, printed)} |" for each, name in PROMPTS.items()]
    return [head("prompts", methods), *rows]


def setting_rows() -> list[str]:
    """A session of one gate need not name it in its row."""
    rows = ["| setting | verdict |"]
    for printed in sessions().values():
        for key, setting in MEANT.findall(printed):
            (gate,) = [each for each in gates_of(printed) if key in each.row] or gates_of(printed)
            rows.append(f"| {setting} | {cell(gate._replace(row=''), printed)} |")
    return rows


def test_each_table_is_what_was_printed() -> None:
    """Its head names the methods in the order of its cells; the lines below heads are all else that the tables have."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert lines == [*soak_rows(), *passage_rows(), *prompt_rows(), *setting_rows()]


def test_a_verdict_that_was_not_printed_is_found() -> None:
    """Red stays red, a tie has its gap, and a gate that was not reached has none."""
    row = " soak  small bf16 vllm   eagle       4 identical, red  –    23.9%\n"
    printed = row + "tie: small bfloat16 vllm ngram: largest gap 0.5 logits, within the noise floor of 3 ULPs\n"
    (gate,) = gates_of(printed)
    assert cell(gate, printed) == "identical, red, 23.9%"
    tie = gate._replace(method="ngram", verdict="tie")
    assert [cell(tie, printed), cell(None, printed)] == ["tie, largest gap 0.5 logits, 3 ULPs allowed", "–"]
    assert cell(tie, printed.replace("ngram:", "ngram γ=4:")) == "tie, largest gap 0.5 logits, 3 ULPs allowed"
