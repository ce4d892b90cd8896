"""From which concurrency on speculation no longer pays: where its gain over the target alone crosses 1.

Between two measured values the logarithm of the gain is a straight line over that of the concurrency; the bracket does
without that: the largest value that surely pays, and the smallest above it that surely does not, by their intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_specdec.record import Figure

NONE_MEASURED = "no gain was measured"
PAYS, SEEMS_TO_PAY = (
    "pays at every concurrency measured",
    "seems to pay at every concurrency measured, not surely at all",
)
LOSES, SEEMS_TO_LOSE = "pays at no concurrency measured", "seems to pay at no concurrency measured, not surely at all"


@dataclass(frozen=True)
class Point:
    """The gain at a concurrency: how many times better than the target alone; no bounds where rounds give none."""

    concurrency: int
    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def pays(self) -> bool:
        """Whether it surely does."""
        return self.low is not None and self.low > 1

    @property
    def loses(self) -> bool:
        """Whether it surely does not."""
        return self.high is not None and self.high < 1


@dataclass(frozen=True)
class BreakEven:
    """`concurrency`: where the estimate falls through 1. `pays_up_to`, `loses_from`: the measured values around it."""

    concurrency: Figure[float]
    pays_up_to: int | None = None
    loses_from: int | None = None

    def in_words(self) -> str:
        """E.g. "break-even between 64 and 128, at about 83"."""
        if self.concurrency.value is None:
            return str(self.concurrency.reason)
        above = f"above {self.pays_up_to}" if self.pays_up_to is not None else ""
        below = f"below {self.loses_from}" if self.loses_from is not None else ""
        between = f"between {self.pays_up_to} and {self.loses_from}" if above and below else above or below
        return ", ".join(filter(None, (f"break-even {between}".rstrip(), f"at about {self.concurrency.value:.0f}")))


def break_even_concurrency(points: Sequence[Point]) -> BreakEven:
    """Of these points, one a concurrency; where the gain falls through 1 more than once the last one counts.

    The figure is null, with what they say instead, where it does not, or has risen above 1 again at the last of them.
    """
    ordered = sorted(points, key=lambda point: point.concurrency)
    pays_up_to = max((each.concurrency for each in ordered if each.pays), default=None)
    above = (each.concurrency for each in ordered if each.loses and each.concurrency > (pays_up_to or 0))
    ends_below = bool(ordered) and ordered[-1].ratio < 1
    falls = [(here, then) for here, then in pairwise(ordered) if ends_below and here.ratio >= 1 > then.ratio]
    crossing = _crossing(*falls[-1]) if falls else None
    return BreakEven(Figure(crossing, _why_none(ordered)), pays_up_to, min(above, default=None))


def _crossing(here: Point, then: Point) -> float:
    share = math.log(here.ratio) / math.log(here.ratio / then.ratio)
    return float(here.concurrency * (then.concurrency / here.concurrency) ** share)


def _why_none(ordered: Sequence[Point]) -> str:
    if not ordered:
        return NONE_MEASURED
    first, last = ordered[0].concurrency, ordered[-1].concurrency
    if ordered[-1].ratio < 1:
        return f"{LOSES if all(each.loses for each in ordered) else SEEMS_TO_LOSE}, from {first} to {last}"
    rising = [then.concurrency for here, then in pairwise(ordered) if here.ratio < 1 <= then.ratio]
    if rising:
        return f"pays from {rising[-1]} on at every concurrency measured, up to {last}"
    return f"{PAYS if all(each.pays for each in ordered) else SEEMS_TO_PAY}, up to {last}"
