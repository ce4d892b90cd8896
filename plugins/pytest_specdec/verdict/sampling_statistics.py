"""The plan of a sampling verdict, what was counted, and the tests of it.

Samples come in equal batches, and after each one is a look at all of them. Every look may spend the same share of the
level (Bonferroni), and a clean engine may be let go at the first look that sees enough. Counts are tested by the
G-test; what a test can see is its power by the noncentral χ² distribution.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil, fsum, log
from typing import Any, TypeAlias

from pytest_specdec.errors import ConfigurationError, EngineError

SEED_LIMIT = 2**31
SHARES = ("total_variation", "power", "level")
COUNTS = ("samples", "looks", "width")
Prefix: TypeAlias = tuple[int, ...]
Draw: TypeAlias = Callable[[Sequence[int]], Sequence[tuple[int, ...]]]


@dataclass(frozen=True)
class SamplingPlan:
    """What a sampling verdict must be able to see.

    `total_variation`: the difference to be found at any tested position, from 0 to 1, with probability `power` or more.
    `level`: the chance that a faultless engine is called different, over all positions and looks together. `samples`:
    the most samples drawn from each arm; `looks`: into how many batches they are cut. `depth`: the longest prefix, so
    that tokens 1 to depth + 1 are tested; γ + 1 reaches the bonus token. `width`: how many prefixes of each length.
    `seed` decides every sample's own seed.
    """

    total_variation: float = 0.1
    power: float = 0.9
    level: float = 0.001
    samples: int = 8000
    looks: int = 4
    depth: int = 3
    width: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in SHARES:
            if not 0 < getattr(self, name) < 1:
                raise ConfigurationError(f"sampling plan: {name} = {getattr(self, name)!r} is not between 0 and 1")
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"sampling plan: {name} = {getattr(self, name)!r} must be 1 or more")
        if self.depth < 0:
            raise ConfigurationError(f"sampling plan: depth = {self.depth!r} must be 0 or more")
        if not self.looks <= self.samples <= SEED_LIMIT // 4:
            raise ConfigurationError(
                f"sampling plan: samples = {self.samples!r} must be at least one for each of {self.looks} looks, "
                f"and at most {SEED_LIMIT // 4}"
            )

    @classmethod
    def for_gamma(cls, gamma: int | None, **changes: Any) -> SamplingPlan:
        """The plan that reaches every position of the first step: the first token, γ drafts and the bonus token.

        Raises ConfigurationError for a name that the plan does not have.
        """
        known = [field.name for field in fields(cls)]
        for name in changes:
            if name not in known:
                raise ConfigurationError(f"sampling plan: unknown key {name!r}; known keys: {', '.join(known)}")
        return cls(**{"depth": (gamma or 0) + 1, **changes})

    @property
    def tokens(self) -> int:
        """Tokens that each sample must have."""
        return self.depth + 1

    @property
    def batch(self) -> int:
        """Samples drawn from each arm before each look."""
        return ceil(self.samples / self.looks)

    @property
    def level_of_look(self) -> float:
        """What one look may spend of the level."""
        return self.level / self.looks

    @cached_property
    def _all_seeds(self) -> list[int]:
        return random.Random(f"sampling:{self.seed}").sample(range(SEED_LIMIT), 2 * self.looks * self.batch)

    def engine_seeds(self, look: int) -> list[int]:
        """The seeds of the engine's samples before look 1, 2, …; no seed occurs twice in a plan, in either arm.

        Two arms that shared seeds would share random numbers, and their samples would not be independent.
        """
        return self._all_seeds[(look - 1) * self.batch : look * self.batch]

    def target_seeds(self, look: int) -> list[int]:
        """The seeds of the target's samples before look 1, 2, …"""
        return self.engine_seeds(look + self.looks)


class Tally:
    """Counts of samples of one prompt, each at least `tokens` long; what lies beyond is not looked at."""

    def __init__(self, draw: Draw, tokens: int) -> None:
        self._draw, self._tokens = draw, tokens
        self._following: defaultdict[Prefix, Counter[int]] = defaultdict(Counter)
        self.samples = 0

    def observe(self, seeds: Sequence[int]) -> None:
        """Draw one sample for each seed and count it. Raises EngineError where a sample is missing or too short."""
        drawn = self._draw(seeds)
        if len(drawn) != len(seeds):
            raise EngineError(f"{len(drawn)} samples came for {len(seeds)} seeds: each seed asks for one")
        for seed, sample in zip(seeds, drawn, strict=True):
            if len(sample) < self._tokens:
                told = f"{len(sample)} tokens, not {self._tokens} as asked for"
                raise EngineError(f"the sample of seed {seed} has {told}")
        for sample, times in Counter(sample[: self._tokens] for sample in drawn).items():
            for length in range(self._tokens):
                self._following[sample[:length]][sample[length]] += times
        self.samples += len(drawn)

    def after(self, prefix: Prefix) -> Counter[int]:
        """How often each token followed this prefix."""
        return self._following.get(prefix, Counter())


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


