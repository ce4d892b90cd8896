"""How far the target's own rate moved while it was measured, and what that may have done to a figure over it.

Machines drift: clocks, temperature, neighbours. A line through the logarithms of the target's rounds tells how far it
went from the first to the last. Arms that go first in turn cancel a steady drift. One that is not steady, all of it in
the middle of one of n pairs at worst, moves their mean by no more than an n-th of it: so far the interval is widened.
Where that alone is more than LIMIT there is no figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_specdec.metrics.interval import half_width, squared_error

LIMIT = 0.05
FEWEST = 3


@dataclass(frozen=True)
class Drift:
    """`log`: of the last over the first round, by the line. `sure`: what of it the scatter does not explain, 0 or more.

    `rounds`: how many.
    """

    log: float
    sure: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Drift | None:
        """From rates, or joules a token, round by round; None for too few, or one that is not positive."""
        count = len(values)
        if count < FEWEST or min(values) <= 0:
            return None
        logs, middle = [math.log(each) for each in values], (count - 1) / 2
        spread = sum((place - middle) ** 2 for place in range(count))
        slope = sum((place - middle) * each for place, each in enumerate(logs)) / spread
        apart = [each - fmean(logs) - slope * (place - middle) for place, each in enumerate(logs)]
        scatter = squared_error(apart) * count * (count - 1) / (count - 2)
        half = half_width(scatter / spread, count - 2) * (count - 1)
        log = slope * (count - 1)
        return cls(log, max(0.0, abs(log) - half), count)

    @property
    def ratio(self) -> float:
        """The last round's over the first one's."""
        return math.exp(self.log)

    @property
    def moved(self) -> float:
        """How far, as a logarithm, it may have moved a mean of pairs; 0 where the scatter may explain it all."""
        return abs(self.log) / self.rounds if self.sure else 0.0

    @property
    def too_far(self) -> str | None:
        """Why there is no figure over this target, or None."""
        if self.moved <= LIMIT:
            return None
        return (
            f"{self.in_words}, which alone may have moved the figure by {self.moved:.0%}, more than {LIMIT:.0%}: "
            "measure more rounds, on a machine that is left alone"
        )

    @property
    def in_words(self) -> str:
        """How far the target moved."""
        return f"the target's own figure drifted by {self.ratio - 1:+.1%} over {self.rounds} rounds"
