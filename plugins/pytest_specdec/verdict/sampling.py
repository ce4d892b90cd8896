"""The verdict for sampling: at a temperature above 0, is the output distributed as the target's own samples are?

Every token that was measured is rated by the target (`rated`, `sampling_evidence`). Here one prompt is sampled again
and again, each time with a seed of its own: at each position that a step can reach, the tokens that followed the most
frequent prefixes are compared with the target's by a G-test (`sampling_statistics`), with the target's distribution
itself or with samples of it. The prefixes are settled by the target's side only, before the engine's samples are read.

A batch is drawn and compared, until a p-value, corrected over the positions (Holm), falls below the look's share of the
level (different), or each position would have shown the stated difference with the stated power (consistent). When the
samples run out before, nothing is decided, which is no pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from math import sqrt
from typing import Any, TypeAlias

from pytest_specdec.engines.engine import Engine, one_pass
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Run, Speculation
from pytest_specdec.verdict.equivalence import Outcome
from pytest_specdec.verdict.rated import MOST, softmax
from pytest_specdec.verdict.sampling_statistics import (
    Comparison,
    Draw,
    Prefix,
    SamplingPlan,
    Tally,
    against_known,
    against_sample,
    power,
    tail,
)
from pytest_specdec.workloads.workload import Request, Workload

Enter: TypeAlias = Callable[[], AbstractContextManager[Engine]]
EXACT_VOCABULARY = MOST
PLAIN_SAMPLING = frozenset({"temperature", "seed"})


def is_sampled(request: Request) -> bool:
    """Whether the request asks for sampling: a temperature above 0."""
    return float(request.sampling.get("temperature") or 0) > 0


def any_sampled(requests: Iterable[Request]) -> bool:
    """Whether one of them does, so that tokens are judged by their distribution."""
    return any(map(is_sampled, requests))


def knows_exactly(sampling: Mapping[str, Any], vocabulary: int) -> bool:
    """Whether the target's distribution can be rated in full: a small vocabulary, and a temperature alone shapes it."""
    return vocabulary <= EXACT_VOCABULARY and set(sampling) <= PLAIN_SAMPLING


class Drawing:
    """Samples of an engine: called with seeds, it decodes the request once for each, `tokens` tokens long.

    `drawn`: how many so far. `speculation`: what the engine counted over all calls so far, None where it does not
    speculate. Without drafts, a verdict on the samples says nothing of speculation; without rejections, nothing of what
    is sampled after one.
    """

    def __init__(self, enter: Enter, request: Request, tokens: int, concurrency: int) -> None:
        """`enter` gives the engine, awake, for the time of one call.

        The request's own seed, ends and limits do not apply: every sample goes on to its last token, or its length
        would depend on what was drawn.
        """
        self._enter = enter
        self._request = replace(request, max_tokens=tokens, min_tokens=0, ignore_eos=True, stop=(), stop_token_ids=())
        self._concurrency = concurrency
        self._runs: list[Run] = []
        self.drawn = 0

    @property
    def speculation(self) -> Speculation | None:
        """What was counted so far."""
        return Speculation.over(self._runs)

    def __call__(self, seeds: Sequence[int]) -> list[tuple[int, ...]]:
        """One sample a seed, in order. Raises EngineError."""
        asked, sampling = self._request, self._request.sampling
        requests = tuple(replace(asked, sampling={**sampling, "seed": seed}) for seed in seeds)
        with self._enter() as engine:
            run = one_pass(engine, Workload("sampling", requests, self._concurrency))
        self.drawn += len(seeds)
        if failed := [generation.failure for generation in run.generations if generation.failure is not None]:
            raise EngineError(f"{len(failed)} of {len(run.generations)} samples failed: {failed[0]}")
        self._runs.append(replace(run, generations=()))
        return [generation.token_ids for generation in run.generations]


def rescore(enter: Enter, request: Request, vocabulary: int) -> NextToken:
    """The target's distribution after a prefix, by its logits there, shape (vocabulary,).

    `enter` gives the target-only engine. The temperature is the request's.
    """
    import numpy

    temperature = float(request.sampling["temperature"])

    def next_token(prefix: Prefix) -> list[float]:
        with enter() as engine:
            rows = engine.rank([request], [(*prefix, 0)], vocabulary)
        if rows is None:
            raise EngineError(f"{engine.spec.label} tells no logits: compare with samples of it (SampledTarget)")
        last = rows[0][-1]
        shares = softmax((numpy.asarray(last.logits, float) - last.logits[0]) / temperature).tolist()
        by_id = dict(zip(last.ids, shares, strict=True))
        return [by_id[token] for token in range(vocabulary)]

    return next_token