LEAST_EXPECTED = 5.0


@dataclass(frozen=True)
class Cell:
    """One cell: `token`, or None for all others together.

    `observed`: samples of the engine in it. `expected`: how many the target lets expect. `target`: samples of the
    target in it, None where its distribution is known.
    """

    token: int | None
    observed: int
    expected: float
    target: int | None = None


@dataclass(frozen=True)
class Comparison:
    """What followed one prefix.

    `statistic`: G, corrected; `dof`: degrees of freedom, 0 where one cell holds everything and nothing can be tested.
    `samples`: the engine's samples with this prefix. `effective`: the number of samples that would tell as much against
    a known distribution without correction; 0 where `dof` is. `total_variation`: half the sum of absolute differences
    of the shares of the cells, from 0 to 1.
    """

    prefix: Prefix
    cells: tuple[Cell, ...]
    statistic: float
    dof: int
    samples: int
    effective: float
    total_variation: float


def against_known(prefix: Prefix, observed: Mapping[int, int], known: Sequence[float]) -> Comparison:
    """Compare counts with probabilities. `known`: the target's probability of each token id."""
    total = sum(observed.values())
    expected = {token: total * share for token, share in enumerate(known)}
    kept = separate_tokens(expected, total)
    shares = [known[token] for token in kept]
    shares.append(max(0.0, 1.0 - sum(shares)))
    counts = _counts(observed, kept, total)
    told = zip([*kept, None], counts, shares, strict=True)
    cells = tuple(Cell(token, count, total * share) for token, count, share in told)
    if not kept:
        return _untestable(prefix, cells, total)
    statistic = likelihood_ratio(counts, [cell.expected for cell in cells])
    correction = 1 + (sum(1 / share for share in shares) - 1) / (6 * total * len(kept))
    return _corrected(prefix, cells, statistic, correction, total)


def against_sample(prefix: Prefix, observed: Mapping[int, int], target: Mapping[int, int]) -> Comparison:
    """Compare counts with the target's own counts, neither of which is the truth."""
    ours, theirs = sum(observed.values()), sum(target.values())
    both = ours + theirs
    smaller = min(ours, theirs) / both if both else 0.0
    tokens = sorted({*observed, *target})
    fewest = {token: (observed.get(token, 0) + target.get(token, 0)) * smaller for token in tokens}
    kept = separate_tokens(fewest, both * smaller)
    rows = _counts(observed, kept, ours), _counts(target, kept, theirs)
    cells = tuple(
        Cell(token, mine, (mine + his) * ours / both if both else 0.0, his)
        for token, mine, his in zip([*kept, None], *rows, strict=True)
    )
    if not kept:
        return _untestable(prefix, cells, ours)
    expected = [cell.expected for cell in cells]
    statistic = likelihood_ratio(rows[0], expected)
    statistic += likelihood_ratio(rows[1], [each * theirs / ours for each in expected])
    columns = sum(both / (mine + his) for mine, his in zip(*rows, strict=True))
    correction = 1 + (both / ours + both / theirs - 1) * (columns - 1) / (6 * both * len(kept))
    return _corrected(prefix, cells, statistic, correction, ours * theirs / both)


def _corrected(
    prefix: Prefix, cells: tuple[Cell, ...], statistic: float, correction: float, effective: float
) -> Comparison:
    """By Williams' divisor. `effective`: without it."""
    return Comparison(
        prefix=prefix,
        cells=cells,
        statistic=statistic / correction,
        dof=len(cells) - 1,
        samples=sum(cell.observed for cell in cells),
        effective=effective / correction,
        total_variation=sum(abs(cell.observed - cell.expected) for cell in cells) / (2 * effective),
    )


def likelihood_ratio(observed: Sequence[int], expected: Sequence[float]) -> float:
    """G: twice the log-likelihood ratio of counts to expected counts, in nats; an empty cell adds nothing."""
    return 2 * fsum(count * log(count / mean) for count, mean in zip(observed, expected, strict=True) if count)


def separate_tokens(expected: Mapping[int, float], total: float) -> list[int]:
    """The tokens that get a cell of their own, most expected first; all others share one, of at least 5 as well."""
    kept = sorted((token for token, count in expected.items() if count >= LEAST_EXPECTED), key=lambda t: -expected[t])
    if kept and total - sum(expected[token] for token in kept) < LEAST_EXPECTED:
        kept.pop()
    return kept


def _counts(observed: Mapping[int, int], kept: Sequence[int], total: int) -> list[int]:
    counts = [observed.get(token, 0) for token in kept]
    return [*counts, total - sum(counts)]


def _untestable(prefix: Prefix, cells: tuple[Cell, ...], samples: int) -> Comparison:
    return Comparison(prefix, cells, statistic=0.0, dof=0, samples=samples, effective=0.0, total_variation=0.0)
