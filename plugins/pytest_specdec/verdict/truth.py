"""Known truth: what a constructed target must emit is known without an engine, so a fault of both arms is seen too.

Where the truth is known, each answer is held against it, whatever the arms say of each other and whatever the
calibration showed. An answer that differs is divergent, and it is told which arms are wrong. Where nothing is known,
the reason is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from pytest_specdec.generation import Generation, Run
from pytest_specdec.models import ModelError, ends_of, expected_continuation, why_unknown
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import KnownTruthPart
from pytest_specdec.verdict.equivalence import (
    TARGET_ONLY,
    THIS_ENGINE,
    Calibration,
    Finding,
    Outcome,
    Verdict,
    agreement,
    verdict_of,
)
from pytest_specdec.verdict.limits import reshaping_fields
from pytest_specdec.workloads.workload import Request

KNOWN = "known truth"
NOT_COMPARED = (Outcome.INPUTS_DIFFER, Outcome.ENGINE_ERROR)  # no answers to the prompt that was sent


@dataclass(frozen=True)
class Truth:
    """The tokens of each request's answer up to `max_tokens`, or why they are unknown."""

    answers: tuple[tuple[int, ...], ...] = ()
    unknown: str | None = None


def truth_of(target: str, requests: Sequence[Request]) -> Truth:
    """What the target must emit. All requests are known or none is."""
    if (why := why_unknown(target) or next(filter(None, map(_reshaped_choice, requests)), None)) is not None:
        return Truth(unknown=why)
    try:
        known = [tuple(expected_continuation(target, each.prompt_ids, each.max_tokens)) for each in requests]
    except ModelError as error:
        return Truth(unknown=str(error))
    ends = ends_of(target)
    if any(each.stop_tokens(ends) & set(ids[: each.min_tokens]) for each, ids in zip(requests, known, strict=True)):
        return Truth(unknown="min_tokens keeps ends from being chosen")
    return Truth(tuple(known))


def _reshaped_choice(request: Request) -> str | None:
    """Why the next token is not the target's plain choice."""
    if fields := reshaping_fields(request):
        return f"sampling fields change what is chosen: {', '.join(fields)}"
    return None


def judge_truth(
    verdict: Verdict, truth: Truth, calibration: Calibration, runs: Sequence[Run], speculates: bool
) -> Verdict:
    """The verdict, divergent where an answer of either arm is not the known one; unchanged where nothing is known."""
    told = {(each.round, each.request): each for each in verdict.findings}
    wrong = {
        (case.round, case.request): finding
        for case in _cases(truth, calibration, runs)
        if (finding := case.finding(verdict, told.get((case.round, case.request)), speculates)) is not None
    }
    if not wrong:
        return verdict
    findings = [*{**told, **wrong}.values()]
    return verdict_of(
        sum(verdict.counts.values()), findings, verdict.near_ties, verdict.limits, needs_calibration=False
    )


def truth_part(truth: Truth, calibration: Calibration, runs: Sequence[Run]) -> KnownTruthPart:
    """How many tokens of the rounds and of the calibration were held against the truth, and how many were wrong."""
    pairs = list(_pairs(truth, calibration, runs)) if truth.unknown is None else []
    compared = sum(len(each.token_ids) for _, each in pairs)
    wrong = sum(_wrong_tokens(known, each) for known, each in pairs)
    if truth.unknown is not None:
        return KnownTruthPart(tokens=Figure(None, truth.unknown), wrong=Figure(None, truth.unknown))
    return KnownTruthPart(tokens=Figure(compared), wrong=Figure(wrong))


def _pairs(truth: Truth, calibration: Calibration, runs: Sequence[Run]) -> Iterator[tuple[tuple[int, ...], Generation]]:
    """Each answer of the rounds, and each of the target alone, beside the known one."""
    alone = [[each.generation for each in several] for several in calibration.certified]
    for known, answers in zip(truth.answers, zip(*(run.generations for run in runs), strict=True), strict=True):
        yield from ((known, each) for each in answers)
    yield from chain.from_iterable(
        ((known, each) for each in several) for known, several in zip(truth.answers, alone, strict=True)
    )


@dataclass(frozen=True)
class _Case:
    """One answer beside the known one; `alone`: an answer of the target alone that is wrong, if there is one."""

    round: int
    request: int
    known: tuple[int, ...]
    seen: Generation
    alone: Generation | None

    def finding(self, verdict: Verdict, told: Finding | None, speculates: bool) -> Finding | None:
        """The answer as a finding; None where it is right, or where what is told of this arm alone says more."""
        wrong = _differs(self.known, self.seen)
        if (told is not None and told.outcome in NOT_COMPARED) or not (wrong or self.alone):
            return None
        if wrong and self.alone is None and told is not None and not (told.outcome.passes or verdict.floor.insane):
            return None
        arms = (", both arms" if self.alone else ", this arm alone") if wrong else ", target-only arm alone"
        return self._finding(wrong, arms if speculates else "", told)

    def _finding(self, wrong: bool, arms: str, told: Finding | None) -> Finding:
        answer = self.seen if wrong or self.alone is None else self.alone
        at = agreement(self.known, answer.token_ids)
        first = f"token {at} is {answer.token_ids[at]}, where {self.known[at]} is known to follow"
        count = f"{_wrong_tokens(self.known, answer)} of {len(answer.token_ids)} tokens are wrong"
        return Finding(
            outcome=Outcome.DIVERGENT,
            round=self.round,
            request=self.request,
            detail=f"from the known truth{arms}: {first}; {count}",
            position=at,
            expected=self.known,
            seen=answer.token_ids,
            gap=told.gap if told is not None else None,
            chunks=answer.chunks,
            sides=(KNOWN, THIS_ENGINE if wrong else TARGET_ONLY),
            target_wrong=self.alone is not None,
        )


def _cases(truth: Truth, calibration: Calibration, runs: Sequence[Run]) -> Iterator[_Case]:
    """Every answer of every round; none where nothing is known."""
    for number, known in enumerate(truth.answers):
        alone = (each.generation for each in calibration.certified[number])
        wrong = next((each for each in alone if _differs(known, each)), None)
        for round_, run in enumerate(runs):
            yield _Case(round_, number, known, run.generations[number], wrong)


def _differs(known: tuple[int, ...], answer: Generation) -> bool:
    """Whether a token is another one; an answer that is too short or too long is a matter of its length."""
    return agreement(known, answer.token_ids) < min(len(known), len(answer.token_ids))


def _wrong_tokens(known: tuple[int, ...], answer: Generation) -> int:
    return sum(got != wanted for got, wanted in zip(answer.token_ids, known, strict=False))
