"""How well the change of a figure between two runs is known: a bootstrap over their rounds.

Each run's rounds are drawn again with replacement, the figure is taken from the drawn totals, and the change is that of
the two drawn figures. A percentile interval is too narrow for few rounds, so its tails are moved out as Hesterberg does
("What Teachers Should Know About the Bootstrap", The American Statistician 69(4), 2015: the expanded percentile
interval), which makes up for Student's t and for the divisor n at once. Own resampling with numpy, not
scipy.stats.bootstrap: a figure is a ratio of totals over the same drawn rounds, and scipy has no expanded tails.

With three rounds on each side, one run lies wholly beyond the other by chance in one case of 20, so nothing can be sure
at this level; with four it is one of 70. Fewer than FEWEST rounds therefore give no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

LEVEL = 0.95
ALARM_LEVEL = (1 - LEVEL) / 2
RESAMPLES = 10_000
SEED = 20_151_004
FEWEST = 4
MAX_CELLS = 4_000_000


@dataclass(frozen=True)
class Sample:
    """A figure over rounds. `figure`: its value over all of them. `rounds`: how many. `drawn`: for counts of shape
    (resamples, rounds), how often each round was drawn, the figure of every resample, shape (resamples,)."""

    figure: float
    rounds: int
    drawn: Callable[[Array], Array]


def ratio_of_totals(above: Sequence[float], below: Sequence[float], offset: float = 0.0) -> Sample | None:
    """offset + Σ above / Σ below, one value of each a round; None where nothing lies below."""
    import numpy

    over, under = numpy.asarray(above, float), numpy.asarray(below, float)
    if len(over) != len(under) or not len(over) or under.min() <= 0:
        return None
    figure = offset + float(over.sum() / under.sum())
    return Sample(figure, len(over), lambda counts: offset + (counts @ over) / (counts @ under))


def pooled_percentile(rounds: Sequence[Sequence[float]], percent: float) -> Sample | None:
    """A percentile over the values of all rounds, each round's values drawn together; None where a round has none."""
    import numpy

    if not rounds or not all(rounds):
        return None
    pooled = numpy.concatenate([numpy.asarray(values, float) for values in rounds])
    order = numpy.argsort(pooled, kind="stable")
    values, round_of = pooled[order], numpy.repeat(numpy.arange(len(rounds)), list(map(len, rounds)))[order]
    share = percent / 100
    figure = float(numpy.quantile(values, share))
    return Sample(figure, len(rounds), lambda counts: _percentiles(values, round_of, counts, share))


def _percentiles(values: Array, round_of: Array, counts: Array, share: float) -> Array:
    """By linear interpolation between the two nearest, as if each value stood there as often as its round was drawn."""
    import numpy

    batch = max(1, MAX_CELLS // len(values))
    parts = [
        _weigh(values, counts[first : first + batch][:, round_of], share) for first in range(0, len(counts), batch)
    ]
    return numpy.concatenate(parts)


def _weigh(values: Array, weights: Array, share: float) -> Array:
    import numpy

    upto = weights.cumsum(axis=1)
    place = (upto[:, -1] - 1) * share
    below = numpy.floor(place)
    above = numpy.minimum(below + 1, upto[:, -1] - 1)
    low, high = (values[(upto > rank[:, None]).argmax(axis=1)] for rank in (below, above))
    result: Array = low + (high - low) * (place - below)
    return result


def changes(
    now: Sample, base: Sample, *kinds: Callable[[Array, Array], Array]
) -> tuple[tuple[float, float], ...] | None:
    """For each `kind(now, base)` its interval at LEVEL, the same each time for the same rounds; None for too few."""
    import numpy

    fewest = min(now.rounds, base.rounds)
    if fewest < FEWEST:
        return None
    source = numpy.random.default_rng(SEED)
    drawn = [sample.drawn(_counts(source, sample.rounds)) for sample in (now, base)]
    tail = expanded_tail(fewest)
    bounds = [numpy.quantile(kind(*drawn), (tail, 1 - tail)) for kind in kinds]
    return tuple((float(low), float(high)) for low, high in bounds)


def own_width(sample: Sample) -> float | None:
    """Half the width of the figure's own interval, as a share of it; None for too few rounds."""
    import numpy

    if sample.rounds < FEWEST:
        return None
    drawn = sample.drawn(_counts(numpy.random.default_rng(SEED), sample.rounds))
    tail = expanded_tail(sample.rounds)
    low, high = numpy.quantile(drawn, (tail, 1 - tail))
    return float((high - low) / 2 / sample.figure)


def _counts(source: numpy.random.Generator, rounds: int) -> Array:
    return source.multinomial(rounds, [1 / rounds] * rounds, size=RESAMPLES)


def expanded_tail(rounds: int) -> float:
    """The share of resamples to leave out at each end, for this many rounds."""
    from scipy.special import stdtrit

    student = -float(stdtrit(rounds - 1, ALARM_LEVEL))
    return NormalDist().cdf(-math.sqrt(rounds / (rounds - 1)) * student)
