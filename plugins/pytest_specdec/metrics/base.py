"""The target-only rounds that a speed-up is taken over: turn by turn with the rounds of the other engine.

Machines drift: clocks, temperature, neighbours. What drifts hits both arms where their rounds take turns, also where
one of them sleeps meanwhile; how far the target's own rate has moved over its rounds is told (drift.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.metrics.drift import Drift
from pytest_specdec.metrics.interval import ratio_interval
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import TargetAlonePart

ALTERNATED = "alternated"
BEFORE = "before"
FEW_FOR_DRIFT = "fewer than three timed rounds of target-only beside these, so its drift is not known"
IS_BASELINE = "this is the target-only baseline"
TARGET_NOT_TIMED = "target-only was not timed"


@dataclass(frozen=True)
class Base:
    """`rounds`: the target's. `order`: how they stand to the others. `drift`: how far its rate moved over them."""

    rounds: Rounds
    order: str
    drift: Drift | None = None


def base_of(first: Rounds, beside: Rounds | None = None) -> Base:
    """`first`: when the target was measured. `beside`: turn by turn with the other engine."""
    if beside is not None and beside.measured:
        return Base(beside, ALTERNATED, Drift.of(beside.rates))
    return Base(first, BEFORE)


def warnings_of(rounds: Rounds, base: Base | None) -> list[str]:
    """What a reader of the figures must know before comparing them."""
    words = []
    ours, theirs = rounds.prefix_cache_hits or 0, (base.rounds.prefix_cache_hits or 0) if base else 0
    if base is not None and bool(ours) != bool(theirs):
        words.append(
            f"the prefix cache was warm in one arm only: it held {ours} prompt tokens here, {theirs} for target-only"
        )
    if rounds.warmup.steady is False:
        words.append(f"the last two of {rounds.warmup.rounds} warm-up rounds still differed by more than 5 %")
    return words + _warn_of_drift(rounds, base)


def _warn_of_drift(rounds: Rounds, base: Base | None) -> list[str]:
    """A word where the target surely moved by more than the speed-up is known to."""
    drift = base.drift if base is not None else None
    known = ratio_interval(rounds.rates, base.rounds.rates) if base is not None else None
    if drift is None or known is None or drift.sure <= math.log(known.high / known.low) / 2:
        return []
    return [f"{drift.in_words}, by more than the speed-up's own interval; up to {drift.moved:.1%} is added to that"]


def target_alone_part(base: Base | None) -> TargetAlonePart:
    """The record's word on the target's rounds, by which a reader can recompute the ratios."""
    if base is None:
        return missing(TargetAlonePart, IS_BASELINE)
    energy = base.rounds.energy
    return TargetAlonePart(
        tokens_per_second=Figure(base.rounds.tokens_per_second, TARGET_NOT_TIMED),
        rounds=base.order,
        drift=Figure(base.drift.ratio if base.drift else None, FEW_FOR_DRIFT),
        joules_per_token=energy.joules_per_token,
        energy_flags=energy.flags,
    )


SWITCHES = ("async_scheduling", "cuda_graphs", "prefix_caching")


def warn_of_switches(ours: Description, targets: Description | None) -> list[str]:
    """A warning for each switch that both engines told and that stands differently in the two."""
    theirs = targets.details if targets is not None else {}
    both = [name for name in SWITCHES if name in ours.details and name in theirs]
    return [_warning(name, ours.details[name], theirs[name]) for name in both if ours.details[name] != theirs[name]]


def _warning(name: str, ours: Any, theirs: Any) -> str:
    return (
        f"{name} is {_word(ours)} here and {_word(theirs)} for target-only, and the speed-up contains that difference; "
        "set it for both in the engine's options to compare like with like"
    )


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
