"""Server-sent events: what a stream said, event by event, and when the last byte of each event came."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

DONE = "[DONE]"


@dataclass(frozen=True)
class Event:
    """One event: when it was whole, its name (None for an ordinary one), and its data."""

    at_s: float
    name: str | None
    data: str

    def value(self) -> dict[str, Any]:
        """The data as JSON. Raises ValueError."""
        value = json.loads(self.data)
        if not isinstance(value, dict):
            raise ValueError(f"an event that is no JSON object: {self.data[:80]}")
        return value


def events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[Event]:
    """The events of a stream that came in these pieces; what is left of an unfinished one is passed over."""
    left = b""
    lines: list[str] = []
    for at_s, piece in pieces:
        *whole, left = (left + piece).split(b"\n")
        for raw in whole:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line:
                lines.append(line)
            else:
                yield from _event(at_s, lines)
                lines = []


def _event(at_s: float, lines: Sequence[str]) -> Iterator[Event]:
    fields = [(name, value.removeprefix(" ")) for name, _, value in (line.partition(":") for line in lines)]
    data = [value for name, value in fields if name == "data"]
    named = [value for name, value in fields if name == "event"]
    if data or named:
        yield Event(at_s, named[-1] if named else None, "\n".join(data))
