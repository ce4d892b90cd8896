"""The plan of a sampling verdict: what difference is to be found, how surely, and at which cost at most.

It is stated before the first sample is drawn. Samples come in equal batches, and after each one is a look at all of
them. Every look may spend the same share of the level, so the false alarms of all looks together stay below it,
whatever the looks have in common (Bonferroni), and a clean engine may be let go at the first look that sees enough.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil
from typing import Any

from pytest_specdec.errors import ConfigurationError

SEED_LIMIT = 2**31
SHARES = ("total_variation", "power", "level")
COUNTS = ("samples", "looks", "width")


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

    @property
    def level_of_test(self) -> float:
        """What Holm's correction leaves to a position at worst; the stated power is reached at this level."""
        return self.level_of_look / self.tokens

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
