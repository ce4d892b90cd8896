"""Two figures of energy side by side, only where they were obtained in the same way."""

from __future__ import annotations

from pytest_specdec.record import Figure
from pytest_specdec.record.parts import EnergyPart


def energy_ratio(mine: EnergyPart, base: EnergyPart) -> Figure[float]:
    """Joules a token of `mine` over `base` (below 1 saves energy), or the reason why there is none."""
    ours, theirs = mine.joules_per_token.value, base.joules_per_token.value
    reason = incomparable(mine, base)
    return Figure(ours / theirs if reason is None and ours is not None and theirs else None, reason)


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
