"""From joules and seconds to the record's energy, or to null figures with a reason.

A window shorter than two steps of its source has no figure. One shorter than a second, or than a hundred steps, has
one, and a flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import EnergyPart

LEAST_STEPS = 2
ENOUGH_STEPS = 100
ENOUGH_SECONDS = 1.0
SHORT_WINDOW = "short window"
BELOW_IDLE = "mean power not above idle power"
NO_TOKEN = "no token was delivered, so there is no energy per token"
NO_BOUND = "an estimate, whose error has no bound"


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


def energy_part(reading: Reading, tokens: int, flags: Sequence[str]) -> EnergyPart:
    """The record's energy of a reading that may still turn out too short."""
    if reading.too_short:
        return missing_energy(reading.too_short, reading, flags)
    net = reading.joules - reading.idle_watts * reading.seconds
    return replace(
        _how(reading, EnergyPart()),
        method=reading.method,
        joules=Figure(reading.joules),
        joules_per_token=Figure(reading.joules / tokens if tokens else None, NO_TOKEN),
        net_joules_per_token=Figure(net / tokens if tokens and net > 0 else None, BELOW_IDLE if tokens else NO_TOKEN),
        mean_watts=Figure(reading.joules / reading.seconds),
        joules_each_round=reading.each_round,
        flags=(*reading.flags, *flags),
    )


def missing_energy(reason: str, reading: Reading | None = None, flags: Sequence[str] = ()) -> EnergyPart:
    """Null figures, with what is known of the attempt."""
    nothing = missing(EnergyPart, reason)
    known = nothing if reading is None else _how(reading, nothing)
    return replace(known, flags=tuple(flags))


def _how(reading: Reading, part: EnergyPart) -> EnergyPart:
    return replace(
        part,
        idle_watts=Figure(reading.idle_watts),
        scope=reading.scope,
        seconds=Figure(reading.seconds),
        step_seconds=Figure(reading.step_seconds),
        relative_error=Figure(reading.relative_error, NO_BOUND),
    )
