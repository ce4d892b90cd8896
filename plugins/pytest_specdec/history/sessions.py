"""How far sessions of the same code differ, which the rounds of one session do not tell.

A session's figure is the code's own and something of that session's: where memory came to lie, clocks, heat, other
guests of the machine. How far that scatters is estimated from the last runs that measured the same with the same
versions (random effects), together with what 20 sessions of the same code showed in docs/evidence/regression-gate.md.
The scatter is never taken smaller than these runs' own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

SCATTER = 0.025
WORTH = 19
MOST = 8
SURE = 0.99
DETERMINED = ("acceptance_rate", "mean_accepted_length")


def sessions_differ(earlier: Sequence[float]) -> float:
    """The most, as a share, that 99 of 100 sessions of the same code are worse than the mean of these earlier ones."""
    from scipy.special import stdtrit

    logs = [math.log(each) for each in earlier]
    count, squares = len(logs), sum((each - fmean(logs)) ** 2 for each in logs)
    freedom = WORTH + count - 1
    own = squares / (count - 1) if count > 1 else 0.0
    scatter = max((WORTH * SCATTER**2 + squares) / freedom, own)
    return float(stdtrit(freedom, SURE)) * math.sqrt(scatter * (1 + 1 / count))


def mean_of(earlier: Sequence[float]) -> float:
    """What a new session is held against: the geometric mean."""
    return math.exp(fmean(math.log(each) for each in earlier))
