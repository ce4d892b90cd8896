"""From joules and seconds to the dictionary in the record, or to null figures with a reason.

A window shorter than two steps of its source has no figure. One shorter than a second, or than a hundred steps, has
one, and a flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEAST_STEPS = 2
ENOUGH_STEPS = 100
ENOUGH_SECONDS = 1.0
SHORT_WINDOW = "short window"
BELOW_IDLE = "mean power not above idle power"


@dataclass(frozen=True)
class Reading:
    """What a source gave over all rounds.

    `joules`, `seconds`: sums over the rounds. `idle_watts`: of the same devices, engine loaded. `step_seconds`: time
    between two changes of the source. `relative_error`: bound of the error that the edges of the rounds bring, as a
    fraction of the joules; None where it has no bound. `each_round`: joules of each.
    """

    method: str
    scope: tuple[str, ...]
    joules: float
    seconds: float
    idle_watts: float
    step_seconds: float
    relative_error: float | None
    each_round: tuple[float, ...] = ()

    @property
    def too_short(self) -> str | None:
        """Why this is no measurement, or None."""
        if self.seconds >= LEAST_STEPS * self.step_seconds and self.joules > 0:
            return None
        return (
            f"too short to measure: the rounds took {self.seconds:.3g} s, and the source moves each "
            f"{self.step_seconds:.3g} s; decode more tokens or more rounds"
        )

    @property
    def long_enough(self) -> bool:
        """Whether the window is beyond the flag `short window`."""
        return self.seconds >= max(ENOUGH_SECONDS, ENOUGH_STEPS * self.step_seconds)

    @property
    def flags(self) -> list[str]:
        """What the window itself says against the figures."""
        no_net = self.joules <= self.idle_watts * self.seconds
        return [SHORT_WINDOW] * (not self.long_enough) + [BELOW_IDLE] * no_net


def measured(reading: Reading, tokens: int, flags: Sequence[str]) -> dict[str, Any]:
    """The record's `energy` of a reading that may still turn out too short."""
    if reading.too_short:
        return not_measured(reading.too_short, reading, flags)
    net = reading.joules - reading.idle_watts * reading.seconds
    return {
        "joules": reading.joules,
        "joules_per_token": reading.joules / tokens if tokens else None,
        "net_joules_per_token": net / tokens if tokens and net > 0 else None,
        "mean_watts": reading.joules / reading.seconds,
        "joules_each_round": list(reading.each_round),
        **_how(reading),
        "flags": [*reading.flags, *flags],
        "reason": None if tokens else "no token was delivered, so there is no energy per token",
    }


def not_measured(reason: str, reading: Reading | None = None, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Null figures, with what is known of the attempt."""
    figures: dict[str, Any] = dict.fromkeys(("joules", "joules_per_token", "net_joules_per_token", "mean_watts"))
    how = (
        dict.fromkeys(("idle_watts", "seconds", "step_seconds", "relative_error")) if reading is None else _how(reading)
    )
    scope = list(reading.scope) if reading else []
    return {**figures, **how, "method": None, "scope": scope, "flags": list(flags), "reason": reason}


def _how(reading: Reading) -> dict[str, Any]:
    return {
        "idle_watts": reading.idle_watts,
        "method": reading.method,
        "scope": list(reading.scope),
        "seconds": reading.seconds,
        "step_seconds": reading.step_seconds,
        "relative_error": reading.relative_error,
    }
