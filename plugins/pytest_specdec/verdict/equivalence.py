"""The verdict: is every emitted token the target's own greedy choice?

Output that equals target-only output token for token is certified at once: those tokens were rescored in the control.
Where a token differs, the target alone rates every emitted token of that request, given the very prefix that the engine
had; if each lies within the noise floor of the argmax the request is a tie, and otherwise it is divergent. Lengths,
finish reasons and prompts are compared before that, since rescoring excuses none of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_specdec.generation import Generation, Run, Score
from pytest_specdec.verdict.noise import NoiseFloor, largest_gap
from pytest_specdec.workloads.workload import Request, Workload

Rescore = Callable[[Sequence[Request], Sequence[Sequence[int]]], Sequence[Sequence[Score]]]


class Outcome(str, Enum):
    """What a verdict says. Only the first two pass."""

    IDENTICAL = "identical"
    TIE = "tie"
    LENGTH = "length"
    DIVERGENT = "divergent"
    INPUTS_DIFFER = "inputs differ"
    ENGINE_ERROR = "engine error"
    UNDECIDABLE = "undecidable"

    @property
    def passes(self) -> bool:
        """Whether a gate may be green on it."""
        return self in (Outcome.IDENTICAL, Outcome.TIE)


SEVERITY = (
    Outcome.IDENTICAL,
    Outcome.TIE,
    Outcome.LENGTH,
    Outcome.DIVERGENT,
    Outcome.INPUTS_DIFFER,
    Outcome.ENGINE_ERROR,
    Outcome.UNDECIDABLE,
)


@dataclass(frozen=True)
class Finding:
    """One request of one round that is not identical: where it first differs, and how far the target rates it away.

    `position`: index of the first differing token, None if none differs. `expected`, `seen`: tokens there, None past an
    end. `gap`: the largest gap over all tokens of the request, in logits; None if it was not rescored. `worst`: its
    index.
    """

    outcome: Outcome
    round: int
    request: int
    detail: str
    position: int | None = None
    expected: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()
    gap: float | None = None
    worst: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The judgement of all rounds of one engine on one workload, a count for each request of each round."""

    outcome: Outcome
    counts: dict[str, int]
    findings: tuple[Finding, ...]
    max_gap: float | None
    floor: NoiseFloor

    @property
    def passes(self) -> bool:
        """Whether the gate is green."""
        return self.outcome.passes


def judge(
    workload: Workload,
    expected: Sequence[Sequence[Generation]],
    runs: Sequence[Run],
    floor: NoiseFloor,
    rescore: Rescore,
) -> Verdict:
    """Judge every generation of every round.

    `expected`: for each request, the target-only generations that were rescored in the control (at the workload's
    concurrency, and at batch 1 where there is one); equality with any of them is identity. `rescore` is called at most
    once, with all outputs that differ.
    """
    cases = [
        _Case(round_, index, workload.requests[index], expected[index], generation)
        for round_, run in enumerate(runs)
        for index, generation in enumerate(run.generations)
    ]
    findings = [finding for case in cases if (finding := case.plain_finding()) is not None]
    findings += _rescored([case for case in cases if case.needs_rescoring()], floor, rescore)
    return _verdict(len(cases), findings, floor)


def _rescored(cases: Sequence[_Case], floor: NoiseFloor, rescore: Rescore) -> list[Finding]:
    if not cases:
        return []
    scores = rescore([case.request for case in cases], [case.seen.token_ids for case in cases])
    return [case.scored_finding(row, floor) for case, row in zip(cases, scores, strict=True)]


def _verdict(judged: int, findings: Sequence[Finding], floor: NoiseFloor) -> Verdict:
    counts = Counter(finding.outcome.value for finding in findings)
    counts[Outcome.IDENTICAL.value] = judged - len(findings)
    worst = max((finding.outcome for finding in findings), key=SEVERITY.index, default=Outcome.IDENTICAL)
    outcome = Outcome.UNDECIDABLE if floor.insane else worst
    gaps = [finding.gap for finding in findings if finding.gap is not None]
    ordered = sorted(findings, key=lambda finding: (-SEVERITY.index(finding.outcome), finding.round, finding.request))
    return Verdict(outcome, dict(counts), tuple(ordered), max([*gaps, floor.gap]), floor)


