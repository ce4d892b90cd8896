"""What makes a gate red beside its verdict: limits missed or not decided; what a red verdict leaves of a record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.metrics.speed import WITHHELD
from pytest_specdec.record import Figure, Record, Spread, missing
from pytest_specdec.record.parts import (
    AcceptancePart,
    AskedPart,
    CalibrationPart,
    EnergyPart,
    GoodputPart,
    LatencyPart,
    LoadPart,
    PerRoundPart,
    SpeedupPart,
    TargetAlonePart,
    ThroughputPart,
    VerdictPart,
)
from pytest_specdec.run.describe import withhold_speed
from pytest_specdec.run.gate import check_invariance, check_limits
from pytest_specdec.run.judge import _joined
from pytest_specdec.run.judgement import Judgement
from pytest_specdec.workloads.scenario import Scenario, load_scenario

MEASURED = Record(
    asked=AskedPart(method="draft_model", gamma=3),
    throughput=ThroughputPart(
        tokens=9, seconds=Figure(3.0), per_round=PerRoundPart(tokens=(9,), ttft_us=("1",), tpot_us=("1",))
    ),
    acceptance=AcceptancePart(drafts=Figure(3), rate=Figure(0.5), mean_accepted_length=Figure(2.5)),
    latency=LatencyPart(ttft_s=Spread(p50=1.0, n=1)),
    target_alone=TargetAlonePart(joules_per_token=Figure(2.0), energy_flags=("short window",)),
    speedup=SpeedupPart(ratio=Figure(1.1)),
    energy=EnergyPart(joules_per_token=Figure(3.0), over_target=Figure(1.5)),
    load=LoadPart(completed_per_second=Figure(1.0), goodput=GoodputPart(share=Figure(1.0), slo={"ttft_ms": 5.0})),
)


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """One that asks for everything that can be asked."""
    limits = "min_speedup = 1.2\nmax_energy_ratio = 0.9\nmin_acceptance_rate = 0.6\nmin_mean_accepted_length = 3.0\n"
    path = tmp_path / "x.toml"
    path.write_text(f'source = {{ format = "random", length = 4 }}\ncount = 2\nmax_tokens = 4\n{limits}')
    return load_scenario(path)


def test_each_limit_that_is_missed_is_said(scenario: Scenario) -> None:
    """With the figure, the limit and the file; energy also with what speaks against it."""
    words = check_limits(MEASURED, scenario)
    file = scenario.path
    assert words[0].startswith(f"speedup 1.1× is below min_speedup = 1.2 of {file}; the model gives no advice: ")
    assert words[1:] == [
        f"acceptance_rate 0.5 is below min_acceptance_rate = 0.6 of {file}",
        f"mean_accepted_length 2.5 tokens is below min_mean_accepted_length = 3 of {file}",
        f"energy_ratio 1.5 is above max_energy_ratio = 0.9 of {file}; "
        "3 J/token, 2 for target-only; flagged: short window",
    ]


def test_a_limit_that_is_just_reached_is_kept(scenario: Scenario) -> None:
    """And one whose figure is unknown is not, unless nothing was timed at all."""
    kept = replace(
        MEASURED,
        acceptance=AcceptancePart(drafts=Figure(3), rate=Figure(0.6), mean_accepted_length=Figure(3.0)),
        speedup=SpeedupPart(ratio=Figure(1.2), interval=Figure((1.2, 1.2))),
        energy=EnergyPart(over_target=Figure(0.9), over_target_interval=Figure((0.9, 0.9))),
    )
    assert check_limits(kept, scenario) == []
    unknown = replace(kept, speedup=SpeedupPart(), energy=EnergyPart(over_target=Figure(None, "no counter")))
    assert check_limits(unknown, scenario) == [
        f"min_speedup = 1.2 of {scenario.path} cannot be shown to be kept: not measured",
        f"max_energy_ratio = 0.9 of {scenario.path} cannot be shown to be kept: no counter",
    ]
    assert check_limits(replace(unknown, throughput=ThroughputPart(tokens=9)), scenario) == []


KEPT = Record(
    throughput=ThroughputPart(rounds=4),
    acceptance=AcceptancePart(drafts=Figure(3)),
    speedup=SpeedupPart(ratio=Figure(1.25), interval=Figure((1.21, 1.29))),
    energy=EnergyPart(over_target=Figure(0.8), over_target_interval=Figure((0.76, 0.84))),
)


def test_limits_that_the_whole_interval_keeps_are_decided(scenario: Scenario) -> None:
    """Both of them."""
    assert check_limits(KEPT, scenario) == []


def test_an_interval_that_crosses_its_limit_fails_with_the_rounds_that_would_decide(scenario: Scenario) -> None:
    """Half of 1.15 to 1.36 is 0.084 in logarithms, and 1.25 is 0.041 from 1.2: 4 · (0.084 / 0.041)² rounds."""
    wide = replace(
        KEPT,
        speedup=SpeedupPart(ratio=Figure(1.25), interval=Figure((1.15, 1.36))),
        energy=EnergyPart(over_target=Figure(0.8), over_target_interval=Figure((0.7, 0.91))),
    )
    file = scenario.path
    assert check_limits(wide, scenario) == [
        f"inconclusive: speedup 1.25 [1.15, 1.36], 4 rounds; about 17 rounds would decide min_speedup = 1.2 of {file}",
        "inconclusive: energy_ratio 0.8 [0.7, 0.91], 4 rounds; about 5 rounds would decide max_energy_ratio = 0.9 of "
        f"{file}",
    ]


def test_limits_are_held_where_nothing_was_drafted(scenario: Scenario) -> None:
    """As of lookup that found nothing, or where a schedule has a γ of 0: a speed-up was asked for all the same."""
    slow = SpeedupPart(ratio=Figure(1.0), interval=Figure((0.99, 1.01)))
    (words,) = check_limits(replace(KEPT, acceptance=AcceptancePart(drafts=Figure(0)), speedup=slow), scenario)
    assert words.startswith("speedup 1× is below min_speedup = 1.2")


def test_a_figure_without_an_interval_decides_nothing(scenario: Scenario) -> None:
    """One round."""
    one = replace(KEPT, speedup=SpeedupPart(ratio=Figure(1.25)))
    (words,) = check_limits(one, scenario)
    assert words.startswith("inconclusive: speedup 1.25 has no interval, and at least 4 rounds are needed to decide")


def test_a_limit_that_is_missed_is_not_inconclusive_too(scenario: Scenario) -> None:
    """And a figure that was not measured misses none."""
    missed = replace(KEPT, speedup=SpeedupPart(ratio=Figure(1.1), interval=Figure((0.9, 1.3))))
    (words,) = check_limits(missed, scenario)
    assert words.startswith("speedup 1.1× is below min_speedup = 1.2")
    assert check_limits(replace(KEPT, speedup=SpeedupPart()), scenario) == []


@pytest.mark.parametrize(("mode", "failures"), [("1", 2), ("0", 0)])
def test_where_batches_must_change_nothing_a_tie_is_a_failure(mode: str, failures: int) -> None:
    """And so is a target whose own output differs between batch sizes: the mode does not hold."""
    spec = EngineSpec(backend="vllm", target="t", environment={"VLLM_BATCH_INVARIANT": mode})
    tied = VerdictPart(outcome="tie", calibration=CalibrationPart(disagreements=1, compared=8))
    words = check_invariance(replace(MEASURED, verdict=tied), spec)
    assert len(words) == failures
    assert all("VLLM_BATCH_INVARIANT" in word for word in words)


def test_ties_of_greedy_requests_beside_sampled_ones_count() -> None:
    """The outcome is the sampled ones'; of a red verdict ties are no news."""
    counts = {"identical": 5, "tie": 1}
    mixed, red = (VerdictPart(outcome=each, counts=counts) for each in ("consistent", "divergent"))
    assert mixed.tie_in_words.startswith("largest gap")
    assert (red.tie_in_words, VerdictPart(outcome="consistent", counts={"identical": 6}).tie_in_words) == ("", "")
    spec = EngineSpec(backend="vllm", target="t", environment={"VLLM_BATCH_INVARIANT": "1"})
    (words,) = check_invariance(
        replace(MEASURED, verdict=replace(mixed, calibration=CalibrationPart(compared=8))), spec
    )
    assert words.endswith("a tie is none then")


def test_what_is_said_of_both_parts_of_a_mix_is_said_once() -> None:
    """Warnings, and the outcome of two that pass."""
    sampled, greedy = (Judgement(VerdictPart(outcome=each), [], 0.0, ("other mode",)) for each in ("consistent", "tie"))
    joined = _joined(sampled, greedy)
    assert (joined.part.outcome, joined.words, joined.warnings) == ("consistent", [], ("other mode",))


def test_a_red_verdict_leaves_no_figure_of_speed() -> None:
    """What was counted stays: tokens, acceptance, the energy that was spent."""
    left = withhold_speed(MEASURED)
    assert left.latency == missing(LatencyPart, WITHHELD)
    assert left.speedup == missing(SpeedupPart, WITHHELD)
    assert left.energy == replace(MEASURED.energy, over_target=Figure(None, WITHHELD))
    assert left.load.goodput == replace(missing(GoodputPart, WITHHELD), slo={"ttft_ms": 5.0})
    assert left.load.completed_per_second == Figure(None, WITHHELD)
    assert left.throughput.per_round == PerRoundPart(tokens=(9,))
    assert (left.acceptance, left.throughput.tokens) == (MEASURED.acceptance, 9)
