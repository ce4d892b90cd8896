"""How often a thing of a known chance comes at most: the bound of simulations that count.

By scipy.special: scipy.stats takes half a second to import, and each worker would pay it.
"""

from __future__ import annotations

import math

from scipy.special import bdtr, bdtrik


def quantile(share: float, runs: int, chance: float) -> int:
    """The fewest successes of `runs` that are not exceeded with a probability of `share` or more."""
    found = math.ceil(bdtrik(share, runs, chance))
    return found - 1 if found > 0 and bdtr(found - 1, runs, chance) >= share else found
