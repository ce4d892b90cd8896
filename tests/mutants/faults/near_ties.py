"""How near logits of the fake engine's are to a tie."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_specdec.engines.fake.models import NEAR, ULP, two_highest


def ulps_between(logits: Sequence[float]) -> float:
    """How many ULPs the runner-up lies below the argmax, whichever binade that is in."""
    first, second = two_highest(logits)
    return (logits[first] - logits[second]) / (ULP * 2.0 ** math.floor(math.log2(logits[first] / 8.0)))


def is_near_tie(logits: Sequence[float]) -> bool:
    """Whether rounding may decide: argmax and runner-up are one ULP apart."""
    return ulps_between(logits) <= NEAR
