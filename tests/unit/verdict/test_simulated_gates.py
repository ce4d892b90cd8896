"""A thousand simulated gates: sound twins are green, lossy acceptance and a coarse cache are red."""

from __future__ import annotations

import pytest
from tests.evidence.greedy_simulation import FAULTS, Engine, rounding, share_red

from pytest_specdec.verdict.noise import ROWS, level_of_gate

SOUND = Engine(rounding(), rounding())


@pytest.mark.parametrize("gate", [1, 50])
def test_sound_gates_are_green(gate: int) -> None:
    assert share_red(SOUND, 6400, 1000, level_of_gate(gate)) == 0.0


def test_verification_that_rounds_twice_as_often_as_plain_decoding_is_green() -> None:
    """At 100,000 tokens, where an exact test would tell any difference."""
    assert share_red(Engine(rounding(), rounding(2.0), shape=ROWS), 100_000, 300, level_of_gate(1)) == 0.0


@pytest.mark.parametrize("fault", ["lossy acceptance", "fp8 cache in one arm"])
def test_faults_that_reach_further_than_rounding_are_red(fault: str) -> None:
    """Late in a session as well."""
    engine = Engine(rounding(), rounding(), FAULTS[fault])
    assert share_red(engine, 6400, 200, level_of_gate(1)) == 1.0
    assert share_red(engine, 6400, 200, level_of_gate(200)) > 0.95
