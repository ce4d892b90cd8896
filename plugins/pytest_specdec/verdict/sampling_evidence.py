"""The evidence in all measured tokens together, by betting, and what it would have found.

Before each token a bet is placed that it will fall beyond a cell, at the target's own price, so that the stake stays
the same on average if the engine samples as the target does (a test martingale). The average of many such bets is an
e-value: by Ville's inequality it reaches 1/level with a chance of `level` at most, whatever they have in common. Each
price is the worst that the stated rounding can make it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any

from pytest_specdec.verdict.equivalence import Outcome
from pytest_specdec.verdict.rated import CELLS, Place, Rated, Unrated, move_odds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

ODDS = (1 / 16, 1 / 4, 1 / 2, 1 / 1.25, 1 / 1.06, 1.06, 1.25, 2.0, 4.0, 64.0, 1e4, 1e8)
LEVEL = 5e-4  # half of what a gate may spend; the other half is the G-test's
POWER = 0.95
PLANTED = 100
MAY_BE_MISSED = round((1 - POWER) * PLANTED)
HALVINGS = 8
LEAST = 1e-3  # of the largest total variation there can be, where the search for the least begins
FAMILIES: dict[str, Callable[[Place], int]] = {
    "all tokens": lambda place: 0,
    "place {} of a burst": lambda place: place.burst,
    "request {}": lambda place: place.request,
    "round {}": lambda place: place.round,
    "tokens from {} on": lambda place: 0 if place.token < 16 else 4 ** ((place.token.bit_length() - 1) // 2),
}
"""Groups of tokens by what they have in common; the last by stretches that begin at 0, 16, 64, 256, 1024, …"""


class Evidence:
    """The bets on one sample. With `repeats`, rounds are judged each by itself: a fixed seed makes them repeat."""

    def __init__(self, rated: Sequence[Rated], repeats: bool = False) -> None:
        import numpy

        self.tokens = len(rated)
        self._cells = numpy.array([each.cell for each in rated], dtype=int)
        self._mass = numpy.array([each.mass for each in rated]).reshape(-1, CELLS)
        self._slack = numpy.array([each.slack for each in rated])
        families = FAMILIES.items()
        groups = [(name, each.place.round if repeats else 0, of(each.place)) for name, of in families for each in rated]
        numbers = {group: at for at, group in enumerate(dict.fromkeys(groups))}
        sizes = Counter(name for name, *_ in numbers)
        self._names = [name.format(label) for name, _, label in numbers]
        self._log_shares = -numpy.log([len(FAMILIES) * sizes[name] for name, *_ in numbers])
        self._members = numpy.array([numbers[each] for each in groups], dtype=int).reshape(len(FAMILIES), -1)
        self._group_prices = self._sum_by_group(self._prices())

    def _prices(self) -> Array:
        """The logarithm of what each bet multiplies a stake by on average, at worst: token, cell, odds."""
        import numpy

        beyond = self._mass[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:, None].clip(0.0, 1.0)
        odds = numpy.array(ODDS)
        worst = move_odds(beyond, self._slack[:, None, None] * numpy.sign(odds - 1))
        return numpy.log1p(worst * (odds - 1))  # type: ignore[no-any-return]

    def _sum_by_group(self, prices: Array) -> Array:
        """Tokens of a group are brought together and summed as a stretch: numpy.add.at takes seven times as long."""
        import numpy

        sums = numpy.zeros((len(self._names), *prices.shape[1:]))
        for members in self._members:
            order = numpy.argsort(members, kind="stable")
            groups, firsts = numpy.unique(members[order], return_index=True)
            sums[groups] = numpy.add.reduceat(prices[order], firsts, axis=0)
        return sums

    @cached_property
    def log_e(self) -> float:
        """The natural logarithm of the e-value."""
        return self._log_e(self._cells)

    @property
    def convicts(self) -> bool:
        """Whether the engine does not sample as the target does."""
        return self.log_e >= -log(LEVEL)

    def _log_e(self, cells: Array) -> float:
        """Families count alike, and so do the groups of each."""
        import numpy

        return float(numpy.logaddexp.reduce(self._stakes(cells) + self._log_shares)) if self.tokens else 0.0

    def _stakes(self, cells: Array) -> Array:
        """The logarithm of each group's e-value: the average over cells and odds."""
        import numpy

        counts = numpy.bincount((self._members * CELLS + cells).ravel(), minlength=len(self._names) * CELLS)
        beyond = counts.reshape(-1, CELLS)[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:, None]
        stakes = beyond * numpy.log(ODDS) - self._group_prices
        bets = (CELLS - 1) * len(ODDS)
        joined = numpy.logaddexp.reduce(stakes.reshape(len(self._names), bets), axis=1)
        return joined - log(bets)  # type: ignore[no-any-return]

    def strongest(self) -> str:
        """The group that tells most, in words: how many of its tokens are the likeliest one, and ought to be."""
        import numpy

        stakes = self._stakes(self._cells)
        at = int(stakes.argmax())
        inside = (self._members == at).any(axis=0)
        likeliest, expected = numpy.count_nonzero(self._cells[inside] == 0), self._mass[inside, 0].sum()
        return (
            f"{self._names[at]}: {likeliest} of {inside.sum()} tokens are the target's likeliest, where "
            f"{expected:.1f} are expected (e-value {exp(min(stakes[at], 700.0)):.3g})"
        )

    @cached_property
    def largest(self) -> float:
        """The largest total variation that can be planted: the mean probability of the likeliest token."""
        return float(self._mass[:, 0].mean()) if self.tokens else 0.0

    @cached_property
    def detects(self) -> float | None:
        """The least total variation that would have been found with 95 %; None where none would have been.

        Planted into this very sample: the odds of the likeliest token fall by the same factor everywhere, by as much as
        makes the total variation this large on average, and tokens are drawn anew and judged.
        """
        high = 0.999 * self.largest
        low = LEAST * high
        if not high or not self._finds(high):
            return None
        for _ in range(HALVINGS):
            middle = sqrt(low * high)
            low, high = (low, middle) if self._finds(middle) else (middle, high)
        return high

    def _finds(self, total_variation: float) -> bool:
        """Whether enough planted samples are found; no more are drawn than settle it."""
        import numpy

        edges, random = self._shift(total_variation).cumsum(axis=1), numpy.random.default_rng(0)
        drawn = ((random.random((len(edges), 1)) * edges[:, -1:] >= edges[:, :-1]).sum(axis=1) for _ in range(PLANTED))
        missed = (cells for cells in drawn if self._log_e(cells) < -log(LEVEL))
        return next(islice(missed, MAY_BE_MISSED, None), None) is None

    def _shift(self, total_variation: float) -> Array:
        """The cells' probabilities with that much less on the likeliest token, on average."""
        import numpy

        top = self._mass[:, 0]
        low, high = 0.0, 60.0
        for _ in range(50):
            middle = (low + high) / 2
            less = move_odds(top, -middle)
            low, high = (middle, high) if (top - less).mean() < total_variation else (low, middle)
        rest = numpy.divide(1 - less, 1 - top, out=numpy.ones_like(top), where=top < 1)
        return numpy.column_stack([less, self._mass[:, 1:] * rest[:, None]])

    def hides(self, total_variation: float) -> bool:
        """Whether rounding would hide so little in any number of such tokens."""
        worst = move_odds(self._mass[:, 0], -self._slack)
        return bool(self.tokens) and bool(self._shift(total_variation)[:, 0].mean() >= worst.mean())

    def tokens_for(self, total_variation: float) -> int | None:
        """About how many tokens in all would show so little; None where these would show nothing, so none can tell."""
        return None if self.detects is None else round(self.tokens * (self.detects / total_variation) ** 2) + 1


