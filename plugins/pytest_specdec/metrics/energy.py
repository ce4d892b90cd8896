"""Joules a token of both arms side by side, round by round, only where they were obtained in the same way.

The rules are those of the speed-up: rounds take turns, the interval is that of pairs, and a target whose own figure
drifted too far has no ratio.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_specdec.metrics.drift import Drift
from pytest_specdec.metrics.interval import Interval, ratio_interval
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import EnergyPart

FEW_ROUNDS = "fewer than two rounds with energy beside the target's"


def with_ratio(ours: Rounds, base: Rounds) -> EnergyPart:
    """The energy of `ours`, with joules a token over those of `base` (below 1 saves energy), or why there is none."""
    drift = Drift.of(_each_round(base))
    reason = incomparable(ours.energy, base.energy) or (drift.too_far if drift is not None else None)
    mine, its = ours.energy.joules_per_token.value, base.energy.joules_per_token.value
    if reason is not None or mine is None or not its:
        return without_ratio(ours.energy, reason)
    known = ratio_over(ours, base)
    return replace(
        ours.energy,
        over_target=Figure(mine / its),
        over_target_interval=Figure((known.low, known.high) if known else None, FEW_ROUNDS),
    )


def ratio_over(ours: Rounds, base: Rounds) -> Interval | None:
    """The interval of the ratio, also while the meters run; None for too few rounds, or where none is measured."""
    theirs = _each_round(base)
    drift = Drift.of(theirs)
    return ratio_interval(_each_round(ours), theirs, drift.moved if drift is not None else 0.0)


def without_ratio(energy: EnergyPart, reason: str | None) -> EnergyPart:
    """The energy, and why it is not compared."""
    return replace(energy, over_target=Figure(None, reason), over_target_interval=Figure(None, reason))


def _each_round(rounds: Rounds) -> tuple[float, ...]:
    """Joules a token, round by round; empty where they were not measured."""
    joules = rounds.energy.joules_each_round or ()
    told = len(joules) == len(rounds.runs) and all(run.tokens for run in rounds.runs)
    return tuple(each / run.tokens for each, run in zip(joules, rounds.runs, strict=True)) if told else ()


def incomparable(mine: EnergyPart, base: EnergyPart) -> str | None:
    """Why these two must not be compared, or None."""
    for side, energy in (("this engine", mine), ("the target-only baseline", base)):
        if energy.joules_per_token.value is None:
            return f"{side} has no energy: {energy.joules_per_token.reason}"
    if mine.method != base.method:
        return f"methods are not mixed: {mine.method} here, {base.method} in the target-only baseline"
    if len(mine.scope) != len(base.scope):
        return f"{len(mine.scope)} device(s) here, {len(base.scope)} in the target-only baseline"
    return None
