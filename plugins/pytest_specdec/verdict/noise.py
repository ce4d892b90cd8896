"""The noise floor: how far target-only decoding itself strays from the target's argmax, measured, not guessed.

Decoding at another batch size, or scoring a whole sequence in one pass, adds the same numbers in another order. Near a
tie the rounding decides. The calibration shows how near: target-only output, at batch 1 and at the workload's
concurrency, is rescored by the target alone. Its largest gap bounds what may still be called a tie, and its rate of
tokens that are not the argmax bounds how often that may happen. Gaps are also counted in ULPs, which is what rounding
is made of.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_specdec.generation import Score

MANTISSA_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}
SANE_ULPS = {"bfloat16": 8.0, "float16": 32.0, "float32": 4096.0, "float64": 4096.0}
SANE_RATE = 0.25
LEVEL = 1e-3


@dataclass(frozen=True)
class NoiseFloor:
    """What the calibration showed, for one target, dtype, engine, hardware and concurrency; never for another.

    `gap`: largest gap of a target-only token to the target's argmax, in logits. `ulp`: the ULP at the
    largest logit seen, in logits; None where the engine gives no logits. `tokens`: how many tokens were rescored.
    `near_ties`: how many of them were not the argmax. `histogram`: tokens by gap in whole ULPs at the
    logit's own magnitude. `rate`: (near-ties, tokens) at that of the calibration's batch sizes where they are most
    frequent, since how often rounding decides depends on the shape of the batch. `disagreements` of `compared`:
    requests whose output differs between batch 1 and the workload's concurrency.
    """

    gap: float
    ulp: float | None
    tokens: int
    near_ties: int
    disagreements: int
    compared: int
    dtype: str
    histogram: tuple[tuple[int, int], ...] = ()
    rate: tuple[int, int] = (0, 0)

    @property
    def bound(self) -> float:
        """The largest gap, in logits, that still counts as a tie.

        One ULP above the largest gap of the calibration, and at least two ULPs: gaps come in whole ULPs, and a
        calibration of a few hundred tokens need not have met the largest.
        """
        ulp = self.ulp or 0.0
        return max(self.gap, ulp) + ulp

    @property
    def insane(self) -> str | None:
        """Why this calibration decides nothing, or None: a target that strays so far from its own argmax is broken."""
        limit = SANE_ULPS.get(self.dtype, SANE_ULPS["bfloat16"])
        if math.isnan(self.gap):
            return "the target's own logits are not numbers"
        if self.ulp is not None and self.gap > limit * self.ulp:
            strays = f"{self.gap / self.ulp:.0f} {self.dtype} ULPs"
            return f"target-only output strays {strays} from its own argmax (sane: {limit:g})"
        if self.tokens and self.near_ties > SANE_RATE * self.tokens:
            return (
                f"{self.near_ties} of {self.tokens} target-only tokens are not its own argmax (sane: {SANE_RATE:.0%})"
            )
        return None


def noise_floor(shapes: Sequence[Sequence[Score]], dtype: str, disagreements: int, compared: int) -> NoiseFloor:
    """The floor of a calibration whose tokens got these scores, a row for each batch size."""
    scores = [score for shape in shapes for score in shape]
    tops = [abs(score.top) for score in scores if score.top is not None]
    return NoiseFloor(
        gap=largest_gap(scores),
        ulp=ulp(max(tops), dtype) if tops else None,
        tokens=len(scores),
        near_ties=sum(score.gap > 0 for score in scores),
        disagreements=disagreements,
        compared=compared,
        dtype=dtype,
        histogram=gaps_in_ulps(scores, dtype),
        rate=max(map(_rate, shapes), key=lambda rate: (rate[0] / max(rate[1], 1), rate[1]), default=(0, 0)),
    )


def _rate(scores: Sequence[Score]) -> tuple[int, int]:
    return sum(score.gap > 0 for score in scores), len(scores)


def largest_gap(scores: Sequence[Score]) -> float:
    """The largest gap; NaN if any is NaN, 0.0 of nothing."""
    gaps = [score.gap for score in scores]
    return math.nan if any(math.isnan(gap) for gap in gaps) else max(gaps, default=0.0)


def ulp(magnitude: float, dtype: str) -> float | None:
    """Distance between neighbouring numbers of `dtype` at this magnitude; None for a dtype without a known mantissa."""
    bits = MANTISSA_BITS.get(dtype)
    if bits is None or magnitude == 0 or not math.isfinite(magnitude):
        return None
    return float(2.0 ** (math.floor(math.log2(magnitude)) - bits))


def gaps_in_ulps(scores: Sequence[Score], dtype: str) -> tuple[tuple[int, int], ...]:
    """How many tokens lie 0, 1, 2, … ULPs below the argmax; scores without logits or numbers are left out."""
    counted: Counter[int] = Counter()
    for score in scores:
        unit = ulp(abs(score.top), dtype) if score.top is not None else None
        if unit is not None and math.isfinite(score.gap):
            counted[round(score.gap / unit)] += 1
    return tuple(sorted(counted.items()))


@dataclass(frozen=True)
class NearTies:
    """Tokens that are not the target's argmax, in the calibration and in the judged output, each over distinct outputs.

    `p_value`: the chance of so many in the judged output if both had the same rate. Given the sum, the count of one of
    two Poisson processes is binomial (Przyborowski and Wilenski 1940); one-sided.
    """

    calibration: int
    calibration_tokens: int
    judged: int
    judged_tokens: int
    p_value: float

    @property
    def too_many(self) -> bool:
        """Whether the judged output strays more often than the target itself, at level LEVEL."""
        return self.p_value < LEVEL


def compare_near_ties(floor: NoiseFloor, judged: int, judged_tokens: int) -> NearTies:
    """Is `judged` of `judged_tokens` more than the calibration's rate allows?"""
    return NearTies(*floor.rate, judged, judged_tokens, _p_value(floor.rate, judged, judged_tokens))


def _p_value(calibration: tuple[int, int], judged: int, judged_tokens: int) -> float:
    near_ties, tokens = calibration
    if not judged or not tokens:
        return 1.0
    from scipy.special import bdtrc

    return float(bdtrc(judged - 1, near_ties + judged, judged_tokens / (tokens + judged_tokens)))
