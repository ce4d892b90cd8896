"""What an engine's samples are compared with: the target's distribution itself, or samples of the target alone.

Which prefixes are looked at is settled by the target's side only, and before any of the engine's samples is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Protocol, TypeAlias

from pytest_specdec.errors import EngineError
from pytest_specdec.verdict.sampling.tables import Comparison, against_known, against_sample
from pytest_specdec.verdict.sampling.tally import Draw, Prefix, Tally

NextToken: TypeAlias = Callable[[Prefix], Sequence[float]]
ROUNDING = 1e-6


class Target(Protocol):
    """The side of the target."""

    def observe(self, seeds: Sequence[int], tokens: int) -> None:
        """Draw samples of `tokens` tokens where samples are needed."""

    def shares(self, prefix: Prefix) -> Mapping[int, float]:
        """How probable each token is after this prefix, as far as it is known."""

    def compare(self, prefix: Prefix, observed: Mapping[int, int]) -> Comparison:
        """Compare what followed this prefix in the engine's samples with what the target lets expect."""


class KnownTarget:
    """A target whose distribution is known: `next_token` gives the probability of each token id after a prefix."""

    def __init__(self, next_token: NextToken) -> None:
        self._known = cache(next_token)

    def observe(self, seeds: Sequence[int], tokens: int) -> None:
        """Nothing needs to be drawn."""

    def shares(self, prefix: Prefix) -> Mapping[int, float]:
        """The distribution itself. Raises EngineError where it is none."""
        known = self._known(prefix)
        if not all(share >= 0 for share in known) or abs(sum(known) - 1) > ROUNDING:
            raise EngineError(
                f"the target's probabilities after {prefix} are no distribution: they sum to {sum(known)}"
            )
        return dict(enumerate(known))

    def compare(self, prefix: Prefix, observed: Mapping[int, int]) -> Comparison:
        """Goodness of fit."""
        return against_known(prefix, observed, self._known(prefix))


class SampledTarget:
    """A target that can only be sampled: `draw` asks the target alone."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._tally: Tally | None = None

    def observe(self, seeds: Sequence[int], tokens: int) -> None:
        """Draw one sample for each seed."""
        self._tally = self._tally or Tally(tokens)
        self._tally.draw(self._draw, seeds)

    def shares(self, prefix: Prefix) -> Mapping[int, float]:
        """The shares among the samples so far."""
        following = self._following(prefix)
        return {token: count / following.total() for token, count in following.items()}

    def compare(self, prefix: Prefix, observed: Mapping[int, int]) -> Comparison:
        """Two samples."""
        return against_sample(prefix, observed, self._following(prefix))

    def _following(self, prefix: Prefix) -> Counter[int]:
        assert self._tally is not None, "observe() comes first"
        return self._tally.after(prefix)


def frequent_prefixes(target: Target, depth: int, width: int) -> list[list[Prefix]]:
    """For each length from 0 to `depth`, the `width` most probable prefixes that extend those of the length before."""
    level: dict[Prefix, float] = {(): 1.0}
    levels = [level]
    for _ in range(depth):
        longer = {
            (*prefix, token): probability * share
            for prefix, probability in level.items()
            for token, share in target.shares(prefix).items()
        }
        level = {prefix: longer[prefix] for prefix in sorted(longer, key=lambda p: (-longer[p], p))[:width]}
        levels.append(level)
    return [list(each) for each in levels]
