"""How surely the greedy verdict finds faults, and how seldom it alarms without one; written to docs/evidence/greedy.md.

Simulated gates (greedy_simulation.py) are judged by the product's own functions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.evidence.greedy_simulation import FAULTS, Engine, red_gates, rounding, share_red

from pytest_specdec.verdict.noise import LEVEL, ROWS, level_of_gate

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "greedy.md"
SIZES = (400, 6400, 100_000)
SESSIONS, GATES = 10_000, 200


def tell(title: str, text: str) -> None:
    """Write or replace a section of the page."""
    sections = PAGE.read_text("utf-8").split("\n## ")
    kept = [INTRODUCTION.strip(), *(each.rstrip() for each in sections[1:] if not each.startswith(f"{title}\n"))]
    PAGE.write_text("\n\n## ".join([*kept, f"{title}\n\n{text.strip()}"]) + "\n", "utf-8")


def test_faults_are_found() -> None:
    """Lossy acceptance and a coarse cache always from 6,400 tokens on; 1 % of near-ties at none of these sizes."""
    found = {
        fault: [share_red(Engine(rounding(), rounding(), chance), size, 500, level_of_gate(1)) for size in SIZES]
        for fault, chance in FAULTS.items()
    }
    rows = "\n".join(f"| {fault} | {' | '.join(f'{each:.1%}' for each in shares)} |" for fault, shares in found.items())
    head = "| fault | " + " | ".join(f"{size:,} tokens" for size in SIZES) + " |\n|---" + "|---" * len(SIZES) + "|"
    tell("Faults found", f"Share of 500 gates that were red, each the first of its session.\n\n{head}\n{rows}")
    assert found["lossy acceptance"][1:] == [1.0, 1.0]
    assert found["fp8 cache in one arm"][1:] == [1.0, 1.0]


def test_a_shape_that_rounds_twice_as_often_is_never_red() -> None:
    """100,000 judged tokens, calibrated by plain decoding with as many rows."""
    twice = Engine(rounding(), rounding(2.0), shape=ROWS)
    share = share_red(twice, 100_000, 1000, level_of_gate(1))
    tell("Verification that rounds twice as often", f"Red: {share:.1%} of 1,000 gates of 100,000 tokens.")
    assert share == 0.0


@pytest.mark.parametrize("times", [1.0, 1.4])
def test_a_session_keeps_its_level(times: float) -> None:
    """10,000 sound sessions of 200 gates; also where verification rounds nearly as often as the margin allows."""
    random, engine = np.random.default_rng(2), Engine(rounding(), rounding(times))
    red = np.zeros(SESSIONS, bool)
    for gate in range(1, GATES + 1):
        red |= red_gates(random, engine, (400, 1600, 6400)[gate % 3], level_of_gate(gate), SESSIONS)
    tell(
        f"Sound sessions, verification rounding {times:g} times as often",
        f"Red: {red.sum()} of {SESSIONS:,} sessions of {GATES} gates.",
    )
    assert red.sum() < 6 <= LEVEL * SESSIONS


INTRODUCTION = """# The greedy verdict, simulated

Tokens, rounding and faults are drawn by the assumptions of `tests/evidence/greedy_simulation.py`; the judgement is the
product's own. Written by `tox -e evidence -- -k greedy`, in three minutes on one core; random numbers have fixed seeds.
What real engines showed: [false-alarms.md](false-alarms.md).
"""
