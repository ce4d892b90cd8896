"""Judge: how one engine's output is judged: token by token under greedy decoding, by distribution under sampling.

Token by token each arm is held against the other, both against the truth where a constructed target has one, and the
counters against those that a constructed drafter must give. Either way the result is the same three things: whether it
passes, what the record says of it, and what a person is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Generation
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record import missing
from pytest_specdec.record.parts import ForetoldPart, KnownTruthPart, VerdictPart
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.verdict.drafts import foretell, foretold_part, judge_drafts
from pytest_specdec.verdict.equivalence import Calibration, Outcome, Verdict, judge
from pytest_specdec.verdict.hints import add_hints
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.part import findings_part, outcome_part, sampling_part
from pytest_specdec.verdict.sampling import (
    Drawing,
    KnownTarget,
    SampledTarget,
    SamplingPlan,
    Target,
    is_sampled,
    judge_sampling,
    knows_exactly,
    rescore,
)
from pytest_specdec.verdict.truth import judge_truth, truth_of, truth_part
from pytest_specdec.verdict.words import describe_verdict
from pytest_specdec.workloads.workload import Request

SAMPLED = "at a temperature above 0 there is no single right answer"


@dataclass(frozen=True)
class Judgement:
    """`part`: the record's verdict. `words`: failures, none if it passes. `tie_rate`: share of answers that tie."""

    passes: bool
    part: VerdictPart
    words: list[str] = field(default_factory=list)
    tie_rate: float = 0.0


def judge_rounds(session: Session, arms: Arms, rounds: Rounds, about: Description) -> Judgement:
    """Judge what `rounds` decoded. Raises EngineError."""
    if any(map(is_sampled, arms.workload.requests)):
        return _by_distribution(session, arms, rounds)
    return _token_by_token(session, arms, rounds, about)


def _token_by_token(session: Session, arms: Arms, rounds: Rounds, about: Description) -> Judgement:
    reference, workload = session.reference(arms), arms.workload
    calibration = reference.calibration.beside(Facts.of(about))
    verdict = judge(workload, calibration, rounds.runs, partial(session.rescore, arms), partial(session.decode, arms))
    verdict, known, foretold = _by_what_is_known(verdict, reference.calibration, arms, rounds, about)
    part = replace(outcome_part(verdict, reference), known_truth=known, foretold=foretold)
    ties = verdict.counts.get(Outcome.TIE.value, 0) / sum(verdict.counts.values())
    if verdict.passes:
        return Judgement(True, part, tie_rate=ties)
    told = add_hints(verdict, workload, arms.spec.gamma, about, partial(session.alone, arms))
    part = replace(part, findings=findings_part(told))
    return Judgement(False, part, [describe_verdict(told, workload.name)], ties)


def _by_what_is_known(
    verdict: Verdict, calibration: Calibration, arms: Arms, rounds: Rounds, about: Description
) -> tuple[Verdict, KnownTruthPart, ForetoldPart]:
    """The verdict, held against the truth of the target and of its drafter as far as they are known."""
    spec, runs = arms.spec, rounds.runs
    truth = truth_of(spec.target, arms.workload.requests)
    foretold = foretell(spec, about, arms.workload, truth)
    verdict = judge_truth(verdict, truth, calibration, runs, spec.speculates)
    verdict = judge_drafts(verdict, foretold, runs)
    return verdict, truth_part(truth, calibration, runs), foretold_part(foretold, runs)


def _by_distribution(session: Session, arms: Arms, rounds: Rounds) -> Judgement:
    """The first sampled request stands for the workload: each test of a distribution takes thousands of samples."""
    spec, request = arms.spec, next(filter(is_sampled, arms.workload.requests))
    plan = SamplingPlan.for_gamma(spec.gamma)
    draw = Drawing(partial(session.pool.using, spec), request, plan.tokens, arms.workload.concurrency)
    with session.progress.doing(f"{spec.label} is sampled up to {plan.samples} times"):
        verdict = judge_sampling(draw, _target(session, arms, request, plan), plan)
    words = [] if verdict.passes else [verdict.in_words()]
    words += [f"request {at} failed: {each.error}" for at, each in _failed_answers(rounds)][:1]
    counted = draw.speculation
    if spec.speculates and counted is not None and counted.drafts and counted.accepted_tokens == counted.draft_tokens:
        words.append(
            "every draft was accepted, so what is sampled after a rejection was never seen: use a poorer draft"
        )
    known, foretold = missing(KnownTruthPart, SAMPLED), missing(ForetoldPart, SAMPLED)
    return Judgement(not words, replace(sampling_part(verdict), known_truth=known, foretold=foretold), words)


def _failed_answers(rounds: Rounds) -> Iterator[tuple[int, Generation]]:
    return ((at, each) for run in rounds.runs for at, each in enumerate(run.generations) if each.error is not None)


def _target(session: Session, arms: Arms, request: Request, plan: SamplingPlan) -> Target:
    """The target's distribution: rated in full where its vocabulary is small, and else sampled."""
    enter = partial(session.pool.using, arms.target)
    with enter() as engine:
        about = engine.description
    vocabulary = about.details.get("model_vocabulary") or about.vocabulary
    if knows_exactly(request.sampling, vocabulary):
        return KnownTarget(rescore(enter, request, vocabulary))
    return SampledTarget(Drawing(enter, request, plan.tokens, arms.workload.concurrency))
