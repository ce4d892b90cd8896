"""Gates of the greedy verdict, simulated: tokens, rounding and faults are drawn, the judgement is the product's own.

A token's runner-up lies d ULPs below its argmax, one token in forty within each ULP. Rounding lets it win with a chance
that falls with d by a constant factor, as the verdict assumes: most near-ties that flip are of one ULP, and of seventy
one is of two. A fault adds chances of its own. None of this is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pytest_specdec.verdict.noise import VERIFYING, NoiseFloor, Null, compare_near_ties, excess_of

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


def near_ties_to_draft(share: float) -> Chance:
    """Of the near-ties of one ULP this share goes to the draft."""
    return lambda ulps: share * (ulps == 1)


Counts = tuple[int, ...]
"""Near-ties of one ULP, of two, and so on."""


@dataclass(frozen=True)
class Engine:
    """How the target's calibration rounds, how verification does, and a fault on top."""

    plain: Chance
    verifying: Chance
    fault: Chance | None = None
    shape: str = VERIFYING

    def calibrated(self, random: Any, tokens: int, gates: int) -> list[Counts]:
        """The near-ties of so many calibrations."""
        return draw(random, tokens, chances(self.plain, None), gates)

    def judged(self, random: Any, tokens: int, gates: int) -> list[Counts]:
        """The near-ties of so many judged outputs."""
        return draw(random, tokens, chances(self.verifying, self.fault), gates)


@cache
def chances(chance: Chance, fault: Chance | None) -> Any:
    """For each ULP, the chance that a token's runner-up lies there and wins."""
    won = [1 - (1 - chance(ulps)) * (1 - (fault(ulps) if fault else 0)) for ulps in range(1, MOST_ULPS + 1)]
    return PER_ULP * np.array(won) * np.exp(-PER_ULP * np.arange(MOST_ULPS))


def draw(random: Any, tokens: int, chance: Any, gates: int) -> list[Counts]:
    """So many tokens for each gate."""
    return list(map(tuple, random.binomial(tokens, chance, size=(gates, MOST_ULPS)).tolist()))


@cache
def floor_of(counts: Counts, tokens: int, shape: str, level: float) -> NoiseFloor:
    """The product's floor on a calibration with these near-ties."""
    ulps = [at for at, count in enumerate(counts, 1) for _ in range(count)]
    null = Null(len(ulps), tokens, shape)
    floor = NoiseFloor("bfloat16", tokens, len(ulps), excess_of(ulps), largest=0.0, null=null)
    return floor.for_gate(tokens, level)


@cache
def look(calibration: Counts, judged: Counts, tokens: int, shape: str, level: float) -> tuple[bool, bool]:
    """Whether a token is beyond the floor, and whether near-ties are too many, by the product's judgement."""
    floor = floor_of(calibration, tokens, shape, level)
    return any(judged[floor.bound :]), compare_near_ties(floor, sum(judged), tokens).suspect


def red_gates(random: Any, engine: Engine, tokens: int, level: float, gates: int) -> list[bool]:
    """Which of so many gates are red: by a token, or by number at each of two looks."""
    pairs = zip(engine.calibrated(random, tokens, gates), engine.judged(random, tokens, gates), strict=True)
    first = [look(*pair, tokens, engine.shape, level) for pair in pairs]
    return [beyond or (suspect and _suspect_again(random, engine, tokens, level)) for beyond, suspect in first]


def _suspect_again(random: Any, engine: Engine, tokens: int, level: float) -> bool:
    (calibration,), (fresh,) = engine.calibrated(random, tokens, 1), engine.judged(random, tokens, 1)
    return look(calibration, fresh, tokens, engine.shape, level)[1]


def share_red(engine: Engine, tokens: int, gates: int, level: float) -> float:
    """Of so many gates."""
    return sum(red_gates(np.random.default_rng(1), engine, tokens, level, gates)) / gates


FAULTS: Mapping[str, Chance] = {
    "lossy acceptance": lossy,
    "fp8 cache in one arm": coarse,
    "1 % of near-ties to the draft": near_ties_to_draft(0.01),
    "20 % of near-ties to the draft": near_ties_to_draft(0.2),
    "every near-tie to the draft": near_ties_to_draft(1.0),
}
