"""Gates of the greedy verdict, simulated: tokens, rounding and faults are drawn, the judgement is the product's own.

A token's runner-up lies d ULPs below its argmax, d drawn as SmolLM2 in bfloat16 has it: one token in forty within each
ULP. Rounding lets it win with a chance that falls with d: most near-ties that flip are of one ULP, and of seventy one
is of two. A fault adds chances of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pytest_specdec.verdict.noise import VERIFYING, NearTies, NoiseFloor, Null, compare_near_ties, excess_of

PER_ULP = 1 / 40
MOST_ULPS = 24
FIRST_CHANCE, FALL = 0.2, 1 / 70
Chance = Callable[[int], float]


def rounding(times: float = 1.0) -> Chance:
    """Of the target in steps of verification, or so many times as often."""
    return lambda ulps: times * FIRST_CHANCE * FALL ** (ulps - 1)


def lossy(ulps: int) -> float:
    """One draft in five is the runner-up, and is accepted within three tenths of the target's probability.

    That is 1.2 logits: 10 ULPs of a top logit above 16, more of a smaller one.
    """
    return 0.2 * (ulps <= 10)


def coarse(ulps: int) -> float:
    """A cache of 8 bits moves logits by several ULPs."""
    return 0.4 * math.exp(-ulps / 2)


def near_ties_to_draft(ulps: int) -> float:
    """Of a hundred near-ties of one ULP one goes to the draft."""
    return 0.01 * (ulps == 1)


@dataclass(frozen=True)
class Sample:
    """Near-ties of so many tokens, by their ULPs."""

    tokens: int
    ulps: tuple[tuple[int, int], ...]

    @property
    def near_ties(self) -> int:
        """All together."""
        return sum(count for _, count in self.ulps)

    @property
    def furthest(self) -> int:
        """In ULPs."""
        return max((ulps for ulps, _ in self.ulps), default=0)

    @property
    def excess(self) -> int:
        """As the product counts it."""
        return excess_of([ulps for ulps, count in self.ulps for _ in range(count)])


@cache
def chances(chance: Chance, fault: Chance | None) -> Any:
    """For each ULP, the chance that a token's runner-up lies there and wins."""
    won = [1 - (1 - chance(ulps)) * (1 - (fault(ulps) if fault else 0)) for ulps in range(1, MOST_ULPS + 1)]
    return PER_ULP * np.array(won) * np.exp(-PER_ULP * np.arange(MOST_ULPS))


def draw(random: Any, tokens: int, chance: Chance, fault: Chance | None = None) -> Sample:
    """So many tokens."""
    counts = random.binomial(tokens, chances(chance, fault))
    return Sample(tokens, tuple((at + 1, int(count)) for at, count in enumerate(counts) if count))


def floor_of(calibration: Sample, tokens: int, level: float, shape: str = VERIFYING) -> NoiseFloor:
    """The product's floor."""
    return _floor(Null(calibration.near_ties, calibration.tokens, shape), calibration.excess, tokens, level)


@cache
def _floor(null: Null, excess: int, tokens: int, level: float) -> NoiseFloor:
    floor = NoiseFloor("bfloat16", null.tokens, null.near_ties, excess, largest=0.0, null=null)
    return floor.for_gate(tokens, level)


@cache
def _compare(floor: NoiseFloor, near_ties: int, tokens: int) -> NearTies:
    return compare_near_ties(floor, near_ties, tokens)


@dataclass(frozen=True)
class Engine:
    """How the target's calibration rounds, how verification does, and a fault on top."""

    plain: Chance
    verifying: Chance
    fault: Chance | None = None
    shape: str = VERIFYING


def is_red(random: Any, engine: Engine, tokens: int, level: float) -> bool:
    """One gate: is a token beyond the floor, or are near-ties too many at each of two looks?"""
    floor = floor_of(draw(random, tokens, engine.plain), tokens, level, engine.shape)
    judged = draw(random, tokens, engine.verifying, engine.fault)
    return judged.furthest > floor.bound or (
        _compare(floor, judged.near_ties, tokens).suspect and _suspect_again(random, engine, tokens, level)
    )


def _suspect_again(random: Any, engine: Engine, tokens: int, level: float) -> bool:
    floor = floor_of(draw(random, tokens, engine.plain), tokens, level, engine.shape)
    fresh = draw(random, tokens, engine.verifying, engine.fault)
    return _compare(floor, fresh.near_ties, tokens).suspect


def share_red(engine: Engine, tokens: int, gates: int, level: float, seed: int = 1) -> float:
    """Of so many gates, each alone in its session or at the level that is given."""
    random = np.random.default_rng(seed)
    return sum(is_red(random, engine, tokens, level) for _ in range(gates)) / gates


FAULTS: Mapping[str, Chance] = {
    "lossy acceptance": lossy,
    "fp8 cache in one arm": coarse,
    "1 % of near-ties to the draft": near_ties_to_draft,
}