NextToken: TypeAlias = Callable[[Prefix], Sequence[float]]
ROUNDING = 1e-6


class KnownTarget:
    """A target whose distribution is known: `next_token` gives the probability of each token id after a prefix."""

    def __init__(self, next_token: NextToken) -> None:
        self._known = cache(next_token)

    def observe(self, seeds: Sequence[int]) -> None:
        """Nothing needs to be drawn."""

    def shares(self, prefix: Prefix) -> Mapping[int, float]:
        """The distribution itself. Raises EngineError where it is none."""
        known = self._known(prefix)
        if not all(share >= 0 for share in known) or abs(sum(known) - 1) > ROUNDING:
            told = f"they sum to {sum(known)}"
            raise EngineError(f"the target's probabilities after {prefix} are no distribution: {told}")
        return dict(enumerate(known))

    def compare(self, prefix: Prefix, observed: Mapping[int, int]) -> Comparison:
        """Goodness of fit."""
        return against_known(prefix, observed, self._known(prefix))


class SampledTarget(Tally):
    """A target that can only be sampled: `draw` asks the target alone."""

    def shares(self, prefix: Prefix) -> Mapping[int, float]:
        """The shares among the samples so far."""
        following = self.after(prefix)
        return {token: count / following.total() for token, count in following.items()}

    def compare(self, prefix: Prefix, observed: Mapping[int, int]) -> Comparison:
        """Two samples."""
        return against_sample(prefix, observed, self.after(prefix))


Target: TypeAlias = KnownTarget | SampledTarget


def frequent_prefixes(target: Target, depth: int, width: int) -> list[list[Prefix]]:
    """For each length from 0 to `depth`, the `width` most probable prefixes that extend those of the length before."""
    levels: list[dict[Prefix, float]] = [{(): 1.0}]
    for _ in range(depth):
        longer = {
            (*prefix, token): probability * share
            for prefix, probability in levels[-1].items()
            for token, share in target.shares(prefix).items()
        }
        levels.append(dict(sorted(longer.items(), key=lambda each: (-each[1], each[0]))[:width]))
    return [list(each) for each in levels]


@dataclass(frozen=True)
class PositionFinding:
    """One position: the token of number `token` (the first is 1), after each of its prefixes.

    `p_holm`: the p-value corrected over the positions; it is compared with the look's share of the level. `power`: the
    probability that the plan's total variation, on average over these prefixes, is found at this look. `statistic`: G,
    summed over the prefixes like `dof`, the engine's `samples` and the `effective` ones; `p_value`: of the sum,
    uncorrected. `total_variation`: as measured, on average; chance alone keeps it above 0.
    """

    token: int
    comparisons: tuple[Comparison, ...]
    p_holm: float
    power: float
    statistic: float
    dof: int
    p_value: float
    samples: int
    effective: float
    total_variation: float

    @classmethod
    def of(cls, token: int, comparisons: tuple[Comparison, ...], plan: SamplingPlan) -> PositionFinding:
        """With its sums over the prefixes, and its power; alone, so that nothing is corrected."""
        level = plan.level_of_look / plan.tokens  # Holm's correction leaves so much to a position at worst
        dof, effective = sum(each.dof for each in comparisons), sum(each.effective for each in comparisons)
        weighed = sum(each.effective * each.total_variation for each in comparisons)
        statistic = sum(each.statistic for each in comparisons)
        p_value = tail(statistic, dof)
        return cls(
            token=token,
            comparisons=comparisons,
            p_holm=p_value,
            power=power(dof, effective, plan.total_variation, level),
            statistic=statistic,
            dof=dof,
            p_value=p_value,
            samples=sum(each.samples for each in comparisons),
            effective=effective,
            total_variation=weighed / effective if effective else 0.0,
        )

    def in_words(self) -> str:
        """One line."""
        return (
            f"  token {self.token}: G = {self.statistic:.2f}, dof {self.dof}, p = {self.p_value:.3g}, "
            f"Holm {self.p_holm:.3g}; total variation {self.total_variation:.3f}; "
            f"{self.samples} samples after {len(self.comparisons)} prefixes, power {self.power:.3f}"
        )

    def largest_shift(self) -> str:
        """The cell that strays farthest from what is expected, by about its standard deviations, in words."""
        cells = ((each.prefix, cell) for each in self.comparisons for cell in each.cells)
        prefix, cell = max(cells, key=lambda of: abs(of[1].observed - of[1].expected) / sqrt(max(of[1].expected, 1.0)))
        which = "the rare tokens together" if cell.token is None else f"token id {cell.token}"
        after = f"after {list(prefix)}" if prefix else "after the prompt"
        return f"most of all, {which} {after} came {cell.observed} times, where {cell.expected:.1f} are expected"


