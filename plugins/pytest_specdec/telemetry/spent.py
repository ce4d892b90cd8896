"""What a gate's time was spent on: each second counts once, for the innermost block that is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_specdec.record import Figure
from pytest_specdec.record.parts import TimesPart

LOAD, WARM_UP, DECODE, RATE, LOOK_AGAIN = "load_s", "warmup_s", "decode_s", "rating_s", "second_look_s"
WHY_NONE = {
    LOAD: "its engines were loaded before",
    WARM_UP: "nothing was decoded to warm up",
    DECODE: "nothing was decoded",
    RATE: "its target was calibrated before, and no answer differed from the target's own",
    LOOK_AGAIN: "the first look decided",
}


class Spent:
    """Seconds since `begin`, by name. A second look counts as such with all that it does but loading."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._names: list[str] = []
        self._since = 0.0

    def begin(self) -> None:
        """Forget what was spent until now."""
        self._seconds = {}

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Count the time of this block under this name."""
        self._count()
        self._names.append(LOOK_AGAIN if LOOK_AGAIN in self._names and name != LOAD else name)
        try:
            yield
        finally:
            self._count()
            self._names.pop()

    @property
    def part(self) -> TimesPart:
        """Of the record."""
        return TimesPart(**{name: Figure(self._seconds.get(name), why) for name, why in WHY_NONE.items()})

    def _count(self) -> None:
        now = self._clock()
        if self._names:
            name = self._names[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now
