"""The moments at which requests are due, in seconds after the run began: one schedule, drawn before anything is sent.

The first request is due at 0, and the gaps after it have a mean of exactly 1/rate, as vLLM's serving benchmark scales
them too (vllm/benchmarks/serve.py): so the asked rate is the scheduled one, and two seeds differ in bunching alone.
Gaps come from NumPy's legacy generator, `RandomState` on MT19937, whose streams NumPy has frozen (NEP 19), and moments
are rounded to microseconds, so that the last digit of a logarithm does not tell two machines apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

DIGITS = 6


def evenly(count: int, rate: float) -> tuple[float, ...]:
    """`count` moments, each 1/rate seconds after the one before; `rate` in requests a second."""
    return _round(index / rate for index in range(count))


def at_random(count: int, rate: float, burstiness: float, seed: int) -> tuple[float, ...]:
    """`count` moments with gamma distributed gaps of mean 1/rate and shape `burstiness`.

    1 is a Poisson process, with exponential gaps; below 1 requests come in bursts, above 1 more evenly.
    """
    gaps = _draw(count - 1, burstiness, seed)
    if not gaps:
        return (0.0,)
    second = len(gaps) / rate / sum(gaps)
    return _round(accumulate((gap * second for gap in gaps), initial=0.0))


def _draw(count: int, shape: float, seed: int) -> list[float]:
    from numpy.random import MT19937, RandomState, SeedSequence

    dice = RandomState(MT19937(SeedSequence(seed)))
    return [float(gap) for gap in dice.standard_gamma(shape, count)]


def replay(times: Sequence[float], time_scale: float) -> tuple[float, ...]:
    """A trace's own times in seconds, from its first one on, each `time_scale` times as late."""
    return _round((time - times[0]) * time_scale for time in times)


def _round(moments: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(moment, DIGITS) for moment in moments)
