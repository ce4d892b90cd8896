"""The tally: how often each token followed each prefix, over all samples so far."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pytest_specdec.errors import EngineError

Prefix: TypeAlias = tuple[int, ...]
Draw: TypeAlias = Callable[[Sequence[int]], Sequence[tuple[int, ...]]]


class Tally:
    """Counts of samples of one prompt, each at least `tokens` long; what lies beyond is not looked at."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._following: defaultdict[Prefix, Counter[int]] = defaultdict(Counter)
        self.samples = 0

    def draw(self, draw: Draw, seeds: Sequence[int]) -> None:
        """Draw one sample for each seed and count it. Raises EngineError where a sample is missing or too short."""
        drawn = draw(seeds)
        if len(drawn) != len(seeds):
            raise EngineError(f"{len(drawn)} samples came for {len(seeds)} seeds: each seed asks for one")
        for seed, sample in zip(seeds, drawn, strict=True):
            if len(sample) < self._tokens:
                raise EngineError(
                    f"the sample of seed {seed} has {len(sample)} tokens, not {self._tokens} as asked for"
                )
        self._count(Counter(sample[: self._tokens] for sample in drawn))
        self.samples += len(drawn)

    def after(self, prefix: Prefix) -> Counter[int]:
        """How often each token followed this prefix."""
        return self._following.get(prefix, Counter())

    def _count(self, samples: Counter[tuple[int, ...]]) -> None:
        for sample, times in samples.items():
            for length in range(self._tokens):
                self._following[sample[:length]][sample[length]] += times
