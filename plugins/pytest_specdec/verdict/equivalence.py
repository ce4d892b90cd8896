"""The verdict: is every emitted token the target's own greedy choice?

Limits come first, and absolutely. Where a token differs from rescored target-only output, the target alone rates every
emitted token of that request, given the very prefix that the engine had: if each lies within the noise floor of the
argmax the request is a tie, else divergent. Near-ties in turn must not be more frequent than in the calibration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from pytest_specdec.generation import Chunk, Generation, Runs, Score
from pytest_specdec.verdict.limits import (
    Decode,
    Decoded,
    Facts,
    agreement,
    broken_limit,
    broken_stop,
    broken_structure,
    decode_answers,
    missed_eos,
    no_tokenizer,
    quote,
    reshaping_fields,
    with_any_end,
    with_end,
    without_missed_eos,
    wrong_text,
)
from pytest_specdec.verdict.noise import (
    NearTies,
    NoiseFloor,
    Sensitivity,
    compare_near_ties,
    count_near_ties,
    find_limits,
    gap_in_ulps,
    largest_gap,
)
from pytest_specdec.workloads.workload import Request, Workload

TARGET_ONLY, THIS_ENGINE = "target only", "this engine"
Rescore = Callable[[Sequence[Request], Sequence[Sequence[int]]], Sequence[Sequence[Score]]]


class Outcome(str, Enum):
    """What a verdict says, from best to worst. Only the first three pass; two are by distribution."""

    IDENTICAL = "identical"
    CONSISTENT = "consistent"
    TIE = "tie"
    DRAFT_STATE = "draft state"
    LOGPROBS = "logprobs"
    TEXT = "text"
    LENGTH = "length"
    DIVERGENT = "divergent"
    DIFFERENT = "different"
    INPUTS_DIFFER = "inputs differ"
    ENGINE_ERROR = "engine error"
    UNDECIDABLE = "undecidable"

    @property
    def passes(self) -> bool:
        """Whether a gate may be green on it."""
        return self in (Outcome.IDENTICAL, Outcome.CONSISTENT, Outcome.TIE)

    @property
    def severity(self) -> int:
        """Its place in the order from best to worst."""
        return list(Outcome).index(self)


@dataclass(frozen=True)
class Certified:
    """A target-only generation, with its scores where the calibration has rescored it; else without any."""

    generation: Generation
    scores: tuple[Score, ...]

    @property
    def rated(self) -> bool:
        """Whether it was rescored."""
        return len(self.scores) == len(self.generation.token_ids)


@dataclass(frozen=True)
class Calibration:
    """What the target alone showed on the workload: certified generations of each request, the floor, its facts."""

    certified: tuple[tuple[Certified, ...], ...]
    floor: NoiseFloor
    facts: Facts

    def beside(self, engine: Facts, level: float) -> Calibration:
        """The same for an engine to be judged at this level: what it leaves out of its ids is its own affair."""
        facts, floor = replace(self.facts, keeps_ends=engine.keeps_ends), replace(self.floor, level=level)
        return replace(self, facts=facts, floor=floor)


@dataclass(frozen=True)
class Finding:
    """One generation that is not identical: where it first differs, and how far the target rates it away.

    `position`: index of the first differing token, None if none differs. `expected`, `seen`: both sides' tokens;
    `sides`: whose they are; `chunks`: how those seen arrived. `target_wrong`: whether the target alone errs. `gap`:
    the largest gap over all tokens of the request, in logits; None if it was not rescored. `worst`: the first token
    beyond the floor, or the one with the largest gap.
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
    chunks: tuple[Chunk, ...] = ()
    hints: tuple[str, ...] = ()
    sides: tuple[str, str] = (TARGET_ONLY, THIS_ENGINE)
    target_wrong: bool = False


