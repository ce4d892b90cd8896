"""What a server counted, from its Prometheus page: exact names, all label sets added up, differences around a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pytest_specdec.engines.server.dialects import Counters
from pytest_specdec.generation import Speculation


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
        samples = _samples(page)
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
            _difference(now, then)
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
        return _difference(self.prefix_cache_hits, before.prefix_cache_hits)


def _samples(page: str) -> list[Sample]:
    """The page's samples that are numbers; none where it is not Prometheus's text."""
    try:
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    except ValueError:
        return []
    return [sample for sample in samples if math.isfinite(sample.value)]


def _find(samples: Iterable[Sample], names: Iterable[str]) -> list[Sample]:
    """The samples of the first of these names that there is."""
    found = ([sample for sample in samples if sample.name == name] for name in names)
    return next(filter(None, found), [])


def _total(samples: Iterable[Sample], names: tuple[str, ...]) -> int | None:
    named = _find(samples, names)
    return sum(int(sample.value) for sample in named) if named else None


def _by_position(samples: Iterable[Sample], names: tuple[str, ...]) -> tuple[int, ...]:
    counts: Counter[int] = Counter()
    for sample in _find(samples, names):
        if "position" in sample.labels:
            counts[int(sample.labels["position"])] += int(sample.value)
    return tuple(counts[at] for at in range(max(counts, default=-1) + 1))


def _difference(now: int | None, then: int | None) -> int | None:
    return None if now is None else now - (then or 0)
