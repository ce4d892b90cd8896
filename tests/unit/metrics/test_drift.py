"""How far the target moved over its rounds, what that may have done to a figure over it, and where there is none."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from pytest_specdec.generation import Generation, Run
from pytest_specdec.metrics.base import base_of, warnings_of
from pytest_specdec.metrics.rounds import Drift, Rounds
from pytest_specdec.metrics.speedup import Arm, over_target, speedup_part
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import EnergyPart

RUN = Run((Generation((1,), tuple(range(10)), "length"),), None, 0.0)


def rounds(*seconds: float) -> Rounds:
    """Of ten tokens each."""
    return Rounds((RUN,) * len(seconds), seconds)


def test_a_rate_that_moves_steadily_is_all_drift() -> None:
    """2 % a round over five: four steps, none of it scatter; a mean of five pairs moves by a fifth at most."""
    drift = Drift.of([1.02**at for at in range(5)])
    assert drift is not None
    assert (drift.ratio, drift.sure) == pytest.approx((1.02**4, 4 * math.log(1.02)))
    assert drift.moved == pytest.approx(4 * math.log(1.02) / 5)


def test_scatter_is_no_drift() -> None:
    """Rounds that scatter around one rate: 'sure' is 0 in 19 of 20 series or more."""
    draw = random.Random(2)
    told = [Drift.of([1 + 0.02 * draw.gauss(0, 1) for _ in range(8)]) for _ in range(400)]
    assert sum(each is not None and each.sure > 0 for each in told) <= 20


def test_two_rounds_tell_no_drift() -> None:
    """A line through two is exact, and says nothing."""
    assert Drift.of([1.0, 2.0]) is None


def test_a_drift_beyond_the_interval_is_told_and_widens_it() -> None:
    """Eight pairs, each alike to a thousandth, while the target slows by 20 %."""
    slows = [1.0 + 0.03 * at for at in range(8)]
    ours = rounds(*(each * (1 + 0.001 * (-1) ** (at // 2)) / 2 for at, each in enumerate(slows)))
    base = base_of(rounds(1.0), rounds(*slows))
    told = warnings_of(ours, base)[-1]
    assert told.startswith("the target's own figure drifted by -17")
    arms = Arm(ours, 3, "bfloat16"), Arm(base.rounds, 0, "bfloat16")
    steady, drifting = (speedup_part(*arms, drift=each).interval.value for each in (None, base.drift))
    assert drifting[1] / steady[1] == pytest.approx(math.exp(base.drift.moved))  # type: ignore[index, union-attr]


def test_past_the_limit_there_is_no_speedup_and_it_is_said_why() -> None:
    """Three pairs while the target takes half as long again: one of them may be off by a sixth."""
    base = base_of(rounds(1.0), rounds(1.0, 1.25, 1.5))
    assert base.drift is not None
    sure = replace(base.drift, sure=0.3)
    part = speedup_part(Arm(rounds(0.5, 0.6, 0.7), 3, "b"), Arm(base.rounds, 0, "b"), drift=sure)
    assert part.ratio.value is None
    assert "which alone may have moved the figure by 14%, more than 5%" in str(part.ratio.reason)


def test_energy_over_the_target_is_paired_as_the_speedup_is() -> None:
    """Joules a token round by round: an interval of pairs, and none over a target that drifted too far."""
    ours, steady, drifts = (
        Arm(
            replace(
                rounds(1.0, 1.0, 1.0, 1.0),
                energy=EnergyPart(joules_per_token=Figure(sum(joules) / 40), joules_each_round=joules),
            ),
            3,
            "b",
        )
        for joules in ((5.0, 5.1, 4.9, 5.0), (10.0, 10.2, 9.8, 10.0), (10.0, 20.0, 40.0, 80.0))
    )
    part = over_target(ours, steady)
    assert part.over_target == Figure(0.5)
    assert part.over_target_interval.value == pytest.approx((0.5, 0.5))
    assert over_target(ours, drifts).over_target.value is None
    assert "drifted by +700.0%" in str(over_target(ours, drifts).over_target.reason)
