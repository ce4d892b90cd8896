"""Something done at a set interval beside the main thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Ticker(Protocol):
    """Calls an action at an interval between `start` and `stop`."""

    def start(self) -> None:
        """Begin to call."""

    def stop(self) -> None:
        """Call no more once this has returned."""


MakeTicker = Callable[[float, Callable[[], None]], Ticker]


class ThreadTicker:
    """A ticker on a thread of its own."""

    def __init__(self, interval: float, action: Callable[[], None]) -> None:
        """`interval` in seconds between the end of one call and the next."""
        self._interval, self._action = interval, action
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._tick, name="specdec ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; nothing happens if it does not run."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _tick(self) -> None:
        while not self._ended.wait(self._interval):
            self._action()
