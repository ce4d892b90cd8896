"""The gain over the target alone, and from which concurrency on speculation no longer pays: where it crosses 1.

Between two measured values the logarithm of the gain is a straight line over that of the concurrency; the bracket does
without that: the largest value that surely pays, and the smallest above it that surely does not, by their intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_specdec.metrics.interval import bounds_in_words
from pytest_specdec.record import Figure

NO_GAIN = 1.02
NONE_MEASURED = "no gain was measured"
PAYS, LOSES = "pays at every concurrency measured", "pays at no concurrency measured"


@dataclass(frozen=True)
class Gain:
    """How many times better than the target alone; without bounds where the rounds give no interval."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def pays(self) -> bool:
        """Whether it surely does."""
        return self.low is not None and self.low > 1

    @property
    def loses(self) -> bool:
        """Whether it surely does not pay."""
        return self.high is not None and self.high < 1

    @property
    def excluded(self) -> bool:
        """Whether it is no better, or by less than counts."""
        return self.high is not None and self.ratio < 1 and self.high < NO_GAIN

    @property
    def inverse(self) -> Gain:
        """The same as a share of what the target alone takes."""
        return Gain(1 / self.ratio, self.high and 1 / self.high, self.low and 1 / self.low)

    def __str__(self) -> str:
        """E.g. "2.43× [2.39, 2.47]"."""
        bounds = "" if self.low is None or self.high is None else f" {bounds_in_words((self.low, self.high))}"
        return f"{self.ratio:.2f}×{bounds}"


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


def break_even_concurrency(gains: Mapping[int, Gain]) -> BreakEven:
    """By the gain at each concurrency; where it falls through 1 more than once the last one counts.

    The figure is null, with what they say instead, where it does not, or has risen above 1 again at the last of them.
    """
    ordered = sorted(gains.items())
    pays_up_to = max((at for at, gain in ordered if gain.pays), default=None)
    above = (at for at, gain in ordered if gain.loses and at > (pays_up_to or 0))
    ends_below = bool(ordered) and ordered[-1][1].ratio < 1
    falls = [(here, then) for here, then in pairwise(ordered) if ends_below and here[1].ratio >= 1 > then[1].ratio]
    crossing = _crossing(*falls[-1]) if falls else None
    return BreakEven(Figure(crossing, _why_none(ordered)), pays_up_to, min(above, default=None))


def _crossing(here: tuple[int, Gain], then: tuple[int, Gain]) -> float:
    (first, above), (last, below) = here, then
    share = math.log(above.ratio) / math.log(above.ratio / below.ratio)
    return float(first * (last / first) ** share)


def _why_none(ordered: Sequence[tuple[int, Gain]]) -> str:
    if not ordered:
        return NONE_MEASURED
    (first, _), (last, at_last) = ordered[0], ordered[-1]
    if at_last.ratio < 1:
        return f"{LOSES}, from {first} to {last}{_unsure(ordered, lambda gain: gain.loses)}"
    rising = [at for (_, here), (at, then) in pairwise(ordered) if here.ratio < 1 <= then.ratio]
    if rising:
        sure = all(gain.pays for at, gain in ordered if at >= rising[-1])
        before = [str(at) for at, gain in ordered if at < rising[-1] and gain.pays]
        told = f"{'pays' if sure else 'seems to pay, not surely,'} from {rising[-1]} on at every concurrency measured"
        return f"{told}, up to {last}" + (f", and at {', '.join(before)}" if before else "")
    return f"{PAYS}, up to {last}{_unsure(ordered, lambda gain: gain.pays)}"


def _unsure(ordered: Sequence[tuple[int, Gain]], sure: Callable[[Gain], bool]) -> str:
    """Where it only seems so."""
    left = [str(at) for at, gain in ordered if not sure(gain)]
    return f", not surely at {', '.join(left)}" if left else ""
