"""Faults between logits and token: sampling fields that reach a part of a burst, and logits that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_specdec.engines.fake import Decoder, Progress, fault
from pytest_specdec.generation import Score
from pytest_specdec.workloads.workload import Request


@fault("penalties see the last of a burst")
class PenaltiesSeeTheLast(Decoder):
    """Penalties count only the last token of each burst."""

    def history(self, progress: Progress, burst: Sequence[int]) -> list[int]:
        """The output at the ends of its chunks."""
        places, ends = 0, []
        for chunk in progress.chunks:
            places += chunk.tokens
            ends.append(progress.output[places - 1])
        return ends


@fault("bias on the bonus token only")
class BiasOnBonusOnly(Decoder):
    """logit_bias reaches the bonus token, not those that are verified."""

    def bias(self, progress: Progress, burst: Sequence[int]) -> Mapping[int, float]:
        """None where a draft is verified."""
        return super().bias(progress, burst) if progress.is_bonus(burst) else {}


@fault("NaN logits")
class NotANumber(Decoder):
    """The target's own logits are not numbers."""

    def rate(self, request: Request, output: Sequence[int], shape: str | None = None) -> tuple[Score, ...]:
        """Every gap is NaN."""
        return tuple(replace(score, gap=math.nan, top=math.nan) for score in super().rate(request, output, shape))