@dataclass(frozen=True)
class Verdict:
    """The judgement of all rounds of one engine on one workload; `counts` has each request of each round once.

    `limits`: what it could have found. `drafts`: where accepted drafts are not the foretold ones, in lines of words.
    """

    outcome: Outcome
    counts: dict[str, int]
    findings: tuple[Finding, ...]
    max_gap: float
    near_ties: NearTies
    limits: Sensitivity
    drafts: tuple[str, ...] = ()

    @property
    def floor(self) -> NoiseFloor:
        """The calibration, with the bound for this gate."""
        return self.limits.floor

    @property
    def by_number_alone(self) -> bool:
        """Whether nothing speaks against it but the number of near-ties."""
        return self.near_ties.too_many and not self.floor.insane and all(each.outcome.passes for each in self.findings)

    @property
    def passes(self) -> bool:
        """Whether the gate is green."""
        return self.outcome.passes

    def with_findings(self, found: Sequence[Finding], needs_calibration: bool = True) -> Verdict:
        """With these too, each in the place of what was found of the same answer."""
        told = {(each.round, each.request): each for each in (*self.findings, *found)}
        judged = sum(self.counts.values())
        return verdict_of(judged, [*told.values()], self.near_ties, self.limits, needs_calibration)


Answer: TypeAlias = tuple[int, int, Request, Generation]  # round, number, request and answer


def answers_of(requests: Sequence[Request], runs: Runs) -> list[Answer]:
    """The answers of all rounds."""
    return [
        (turn, at, request, answer)
        for turn, run in runs.items()
        for at, (request, answer) in enumerate(zip(requests, run.generations, strict=True))
    ]


def judge(
    workload: Workload, calibration: Calibration, runs: Runs, rescore: Rescore, decode: Decode = no_tokenizer
) -> Verdict:
    """Judge every generation of every round. `rescore` is called at most once, with all outputs that differ."""
    outputs = {(index, each.token_ids) for run in runs.values() for index, each in enumerate(run.generations)}
    distinct = sum(len(tokens) for _, tokens in outputs)  # rounds that repeat an output are one observation
    floor = calibration.floor.for_gate(distinct, calibration.floor.level)
    calibration = replace(calibration, floor=floor)
    cases = [Case.of(answer, calibration) for answer in answers_of(workload.requests, runs)]
    settled = {case: finding for case in cases if (finding := case.judge_limits()) is not None}
    settled |= judge_texts([case for case in cases if case not in settled], decode)
    left = [case for case in cases if case not in settled]
    differing = [case for case in left if case.certificate is None]
    asked = [case.request for case in differing], [case.seen.token_ids for case in differing]
    pairs = zip(differing, rescore(*asked) if differing else [], strict=True)
    scores = {each: with_any_end(each.request, each.seen.token_ids, row, calibration.facts) for each, row in pairs}
    findings = [*settled.values(), *(case.judge_scores(row) for case, row in scores.items())]
    rated = _scores_of(left, scores)
    own = (case.certificate for case in _distinct(left))  # of those not drawn no token counts as a near-tie
    tokens = len(rated) + sum(len(each.generation.token_ids) for each in own if each is not None and not each.rated)
    near_ties = compare_near_ties(floor, count_near_ties(rated), tokens)
    return verdict_of(len(cases), findings, near_ties, find_limits(rated, floor, tokens))


def confirm(verdict: Verdict, again: NearTies) -> Verdict:
    """The verdict that was red by the number of near-ties alone, after a second look at other prompts."""
    ties = replace(verdict.near_ties, again=again)
    return verdict_of(sum(verdict.counts.values()), verdict.findings, ties, verdict.limits)


def judge_texts(cases: Sequence[Case], decode: Decode) -> dict[Case, Finding]:
    """The findings of answers whose text or structure is not that of their ids, or that a chat server parts wrongly."""
    texts = decode_answers(((case.request, case.seen) for case in cases), decode)
    judged = {case: case.judge_text(texts.get((case.request, case.seen.token_ids))) for case in cases}
    return {case: finding for case, finding in judged.items() if finding is not None}


