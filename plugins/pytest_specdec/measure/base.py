"""The target-only rounds that a speed-up is taken over, and how they stand in time to the rounds beside them.

Machines drift: clocks, temperature, neighbours. Where both engines are resident their rounds take turns, and what
drifts hits both. Where the target must sleep meanwhile, it is timed before and once more after, and how far its own
rate has moved in between is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pytest_specdec.measure.interval import ratio_interval
from pytest_specdec.measure.rounds import Rounds

ALTERNATED = "alternated"
AROUND = "before and after"
BEFORE = "before"
NOT_TIMED = "fewer than two timed rounds on a side"
ONCE = "target-only was timed once, so its drift is not known"


@dataclass(frozen=True)
class Base:
    """`rounds`: the target's. `order`: how they stand to the others. `drift`: its later over its earlier rate."""

    rounds: Rounds
    order: str
    drift: float | None = None


def base_of(first: Rounds, beside: Rounds | None = None, later: Rounds | None = None) -> Base:
    """`first`: when the target was measured. `beside`: turn by turn with the other engine. `later`: after it."""
    if beside is not None and beside.measured:
        return Base(replace(beside, energy=first.energy), ALTERNATED, _drift(first, beside))
    if later is not None and later.measured:
        return Base(first.then(later), AROUND, _drift(first, later))
    return Base(first, BEFORE)


def _drift(earlier: Rounds, later: Rounds) -> float | None:
    before, after = earlier.tokens_per_second, later.tokens_per_second
    return after / before if before and after else None


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
    return words


def base_part(rounds: Rounds, base: Base | None, speedup: float | None) -> dict[str, Any]:
    """The record's word on how the arms stood to each other, and the interval of the speed-up if there is one."""
    if base is None:
        return {"target_rounds": None, "target_drift": None, "speedup_interval": None}
    known = ratio_interval(rounds.rates, base.rounds.rates, base.order == ALTERNATED) if speedup else None
    return {
        "target_rounds": base.order,
        "target_drift": base.drift,
        **({} if base.drift else {"target_drift_reason": ONCE}),
        "speedup_interval": [known.low, known.high] if known else None,
        **({} if known else {"speedup_interval_reason": NOT_TIMED if speedup else "there is no speed-up"}),
    }