@dataclass(frozen=True)
class SamplingVerdict:
    """The judgement at the last look. `samples`: drawn from the engine; `look`: how many looks were taken."""

    outcome: Outcome
    positions: tuple[PositionFinding, ...]
    samples: int
    look: int
    plan: SamplingPlan

    @property
    def passes(self) -> bool:
        """Whether the gate is green."""
        return self.outcome.passes

    @property
    def worst(self) -> PositionFinding:
        """The position with the smallest p-value."""
        return min(self.positions, key=lambda position: position.p_value)

    @property
    def weakest(self) -> PositionFinding:
        """The position with the least power."""
        return min(self.positions, key=lambda position: position.power)

    def power_statement(self) -> str:
        """What this verdict could see, in words."""
        plan, last = self.plan, self.positions[-1].token
        return (
            f"a total variation of {plan.total_variation:g} at any of the tokens 1 to {last}, on average over the "
            f"prefixes tested, is found in {self.samples} samples with probability {self.weakest.power:.3f} or more, "
            f"at level {plan.level:g} (look {self.look} of {plan.looks} spends {plan.level_of_look:.3g}; "
            f"Holm over {len(self.positions)} positions)"
        )

    def in_words(self) -> str:
        """The verdict as a message: the outcome, its reason, and a line for each position."""
        differs = self.outcome is Outcome.DIFFERENT
        reason = self.power_statement() if self.passes else self._difference() if differs else self._shortage()
        return "\n".join([f"{self.outcome.value}: {reason}", *(position.in_words() for position in self.positions)])

    def _difference(self) -> str:
        worst = self.worst
        return (
            f"token {worst.token} is not distributed as the target's (p = {worst.p_holm:.3g} after Holm's correction, "
            f"where this look may spend {self.plan.level_of_look:.3g}); {worst.largest_shift()}"
        )

    def _shortage(self) -> str:
        weakest, plan = self.weakest, self.plan
        if not weakest.effective:
            return (
                f"token {weakest.token} cannot be tested: no prefix came often enough, or next to all the target's "
                "probability lies on one token; raise the temperature, lower depth, or raise samples"
            )
        return (
            f"at token {weakest.token}, a total variation of {plan.total_variation:g} would be found with probability "
            f"{weakest.power:.3f} only, not {plan.power:g}, in {self.samples} samples: take more of them (samples), or "
            "ask for a larger total_variation (in a scenario, detects.total_variation)"
        )


def judge_sampling(draw: Draw, target: Target, plan: SamplingPlan) -> SamplingVerdict:
    """Judge an engine by samples of one prompt.

    `draw`: gives for each seed the token ids of one sample, `plan.tokens` or more of them. `target`: what they are
    compared with. Raises EngineError where samples are missing or too short.
    """
    tally = Tally(draw, plan.tokens)
    positions: list[list[Prefix]] = []
    for look in range(1, plan.looks + 1):
        target.observe(plan.target_seeds(look))
        positions = positions or frequent_prefixes(target, plan.depth, plan.width)
        tally.observe(plan.engine_seeds(look))
        compared = [tuple(target.compare(prefix, tally.after(prefix)) for prefix in prefixes) for prefixes in positions]
        findings = _findings(compared, plan)
        if any(position.p_holm <= plan.level_of_look for position in findings):
            return SamplingVerdict(Outcome.DIFFERENT, findings, tally.samples, look, plan)
        if all(position.power >= plan.power for position in findings):
            return SamplingVerdict(Outcome.CONSISTENT, findings, tally.samples, look, plan)
    return SamplingVerdict(Outcome.UNDECIDABLE, findings, tally.samples, look, plan)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: for each p-value, the level at which it is rejected with all others in view."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    multiplied = (min(1.0, left * p_values[at]) for left, at in zip(range(len(order), 0, -1), order, strict=True))
    corrected = dict(zip(order, accumulate(multiplied, max), strict=True))
    return [corrected[at] for at in range(len(order))]


def _findings(compared: Sequence[tuple[Comparison, ...]], plan: SamplingPlan) -> tuple[PositionFinding, ...]:
    alone = [PositionFinding.of(token, comparisons, plan) for token, comparisons in enumerate(compared, start=1)]
    corrected = holm([position.p_value for position in alone])
    return tuple(replace(position, p_holm=p_holm) for position, p_holm in zip(alone, corrected, strict=True))
