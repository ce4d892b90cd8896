"""The target-only rounds that a speed-up is taken over, and how they stand in time to the rounds beside them.

Machines drift: clocks, temperature, neighbours. Where both engines are resident their rounds take turns, and what
drifts hits both. Where the target must sleep meanwhile, it is timed before and once more after, and how far its own
rate has moved in between is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import TargetAlonePart

ALTERNATED = "alternated"
AROUND = "before and after"
BEFORE = "before"
ONCE = "target-only was timed once, so its drift is not known"
IS_BASELINE = "this is the target-only baseline"
TARGET_NOT_TIMED = "target-only was not timed"


@dataclass(frozen=True)
class Base:
    """`rounds`: the target's. `order`: how they stand to the others. `drift`: its later over its earlier rate."""

    rounds: Rounds
    order: str
    drift: float | None = None

    @property
    def paired(self) -> bool:
        """Whether each round stands beside one of the other engine."""
        return self.order == ALTERNATED


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


def target_alone_part(base: Base | None) -> TargetAlonePart:
    """The record's word on the target's rounds, by which a reader can recompute the ratios."""
    if base is None:
        return missing(TargetAlonePart, IS_BASELINE)
    energy = base.rounds.energy
    return TargetAlonePart(
        tokens_per_second=Figure(base.rounds.tokens_per_second, TARGET_NOT_TIMED),
        rounds=base.order,
        drift=Figure(base.drift, ONCE),
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
