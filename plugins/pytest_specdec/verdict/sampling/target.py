"""What an engine's samples are compared with: the target's distribution itself, or samples of the target alone.

Which prefixes are looked at is settled by the target's side only, and before any of the engine's samples is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from math import exp, fsum
from typing import Any, Protocol, TypeAlias

from pytest_specdec.engines.engine import Engine, one_pass
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Speculation
from pytest_specdec.verdict.sampling.rated import MOST
from pytest_specdec.verdict.sampling.statistics import Comparison, Draw, Prefix, Tally, against_known, against_sample
from pytest_specdec.workloads.workload import Request, Workload

Enter: TypeAlias = Callable[[], AbstractContextManager[Engine]]
EXACT_VOCABULARY = MOST
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
        if failed := [generation.failure for generation in run.generations if generation.failure is not None]:
            raise EngineError(f"{len(failed)} of {len(run.generations)} samples failed: {failed[0]}")
        if run.speculation is not None:
            self.speculation = run.speculation if self.speculation is None else self.speculation + run.speculation
        return [generation.token_ids for generation in run.generations]

    def _with_seed(self, seed: int) -> Request:
        return replace(self._request, sampling={**self._request.sampling, "seed": seed})


def rescore(enter: Enter, request: Request, vocabulary: int) -> NextToken:
    """The target's distribution after a prefix, by its logits there, shape (vocabulary,).

    `enter` gives the target-only engine. The temperature is the request's.
    """
    temperature = float(request.sampling["temperature"])

    def next_token(prefix: Prefix) -> list[float]:
        with enter() as engine:
            rows = engine.rank([request], [(*prefix, 0)], vocabulary)
        if rows is None:
            raise EngineError(f"{engine.spec.label} tells no logits: compare with samples of it (SampledTarget)")
        last = rows[0][-1]
        by_id = dict(zip(last.ids, last.logits, strict=True))
        return probabilities([last.logits[0] - by_id[token] for token in range(vocabulary)], temperature)

    return next_token


def probabilities(gaps: Sequence[float], temperature: float) -> list[float]:
    """The softmax at this temperature of logits that lie these gaps below the highest; NaN where a gap is NaN."""
    weights = [exp(-gap / temperature) for gap in gaps]
    total = fsum(weights)
    return [weight / total for weight in weights]


NextToken: TypeAlias = Callable[[Prefix], Sequence[float]]
ROUNDING = 1e-6


class Target(Protocol):
    """The side of the target."""

    def observe(self, seeds: Sequence[int], tokens: int) -> None:
        """Draw samples of `tokens` tokens where samples are needed."""

    def shares(self, prefix: Prefix) -> Mapping[int, float]:
        """How probable each token is after this prefix, as far as it is known."""

    def compare(self, prefix: Prefix, observed: Mapping[int, int]) -> Comparison:
        """Compare what followed this prefix in the engine's samples with what the target lets expect."""


class KnownTarget:
    """A target whose distribution is known: `next_token` gives the probability of each token id after a prefix."""

    def __init__(self, next_token: NextToken) -> None:
        self._known = cache(next_token)

    def observe(self, seeds: Sequence[int], tokens: int) -> None:
        """Nothing needs to be drawn."""

    def shares(self, prefix: Prefix) -> Mapping[int, float]:
        """The distribution itself. Raises EngineError where it is none."""
        known = self._known(prefix)
        if not all(share >= 0 for share in known) or abs(sum(known) - 1) > ROUNDING:
            raise EngineError(
                f"the target's probabilities after {prefix} are no distribution: they sum to {sum(known)}"
            )
        return dict(enumerate(known))

    def compare(self, prefix: Prefix, observed: Mapping[int, int]) -> Comparison:
        """Goodness of fit."""
        return against_known(prefix, observed, self._known(prefix))


class SampledTarget:
    """A target that can only be sampled: `draw` asks the target alone."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._tally: Tally | None = None

    def observe(self, seeds: Sequence[int], tokens: int) -> None:
        """Draw one sample for each seed."""
        self._tally = self._tally or Tally(tokens)
        self._tally.draw(self._draw, seeds)

    def shares(self, prefix: Prefix) -> Mapping[int, float]:
        """The shares among the samples so far."""
        following = self._following(prefix)
        return {token: count / following.total() for token, count in following.items()}

    def compare(self, prefix: Prefix, observed: Mapping[int, int]) -> Comparison:
        """Two samples."""
        return against_sample(prefix, observed, self._following(prefix))

    def _following(self, prefix: Prefix) -> Counter[int]:
        assert self._tally is not None, "observe() comes first"
        return self._tally.after(prefix)


def frequent_prefixes(target: Target, depth: int, width: int) -> list[list[Prefix]]:
    """For each length from 0 to `depth`, the `width` most probable prefixes that extend those of the length before."""
    level: dict[Prefix, float] = {(): 1.0}
    levels = [level]
    for _ in range(depth):
        longer = {
            (*prefix, token): probability * share
            for prefix, probability in level.items()
            for token, share in target.shares(prefix).items()
        }
        level = {prefix: longer[prefix] for prefix in sorted(longer, key=lambda p: (-longer[p], p))[:width]}
        levels.append(level)
    return [list(each) for each in levels]