@dataclass(frozen=True)
class RatedVerdict:
    """What the measured tokens say. `target_strays`: whether the target's own rounds are convicted as well."""

    evidence: Evidence
    unrated: tuple[Unrated, ...] = ()
    target_strays: bool = False

    @classmethod
    def of(cls, tokens: Sequence[Rated | Unrated], repeats: bool) -> RatedVerdict:
        """Judge tokens as they were rated."""
        rated = [each for each in tokens if isinstance(each, Rated)]
        unrated = tuple(each for each in tokens if isinstance(each, Unrated))
        return cls(Evidence(rated, repeats), unrated)

    @property
    def _no_numbers(self) -> bool:
        return any(each.nan for each in self.unrated)

    @property
    def _impossible(self) -> Place | None:
        return next((each.place for each in self.unrated if each.impossible), None)

    @property
    def outcome(self) -> Outcome:
        """Different, or nothing found; undecidable where the target is not as it rates itself."""
        if self._no_numbers or self.target_strays:
            return Outcome.UNDECIDABLE
        found = self._impossible is not None or self.evidence.convicts
        return Outcome.DIFFERENT if found else Outcome.CONSISTENT

    @cached_property
    def detects(self) -> float | None:
        """The least total variation that would have been found; None where none, or where this is no pass."""
        return self.evidence.detects if self.outcome.passes else None

    def sees(self, total_variation: float | None) -> bool:
        """Whether so little would have been found; yes where nothing is asked."""
        return total_variation is None or (self.detects is not None and self.detects <= total_variation)

    def statement(self) -> str:
        """What would have been found, in words."""
        tokens = f"{self.evidence.tokens} measured tokens"
        if not self.outcome.passes:
            return self.in_words()
        if self.detects is None:
            return f"in {tokens} no difference of distribution would have been found with {POWER:.0%}"
        shift = f"a total variation of {self.detects:.3f} away from the likeliest tokens"
        return f"would have found, with {POWER:.0%}, in {tokens}: {shift}"

    def shortage(self, asked: float | None) -> str:
        """What it takes to see as little as is asked, in words."""
        assert asked is not None
        words = f"undecidable: detects.total_variation = {asked:g} is asked, and this run {self.statement()}"
        if self.evidence.hides(asked):
            return f"{words}; rounding hides so little in any number of tokens: use float32, or ask for a larger one"
        tokens, needed = self.evidence.tokens, self.evidence.tokens_for(asked)
        more = "many more are needed" if needed is None else f"about {max(needed - tokens, 1)} more would do"
        return f"{words}; too few tokens: {more} (count, max_tokens or rounds)"

    def in_words(self) -> str:
        """Why it does not pass."""
        if self._no_numbers:
            return "undecidable: the target's own logits are not numbers"
        words = self.evidence.strongest() if self.evidence.tokens else "no token could be rated"
        if (place := self._impossible) is not None:
            where = f"token {place.token} of request {place.request}, round {place.round}"
            words = f"{where} has no probability under the request's temperature and filters; {words}"
        if self.target_strays:
            alone = "the target alone does not sample as it rates its tokens either"
            return f"undecidable: {alone}; of this engine, {words}"
        return f"different: measured tokens are not distributed as the target's; {words}"
