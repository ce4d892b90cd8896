"""Which rows of a file are asked: the first ones, or ones drawn by chance; and what becomes of those that are wrong.

Rows are taken as they are read. The first ones need no look at the rest of the file, and drawing holds no more than it
draws, so that a trace of millions of rows costs little memory.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.rows.row import Item, Wrong

_MOST_TOLD = 5


@dataclass(frozen=True)
class Chosen:
    """The items in the order in which they are asked, how many rows were skipped, and the first of those."""

    items: tuple[Item, ...]
    skipped: int = 0
    first_skipped: Wrong | None = None


@dataclass(frozen=True)
class Choice:
    """`count`: how many, None for all. `seed`: draws them, None for the order of the file. `skip`: leave wrong ones."""

    count: int | None
    seed: int | None
    skip: bool

    def of(self, found: Iterable[Item | Wrong], name: str) -> Chosen:
        """Choose among what is found. Raises ConfigurationError that names wrong rows, unless they are skipped."""
        wrong: list[Wrong] = []
        good = self._good(iter(found), wrong, name)
        items = islice(good, self.count) if self.seed is None else iter(self._draw(good, self.seed))
        chosen = tuple(items)
        return Chosen(chosen, len(wrong), wrong[0] if wrong else None)

    def _good(self, found: Iterator[Item | Wrong], wrong: list[Wrong], name: str) -> Iterator[Item]:
        for each in found:
            if isinstance(each, Item):
                yield each
                continue
            wrong.append(each)
            if not self.skip:
                wrong += islice((other for other in found if isinstance(other, Wrong)), _MOST_TOLD)
                raise ConfigurationError(_describe(wrong, name))

    def _draw(self, good: Iterator[Item], seed: int) -> list[Item]:
        """The items with the smallest random keys, smallest first: so a larger count begins with a smaller one."""
        dice = random.Random(seed)
        keyed = ((dice.random(), number, item) for number, item in enumerate(good))
        ordered = sorted(keyed) if self.count is None else heapq.nsmallest(self.count, keyed)
        return [item for _, _, item in ordered]


def _describe(wrong: list[Wrong], name: str) -> str:
    """Each reason once, with the rows that have it, and the two remedies."""
    places: dict[str, list[str]] = {}
    for each in wrong[:_MOST_TOLD]:
        places.setdefault(each.why, []).append(each.at)
    told = [f"{name}{','.join(where)}: {why}" for why, where in places.items()]
    more = ["and more of them"] if len(wrong) > _MOST_TOLD else []
    return "; ".join([*told, *more, "correct such rows, or leave them out with skip_malformed = true"])
