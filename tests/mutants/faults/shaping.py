"""Faults between logits and token: sampling fields that reach a part of a burst, and logits that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_specdec.engines.fake import Decoder, Progress, fault
from pytest_specdec.generation import Generation, Score
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


@fault("log-probabilities of the token before")
class LogprobsShifted(Decoder):
    """Each log-probability that is returned is that of the token before."""

    def logprobs(self, request: Request, output: Sequence[int]) -> tuple[float | None, ...]:
        """The first twice."""
        told = super().logprobs(request, output)
        return (*told[:1], *told[:-1])


@fault("log-probabilities of 0")
class LogprobsZero(Decoder):
    """All log-probabilities that are returned are 0."""

    def logprobs(self, request: Request, output: Sequence[int]) -> tuple[float | None, ...]:
        """As many as tokens."""
        return (0.0,) * len(output)


@fault("log-probabilities of bonus tokens only")
class LogprobsOfOneAStep(Decoder):
    """Of each step one log-probability is returned, though it gave several tokens."""

    def answer(self, progress: Progress, prompt: tuple[int, ...]) -> Generation:
        """As many as chunks."""
        answer = super().answer(progress, prompt)
        return replace(answer, logprobs=answer.logprobs and answer.logprobs[: len(answer.chunks)])


@fault("NaN logits")
class NotANumber(Decoder):
    """The target's own logits are not numbers."""

    def rate(self, request: Request, output: Sequence[int], shape: str | None = None) -> tuple[Score, ...]:
        """Every gap is NaN."""
        return tuple(replace(score, gap=math.nan, top=math.nan) for score in super().rate(request, output, shape))
