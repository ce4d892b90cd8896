"""What a server counted, from its Prometheus page: exact names, all label sets added up, differences around a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pytest_specdec.engines.server.dialects import Counters
from pytest_specdec.generation import Speculation

LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
POSITION = re.compile(r'(?:^|,)position="(\d+)"')


@dataclass(frozen=True)
class Counted:
    """One reading. None: the page has no counter of that name."""

    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    per_position: tuple[int, ...] = field(default=())
    prefix_cache_hits: int | None = None

    @classmethod
    def read(cls, page: str, names: Counters) -> Counted:
        """Take the counters of these names from a page."""
        samples = list(_samples(page))
        return cls(
            drafts=_total(samples, names.drafts),
            draft_tokens=_total(samples, names.draft_tokens),
            accepted_tokens=_total(samples, names.accepted_tokens),
            per_position=_by_position(samples, names.per_position),
            prefix_cache_hits=_total(samples, names.prefix_cache_hits),
        )

    def since(self, before: Counted) -> Speculation | None:
        """The speculation between two readings; None where the server does not tell drafts and tokens."""
        moved = [
            _moved(now, then)
            for now, then in (
                (self.drafts, before.drafts),
                (self.draft_tokens, before.draft_tokens),
                (self.accepted_tokens, before.accepted_tokens),
            )
        ]
        if None in moved:
            return None
        earlier = (*before.per_position, *(0,) * len(self.per_position))
        positions = tuple(now - then for now, then in zip(self.per_position, earlier, strict=False))
        return Speculation(moved[0] or 0, moved[1] or 0, moved[2] or 0, positions)

    def hits_since(self, before: Counted) -> int | None:
        """Prompt tokens found in the prefix cache between two readings."""
        return _moved(self.prefix_cache_hits, before.prefix_cache_hits)


Sample = tuple[str, str, int]


def _samples(page: str) -> Iterator[Sample]:
    """(name, labels, value) of each line that is no comment."""
    for line in page.splitlines():
        if (found := LINE.match(line)) and not line.startswith("#"):
            try:
                yield found[1], found[2] or "", int(float(found[3]))
            except (ValueError, OverflowError):
                continue


def _total(samples: Iterable[Sample], names: tuple[str, ...]) -> int | None:
    for name in names:
        values = [value for called, _, value in samples if called == name]
        if values:
            return sum(values)
    return None


def _by_position(samples: Iterable[Sample], names: tuple[str, ...]) -> tuple[int, ...]:
    for name in names:
        counts: Counter[int] = Counter()
        for called, labels, value in samples:
            if called == name and (position := POSITION.search(labels)):
                counts[int(position[1])] += value
        if counts:
            return tuple(counts[at] for at in range(max(counts) + 1))
    return ()


def _moved(now: int | None, then: int | None) -> int | None:
    return None if now is None else now - (then or 0)
