"""What every meter does, and the one that does nothing and says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pytest_specdec.record.parts import EnergyPart
from pytest_specdec.telemetry.energy.reading import missing_energy

Clock = Callable[[], float]
Sleep = Callable[[float], None]

IDLE_SECONDS = 1.0


class MeterFault(Exception):
    """A source of readings failed; the message says which, and becomes the reason in the record."""


class Meter(Protocol):
    """One measurement of one engine's energy, from `start` over its rounds to `stop`; a failed reading never raises."""

    def start(self) -> None:
        """Measure the idle power of the loaded engine, for at least a second. It must not be decoding."""

    def begin_round(self) -> None:
        """A round begins when this returns."""

    def end_round(self) -> None:
        """The round ended when this was called."""

    def satisfied(self) -> bool:
        """Whether the rounds so far are long enough for a figure without the flag `short window`, or none will be."""

    def stop(self, tokens: int) -> EnergyPart:
        """The record's `energy`; `tokens`: delivered token ids over all rounds."""


class NoMeter:
    """Nothing can be measured, for this reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def start(self) -> None:
        """Nothing."""

    def begin_round(self) -> None:
        """Nothing."""

    def end_round(self) -> None:
        """Nothing."""

    def satisfied(self) -> bool:
        """More rounds would not help."""
        return True

    def stop(self, tokens: int) -> EnergyPart:
        """Null figures and the reason."""
        return missing_energy(self.reason)
