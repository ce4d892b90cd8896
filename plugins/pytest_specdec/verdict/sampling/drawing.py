"""Asking engines: samples of one prompt for the engine's arm, and every token's probability for the target's.

The target's distribution is known where its vocabulary is small: the target alone rates every token of it after a
prefix, by the very call that rescores outputs, and the gaps to the argmax are the logits but for a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import exp, fsum
from typing import Any, TypeAlias

from pytest_specdec.engines.engine import Engine, one_pass
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Speculation
from pytest_specdec.verdict.sampling.tally import Prefix
from pytest_specdec.verdict.sampling.target import NextToken
from pytest_specdec.workloads.workload import Request, Workload

Enter: TypeAlias = Callable[[], AbstractContextManager[Engine]]
EXACT_VOCABULARY = 4096
PLAIN_SAMPLING = frozenset({"temperature", "seed"})


def is_sampled(request: Request) -> bool:
    """Whether the request asks for sampling: a temperature above 0."""
    return float(request.sampling.get("temperature") or 0) > 0


def knows_exactly(sampling: Mapping[str, Any], vocabulary: int) -> bool:
    """Whether the target's distribution can be rated in full: a small vocabulary, and a temperature alone shapes it."""
    return vocabulary <= EXACT_VOCABULARY and set(sampling) <= PLAIN_SAMPLING


class Drawing:
    """Samples of an engine: called with seeds, it decodes the request once for each, `tokens` tokens long.

    `speculation`: what the engine counted over all calls so far, None where it does not speculate. Without drafts, a
    verdict on the samples says nothing of speculation; without rejections, nothing of what is sampled after one.
    """

    def __init__(self, enter: Enter, request: Request, tokens: int, concurrency: int) -> None:
        """`enter` gives the engine, awake, for the time of one call.

        The request's own seed, ends and limits do not apply: every sample goes on to its last token, or its length
        would depend on what was drawn.
        """
        self._enter = enter
        self._request = replace(request, max_tokens=tokens, min_tokens=0, ignore_eos=True, stop=(), stop_token_ids=())
        self._concurrency = concurrency
        self.speculation: Speculation | None = None

    def __call__(self, seeds: Sequence[int]) -> list[tuple[int, ...]]:
        """One sample a seed, in order. Raises EngineError."""
        with self._enter() as engine:
            run = one_pass(engine, Workload("sampling", tuple(map(self._with_seed, seeds)), self._concurrency))
        if failed := [generation.error for generation in run.generations if generation.error is not None]:
            raise EngineError(f"{len(failed)} of {len(run.generations)} samples failed: {failed[0]}")
        if run.speculation is not None:
            self.speculation = run.speculation if self.speculation is None else self.speculation + run.speculation
        return [generation.token_ids for generation in run.generations]

    def _with_seed(self, seed: int) -> Request:
        return replace(self._request, sampling={**self._request.sampling, "seed": seed})


def rescore(enter: Enter, request: Request, vocabulary: int) -> NextToken:
    """The target's distribution after a prefix, by rating each of the `vocabulary` tokens there, shape (vocabulary,).

    `enter` gives the target-only engine. The temperature is the request's.
    """
    temperature = float(request.sampling["temperature"])

    def next_token(prefix: Prefix) -> list[float]:
        outputs = [(*prefix, token) for token in range(vocabulary)]
        with enter() as engine:
            rows = engine.score([request] * vocabulary, outputs)
        return probabilities([row[-1].gap for row in rows], temperature)

    return next_token


def probabilities(gaps: Sequence[float], temperature: float) -> list[float]:
    """The softmax at this temperature of logits that lie these gaps below the highest; NaN where a gap is NaN."""
    weights = [exp(-gap / temperature) for gap in gaps]
    total = fsum(weights)
    return [weight / total for weight in weights]
