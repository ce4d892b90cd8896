"""A limit that the rounds do not decide fails, and says how many would; figures that they decide are silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.record import Figure, Record
from pytest_specdec.record.parts import AcceptancePart, EnergyPart, SpeedupPart, ThroughputPart
from pytest_specdec.run.gate import undecided_limits
from pytest_specdec.workloads.scenario import Scenario, load_scenario

MEASURED = Record(
    throughput=ThroughputPart(rounds=4),
    acceptance=AcceptancePart(drafts=Figure(3)),
    speedup=SpeedupPart(ratio=Figure(1.25), interval=Figure((1.21, 1.29))),
    energy=EnergyPart(over_target=Figure(0.8), over_target_interval=Figure((0.76, 0.84))),
)


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """One that asks for a speed-up of 1.2 and nine tenths of the energy."""
    path = tmp_path / "x.toml"
    limits = "min_speedup = 1.2\nmax_energy_ratio = 0.9\n"
    path.write_text(f'source = {{ format = "random", length = 4 }}\ncount = 2\nmax_tokens = 4\n{limits}')
    return load_scenario(path)


def test_limits_that_the_whole_interval_keeps_are_decided(scenario: Scenario) -> None:
    """Both of them."""
    assert undecided_limits(MEASURED, scenario) == []


def test_an_interval_that_crosses_its_limit_fails_with_the_rounds_that_would_decide(scenario: Scenario) -> None:
    """Half of 1.15 to 1.36 is 0.084 in logarithms, and 1.25 is 0.041 from 1.2: 4 · (0.084 / 0.041)² rounds."""
    wide = replace(
        MEASURED,
        speedup=SpeedupPart(ratio=Figure(1.25), interval=Figure((1.15, 1.36))),
        energy=EnergyPart(over_target=Figure(0.8), over_target_interval=Figure((0.7, 0.91))),
    )
    file = scenario.path
    assert undecided_limits(wide, scenario) == [
        f"inconclusive: speedup 1.25 [1.15, 1.36], 4 rounds; about 17 rounds would decide min_speedup = 1.2 of {file}",
        "inconclusive: energy_ratio 0.8 [0.7, 0.91], 4 rounds; about 5 rounds would decide max_energy_ratio = 0.9 of "
        f"{file}",
    ]


def test_a_figure_without_an_interval_decides_nothing(scenario: Scenario) -> None:
    """One round."""
    one = replace(MEASURED, speedup=SpeedupPart(ratio=Figure(1.25)))
    (words,) = undecided_limits(one, scenario)
    assert words.startswith("inconclusive: speedup 1.25 has no interval, and at least 4 rounds are needed to decide")


def test_a_limit_that_is_missed_is_said_elsewhere(scenario: Scenario) -> None:
    """And a figure that was not measured misses none."""
    missed = replace(MEASURED, speedup=SpeedupPart(ratio=Figure(1.1), interval=Figure((0.9, 1.3))))
    assert undecided_limits(missed, scenario) == []
    assert undecided_limits(replace(MEASURED, speedup=SpeedupPart()), scenario) == []