def _scores_of(cases: Sequence[Case], scores: Mapping[Case, Sequence[Score]]) -> list[Score]:
    found: list[Score] = []
    for case in _distinct(cases):
        own = case.certificate
        if row := scores.get(case) or (own.scores if own is not None else ()):
            found += without_missed_eos(case.request, case.seen.token_ids, row, case.calibration.facts)
    return found


def _distinct(cases: Sequence[Case]) -> Iterable[Case]:
    """One for each output of each request; those whose sampling fields reshape the choice say nothing of noise."""
    return {(case.index, case.seen.token_ids): case for case in cases if not reshaping_fields(case.request)}.values()


def verdict_of(
    judged: int, findings: Sequence[Finding], near_ties: NearTies, limits: Sensitivity, needs_calibration: bool = True
) -> Verdict:
    """The worst outcome of these findings among `judged` answers; one that needs the calibration is none without it."""
    counts = Counter(finding.outcome.value for finding in findings)
    counts[Outcome.IDENTICAL.value] = judged - len(findings)
    outcomes = [finding.outcome for finding in findings] or [Outcome.IDENTICAL]
    outcomes += [Outcome.DIVERGENT] if near_ties.too_many else []
    worst = max(outcomes, key=lambda outcome: outcome.severity)
    gaps = [finding.gap for finding in findings if finding.gap is not None]
    return Verdict(
        outcome=Outcome.UNDECIDABLE if limits.floor.insane and needs_calibration else worst,
        counts=dict(counts),
        findings=tuple(sorted(findings, key=lambda each: (-each.outcome.severity, each.round, each.request))),
        max_gap=math.nan if any(map(math.isnan, gaps)) else max([*gaps, limits.floor.largest_logits]),
        near_ties=near_ties,
        limits=limits,
    )


