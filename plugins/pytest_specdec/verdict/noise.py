"""The noise floor: how far target-only decoding itself strays from the target's argmax, measured, not guessed.

Decoding at another batch size, or scoring a whole sequence in one pass, adds the same numbers in another order. Near a
tie the rounding decides. The control shows how near: target-only output, at batch 1 and at the workload's concurrency,
is rescored by the target alone, and the largest gap seen is the floor. Gaps are also given in units of the dtype's
spacing at the magnitude of the logit, which is what rounding is made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_specdec.generation import Score

MANTISSA_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}
SANE_SPACINGS = {"bfloat16": 8.0, "float16": 32.0, "float32": 4096.0, "float64": 4096.0}


@dataclass(frozen=True)
class NoiseFloor:
    """What the control showed, for one target, dtype, engine, hardware and concurrency; never carried over to another.

    `gap`: largest gap of a target-only token to the target's argmax, in logits. `spacing`: the dtype's spacing at the
    largest logit seen, in logits; None where the engine gives no logits. `tokens`: how many tokens were rescored.
    `near_ties`: how many of them were not the argmax. `disagreements` of `compared`: requests whose output differs
    between batch 1 and the workload's concurrency.
    """

    gap: float
    spacing: float | None
    tokens: int
    near_ties: int
    disagreements: int
    compared: int
    dtype: str

    @property
    def bound(self) -> float:
        """The largest gap, in logits, that still counts as a tie: the measured floor, but at least one spacing."""
        return max(self.gap, self.spacing or 0.0)

    @property
    def insane(self) -> str | None:
        """Why this control decides nothing, or None: a target that strays this far from its own argmax is broken."""
        limit = SANE_SPACINGS.get(self.dtype, SANE_SPACINGS["bfloat16"])
        if math.isnan(self.gap):
            return "the target's own logits are not numbers"
        if self.spacing is not None and self.gap > limit * self.spacing:
            strays = f"{self.gap / self.spacing:.0f} {self.dtype} spacings"
            return f"target-only output strays {strays} from its own argmax (sane: {limit:g})"
        return None


def noise_floor(scores: Iterable[Iterable[Score]], dtype: str, disagreements: int, compared: int) -> NoiseFloor:
    """The floor of a control whose tokens got these scores."""
    flat = [score for row in scores for score in row]
    tops = [abs(score.top) for score in flat if score.top is not None]
    return NoiseFloor(
        gap=largest_gap(flat),
        spacing=spacing(max(tops), dtype) if tops else None,
        tokens=len(flat),
        near_ties=sum(score.gap > 0 for score in flat),
        disagreements=disagreements,
        compared=compared,
        dtype=dtype,
    )


def largest_gap(scores: Iterable[Score]) -> float:
    """The largest gap; NaN if any is NaN, 0.0 of nothing."""
    gaps = [score.gap for score in scores]
    return math.nan if any(math.isnan(gap) for gap in gaps) else max(gaps, default=0.0)


def spacing(magnitude: float, dtype: str) -> float | None:
    """Distance between neighbouring numbers of `dtype` at this magnitude; None for a dtype without a known mantissa."""
    bits = MANTISSA_BITS.get(dtype)
    if bits is None or magnitude == 0 or not math.isfinite(magnitude):
        return None
    return float(2.0 ** (math.floor(math.log2(magnitude)) - bits))
