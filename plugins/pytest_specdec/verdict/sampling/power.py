"""What a test can see: power by the noncentral χ² distribution, and bounds on the total variation.

Whatever form a difference takes, Pinsker's inequality ties its size to the G-test: a total variation δ, on average over
the prefixes of a position, gives a noncentrality of 4·n·δ² or more, where n is the effective number of samples. So the
power that is stated holds for the least favourable difference of that size.
"""

from __future__ import annotations

from math import log, sqrt


def tail(statistic: float, dof: int) -> float:
    """The p-value of a statistic; 1 where there is nothing to test."""
    from scipy.special import chdtrc

    return float(chdtrc(dof, statistic)) if dof else 1.0


def power(dof: int, effective: float, total_variation: float, level: float) -> float:
    """The probability to find a difference of this size at this level; 0 where there is nothing to test."""
    if not dof:
        return 0.0
    from scipy.special import chdtri, chndtr

    return float(1 - chndtr(chdtri(dof, level), dof, 4 * effective * total_variation**2))


def sample_size(dof: int, wanted: float, total_variation: float, level: float) -> float:
    """The effective number of samples at which `power` is as wanted."""
    from scipy.special import chdtri, chndtrinc

    return float(chndtrinc(chdtri(dof, level), dof, 1 - wanted)) / (4 * total_variation**2)


def radius(dof: int, effective: float, doubt: float) -> float:
    """How far the measured total variation may lie from the true one, but for a chance of `doubt`; at most 1.

    The expected distance between a sample and its distribution, and McDiarmid's inequality for the rest: it holds for
    every number of samples.
    """
    if not dof:
        return 1.0
    return min(1.0, sqrt(dof / effective) / 2 + sqrt(log(1 / doubt) / (2 * effective)))