@dataclass(frozen=True, eq=False)
class Case:
    """One generation, beside what the target alone gave for the same request; each case is a key of its own."""

    round: int
    index: int
    request: Request
    calibration: Calibration
    seen: Generation

    @classmethod
    def of(cls, answer: Answer, calibration: Calibration) -> Case:
        """With the end that its engine leaves out."""
        round_, index, request, seen = answer
        alone = [each.generation.token_ids for each in calibration.certified[index]]
        return cls(round_, index, request, calibration, with_end(request, seen, calibration.facts, alone))

    @property
    def certificate(self) -> Certified | None:
        """The certified generation with the same tokens, if there is one."""
        mine = self.calibration.certified[self.index]
        return next((each for each in mine if each.generation.token_ids == self.seen.token_ids), None)

    @property
    def nearest(self) -> Generation:
        """The certified generation that agrees longest; an empty one where the target alone failed on this request."""
        candidates = [each.generation for each in self.calibration.certified[self.index]]
        nothing = Generation(self.request.prompt_ids, (), None)
        return max(candidates, key=lambda each: agreement(each.token_ids, self.seen.token_ids), default=nothing)

    def judge_limits(self) -> Finding | None:
        """What can be said without rescoring: a failure, wrong inputs, a broken limit, an early or late end."""
        if (failure := self.seen.failure) is not None:
            return self.finding(Outcome.ENGINE_ERROR, f"the request failed: {failure}")
        if self.seen.prompt_ids != self.request.prompt_ids:
            return self.finding(Outcome.INPUTS_DIFFER, self._other_inputs())
        if (broken := broken_limit(self.request, self.seen, self.calibration.facts)) is not None:
            return self.finding(Outcome.LENGTH, broken + self._same_text())
        if (own := self.certificate) is not None:
            return self._judge_certified(own)
        expected, seen = self.nearest.token_ids, self.seen.token_ids
        one_is_a_prefix = agreement(expected, seen) == min(len(expected), len(seen))
        if self.calibration.certified[self.index] and one_is_a_prefix:
            return self.finding(Outcome.LENGTH, self._other_length() + self._same_text())
        return None

    def judge_text(self, decoded: Decoded | None) -> Finding | None:
        """A stop text passed over or not there, a text that is not that of the ids, or wrong channels."""
        wrong = None
        if decoded is not None:
            asked = self.request, self.seen, decoded, self.calibration.facts
            if (broken := broken_stop(*asked)) is not None:
                return self.finding(Outcome.LENGTH, broken)
            wrong = wrong_text(*asked) or broken_structure(*asked)
        wrong = wrong or self._wrong_channels()
        return None if wrong is None else self.finding(Outcome.TEXT, wrong)

    def _wrong_channels(self) -> str | None:
        """A chat server that parts the same tokens otherwise than for the target alone; only a chat can be compared."""
        alone = self.certificate.generation.channels if self.certificate else None
        if alone is None or self.seen.channels == alone:
            return None
        mine, theirs = dict(self.seen.channels or ()), dict(alone)
        name = next(each for each in sorted({*mine, *theirs}) if mine.get(each) != theirs.get(each))
        return f"same tokens, but {name} is {quote(mine.get(name))}, by the target alone {quote(theirs.get(name))}"

    def judge_scores(self, rows: Sequence[Score]) -> Finding:
        """Tie, divergent or missed, by the target's rating of every emitted token."""
        is_beyond = self.calibration.floor.is_beyond
        if missed := missed_eos(self.request, self.seen, rows, self.calibration.facts, is_beyond):
            return self.finding(Outcome.LENGTH, missed, largest_gap(rows))
        if fields := reshaping_fields(self.request):
            return self.finding(Outcome.DIVERGENT, f"differs from the target alone under {', '.join(fields)}")
        beyond = [(at, score) for at, score in enumerate(rows) if is_beyond(score)]
        if beyond:
            first, score = beyond[0]
            ulps = f"{gap_in_ulps(score, self.calibration.floor.dtype):.4g} ULPs"
            far = f"token {first} is {score.gap:.4g} below the target's argmax {score.argmax} ({ulps})"
            detail = f"{far}; {len(beyond)} of {len(rows)} tokens are beyond the floor"
            return self.finding(Outcome.DIVERGENT, detail, largest_gap(rows), first)
        worst = max(range(len(rows)), key=lambda at: rows[at].gap)
        return self.finding(Outcome.TIE, "differs only where the target's choice is a tie", largest_gap(rows), worst)

    def _judge_certified(self, own: Certified) -> Finding | None:
        """The tokens are the target's, but their end may still be another, or one that both arms missed."""
        ended, end = self.seen.finish_reason, own.generation.finish_reason
        if ended != end:
            return self.finding(Outcome.LENGTH, f"same tokens, but finished by {ended!r}, not {end!r}")
        if reshaping_fields(self.request) or not own.scores:
            return None
        facts, is_beyond = self.calibration.facts, self.calibration.floor.is_beyond
        missed = missed_eos(self.request, self.seen, own.scores, facts, is_beyond)
        return self.finding(Outcome.LENGTH, f"{missed}, in both arms") if missed else None

    def _other_inputs(self) -> str:
        sent, used = self.request.prompt_ids, self.seen.prompt_ids
        if used[1:] == sent:
            return f"the engine put token {used[0]} before the prompt: is BOS added twice?"
        differs = f"{len(used)} tokens for {len(sent)} sent, different from token {agreement(sent, used)} on"
        return f"the engine decoded another prompt: {differs}"

    def _other_length(self) -> str:
        expected, seen = len(self.nearest.token_ids), len(self.seen.token_ids)
        if seen > expected:
            return f"continued past the end at {expected}: {seen} tokens where the target alone stops after {expected}"
        return f"stopped early: {seen} tokens where the target alone gives {expected}"

    def _same_text(self) -> str:
        texts = {each.generation.text for each in self.calibration.certified[self.index]} - {None}
        return "; text equal, ids differ" if self.seen.text is not None and self.seen.text in texts else ""

    def finding(self, outcome: Outcome, detail: str, gap: float | None = None, worst: int | None = None) -> Finding:
        """A finding on this case, with both sides' tokens."""
        nearest = self.nearest.token_ids
        position = agreement(nearest, self.seen.token_ids)
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
            chunks=self.seen.chunks,
        )
