"""What is asked of a test's rounds, whether they answer it, and the failure that they do not.

A limit of the scenario (`min_speedup`, `max_energy_ratio`) and a threshold against an earlier run are questions. Rounds
go on until they are decided, as long as the time budget lasts; what is then still open fails, and says how many rounds
would decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.metrics.drift import Drift
from pytest_specdec.metrics.energy import ratio_over
from pytest_specdec.metrics.interval import MOST_ROUNDS, Interval, ratio_interval, rounds_to_decide
from pytest_specdec.metrics.rounds import Plan, Rounds
from pytest_specdec.record import Figure, Record
from pytest_specdec.run.describe import sketch
from pytest_specdec.run.session import Arms, Session

if TYPE_CHECKING:
    from pytest_specdec.workloads.scenario import Scenario

FEWEST = 4
Bounds = tuple[float, float]


def with_question(plan: Plan, session: Session, arms: Arms, scenario: Scenario, test: str) -> Plan:
    """The plan, with at least the rounds that an answer needs, and on until they decide; as it is for exact rounds."""
    regression = session.regression
    limits = (scenario.min_speedup, scenario.max_energy_ratio) if arms.spec.speculates else (None, None)
    if plan.interval is None or (limits == (None, None) and not (regression and regression.thresholds)):
        return plan

    def decided(rounds: Rounds, beside: Rounds | None) -> bool:
        known = (_speedup(rounds, beside), ratio_over(rounds, beside)) if beside is not None else ()
        if any(map(_crosses, known, limits)):
            return False
        return regression is None or not regression.wants_rounds(sketch(arms, scenario, rounds), test)

    return replace(plan, rounds=max(plan.rounds, FEWEST), decided=decided)


def _crosses(known: Interval | None, limit: float | None) -> bool:
    return known is not None and limit is not None and known.low < limit < known.high


def _speedup(rounds: Rounds, beside: Rounds) -> Interval | None:
    """Its interval, as the record will have it: a drift of the target makes it wider."""
    drift = Drift.of(beside.rates)
    return ratio_interval(rounds.rates, beside.rates, drift.moved if drift is not None else 0.0)


def undecided_limits(record: Record, scenario: Scenario) -> list[str]:
    """The failures that a figure keeps its limit, and that its interval does not."""
    if not record.acceptance.drafts.value:
        return []
    speedup, energy, rounds = record.speedup, record.energy, record.throughput.rounds
    return [
        f"inconclusive: {words} of {scenario.path}"
        for words in (
            *_undecided("speedup", speedup.ratio, speedup.interval, ("min_speedup", scenario.min_speedup), rounds),
            *_undecided(
                "energy_ratio",
                energy.over_target,
                energy.over_target_interval,
                ("max_energy_ratio", scenario.max_energy_ratio),
                rounds,
            ),
        )
    ]


def _undecided(
    name: str, figure: Figure[float], known: Figure[Bounds], limit: tuple[str, float | None], rounds: int
) -> Iterator[str]:
    key, bound = limit
    value, least = figure.value, key.startswith("min")
    if value is None or bound is None or (value < bound if least else value > bound):
        return
    if known.value is None:
        yield f"{name} {value:.3g} has no interval, and at least {FEWEST} rounds are needed to decide {key} = {bound:g}"
        return
    low, high = known.value
    if low < bound if least else high > bound:
        wanted = rounds_to_decide(math.log(high / low) / 2, abs(math.log(value / bound)), rounds)
        would = f"about {wanted} rounds" if wanted is not None else f"no {MOST_ROUNDS} rounds"
        told = f"{name} {value:.3g} [{low:.3g}, {high:.3g}], {rounds} rounds"
        yield f"{told}; {would} would decide {key} = {bound:g}"