@dataclass(frozen=True)
class _Case:
    """One generation beside what the target alone gave for the same request."""

    round: int
    index: int
    request: Request
    expected: Sequence[Generation]
    seen: Generation

    def plain_finding(self) -> Finding | None:
        """What can be said without the target's help: wrong inputs, a broken limit, an early or late end."""
        if self.seen.prompt_ids != self.request.prompt_ids:
            return self._finding(Outcome.INPUTS_DIFFER, "the engine decoded another prompt than the one it was sent")
        if (broken := broken_limit(self.request, self.seen)) is not None:
            return self._finding(Outcome.LENGTH, broken)
        if not self._same_tokens() and self._one_is_a_prefix():
            return self._finding(Outcome.LENGTH, self._ended_elsewhere())
        if self._same_tokens() and not self._same_end():
            return self._finding(
                Outcome.LENGTH,
                f"same tokens, but finished by {self.seen.finish_reason!r}, not {self.nearest.finish_reason!r}",
            )
        return None

    def needs_rescoring(self) -> bool:
        return self.plain_finding() is None and not self._same_tokens()

    def scored_finding(self, scores: Sequence[Score], floor: NoiseFloor) -> Finding:
        """Tie or divergent, by the target's rating of every emitted token."""
        gap = largest_gap(scores)
        beyond = [at for at, score in enumerate(scores) if math.isnan(score.gap) or score.gap > floor.bound]
        if not beyond:
            worst = max(range(len(scores)), key=lambda at: scores[at].gap)
            return self._finding(Outcome.TIE, "differs only where the target's choice is a tie", gap, worst)
        first = beyond[0]
        detail = f"token {first} is {scores[first].gap:.4g} below the target's argmax {scores[first].argmax}"
        return self._finding(
            Outcome.DIVERGENT, f"{detail}; {len(beyond)} of {len(scores)} tokens are beyond the floor", gap, first
        )

    @property
    def nearest(self) -> Generation:
        """The expected generation that agrees longest."""
        return max(self.expected, key=lambda generation: _agreement(generation.token_ids, self.seen.token_ids))

    def _same_tokens(self) -> bool:
        return any(generation.token_ids == self.seen.token_ids for generation in self.expected)

    def _same_end(self) -> bool:
        ends = [generation.finish_reason for generation in self.expected if generation.token_ids == self.seen.token_ids]
        return self.seen.finish_reason in ends

    def _one_is_a_prefix(self) -> bool:
        shared = _agreement(self.nearest.token_ids, self.seen.token_ids)
        return shared == min(len(self.nearest.token_ids), len(self.seen.token_ids))

    def _ended_elsewhere(self) -> str:
        expected, seen = len(self.nearest.token_ids), len(self.seen.token_ids)
        if seen > expected:
            return f"continued past the end at {expected}: {seen} tokens where the target alone stops after {expected}"
        return f"stopped early: {seen} tokens where the target alone gives {expected}"

    def _finding(self, outcome: Outcome, detail: str, gap: float | None = None, worst: int | None = None) -> Finding:
        nearest = self.nearest.token_ids
        position = _agreement(nearest, self.seen.token_ids)
        differs = position < max(len(nearest), len(self.seen.token_ids))
        return Finding(
            outcome=outcome,
            round=self.round,
            request=self.index,
            detail=detail,
            position=position if differs else None,
            expected=tuple(nearest),
            seen=self.seen.token_ids,
            gap=gap,
            worst=worst,
        )


def broken_limit(request: Request, generation: Generation) -> str | None:
    """Which of the request's own limits the output breaks, whatever the other arm did; None if it keeps them."""
    delivered = len(generation.token_ids)
    if delivered > request.max_tokens:
        return f"{delivered} tokens delivered, more than max_tokens = {request.max_tokens}"
    if delivered < request.min_tokens:
        return f"{delivered} tokens delivered, fewer than min_tokens = {request.min_tokens}"
    ends_by_itself = not request.ignore_eos or request.stop or request.stop_token_ids
    if delivered < request.max_tokens and not ends_by_itself:
        return f"{delivered} tokens delivered where {request.max_tokens} were asked for and no end was allowed"
    if generation.finish_reason == "length" and delivered != request.max_tokens:
        return f"finished by 'length' after {delivered} tokens, not after max_tokens = {request.max_tokens}"
    return None


def _agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    shared = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared
