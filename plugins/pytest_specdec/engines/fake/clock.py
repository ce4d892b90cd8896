"""Time that passes only when told to, and the function that reads it."""

from __future__ import annotations


class FakeTime:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


TIME = FakeTime()


def clock() -> float:
    """The fake time, in seconds, as a timer of pytest-benchmark."""
    return TIME.now
