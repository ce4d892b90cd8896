"""Judge a sampled workload: the limits of every answer, then every measured token, then one prompt drawn anew.

Each step needs the one before: an answer of the wrong length or to another prompt is no sample, and the thousands of
samples that a G-test takes are drawn only where the tokens that were measured show nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Speculation
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record.parts import VerdictPart
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.verdict.equivalence import Calibration, Case, Finding
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.noise import noise_floor
from pytest_specdec.verdict.part import finding_parts, rated_part, sampling_part
from pytest_specdec.verdict.sampling import (
    Drawing,
    KnownTarget,
    RatedVerdict,
    SampledTarget,
    SamplingOutcome,
    SamplingPlan,
    SamplingVerdict,
    Target,
    can_be_rated,
    is_sampled,
    judge_sampling,
    knows_exactly,
    rate_rounds,
    rescore,
)
from pytest_specdec.verdict.sampling.evidence import LEVEL
from pytest_specdec.verdict.words import ADVICE, SHOWN, describe_finding
from pytest_specdec.workloads.scenario import Detects
from pytest_specdec.workloads.workload import Request

ALL_ACCEPTED = "every draft was accepted, so what is sampled after a rejection was never seen: use a poorer draft"


@dataclass(frozen=True)
class Sampled:
    """What is said of a sampled workload: the record's part, and failures in words, none if it passes."""

    part: VerdictPart
    words: list[str]


def judge_samples(session: Session, arms: Arms, rounds: Rounds, about: Description, detects: Detects) -> Sampled:
    """Judge what `rounds` sampled. Raises EngineError."""
    if broken := _broken_limits(session, arms, rounds, about):
        return _with_broken_limits(broken, arms)
    rated = _rate(session, arms, rounds)
    if rated is not None and not rated.outcome.passes:
        part = VerdictPart(outcome=rated.outcome.value, sampling=rated_part(None, rated))
        return Sampled(part, [rated.in_words()])
    plan = SamplingPlan.for_gamma(arms.spec.gamma, level=LEVEL)
    if rated is None and detects.total_variation is not None:
        plan = replace(plan, total_variation=detects.total_variation)
    drawn, counted = _draw(session, arms, plan)
    words = _words(drawn, rated, detects)
    if arms.spec.speculates and counted is not None and 0 < counted.draft_tokens == counted.accepted_tokens:
        words.append(ALL_ACCEPTED)
    return Sampled(_part(drawn, rated, detects), words)


def _broken_limits(session: Session, arms: Arms, rounds: Rounds, about: Description) -> list[Finding]:
    """Answers that failed, answer another prompt, or break a limit of their request; the worst first."""
    with session.pool.using(arms.target) as engine:
        facts = Facts.of(engine.description)
    requests = arms.workload.requests
    nothing_known = Calibration(((),) * len(requests), noise_floor((), arms.spec.dtype, 0, 0), facts)
    calibration = nothing_known.beside(Facts.of(about), LEVEL)
    cases = (
        Case.of(turn, at, request, calibration, seen)
        for turn, run in enumerate(rounds.judged, -rounds.warmup.rounds)
        for at, (request, seen) in enumerate(zip(requests, run.generations, strict=True))
    )
    findings = [finding for case in cases if (finding := case.judge_limits()) is not None]
    return sorted(findings, key=lambda each: -each.outcome.severity)


def _with_broken_limits(findings: list[Finding], arms: Arms) -> Sampled:
    worst = findings[0].outcome
    counts = Counter(finding.outcome.value for finding in findings)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    lines = [f"{worst.value}: {told} on {arms.workload.name}"]
    lines += [line for finding in findings[:SHOWN] for line in describe_finding(finding)]
    lines.append(f"what to try: {ADVICE[worst]}")
    return Sampled(
        VerdictPart(outcome=worst.value, counts=counts, findings=finding_parts(findings)), ["\n".join(lines)]
    )


def _rate(session: Session, arms: Arms, rounds: Rounds) -> RatedVerdict | None:
    """What all tokens say, warm-up's too; None where they cannot be rated. A conviction is tried on the target."""
    requests, rank = arms.workload.requests, partial(session.rank, arms)
    if not all(is_sampled(request) and can_be_rated(request) for request in requests):
        return None
    repeats = any("seed" in request.sampling for request in requests)
    counted = rounds.speculation
    tokens = rate_rounds(rank, requests, rounds.judged, arms.spec.dtype, -rounds.warmup.rounds)
    if tokens is None:
        return None
    verdict = RatedVerdict.of(tokens, repeats, _rejected(counted))
    if verdict.outcome.passes or not arms.spec.speculates:
        return verdict
    own = rate_rounds(rank, requests, session.target_runs(arms), arms.spec.dtype)
    return replace(verdict, target_strays=not RatedVerdict.of(own or [], repeats).outcome.passes)


def _rejected(counted: Speculation | None) -> float | None:
    """The share of verified drafts that were rejected, which is how far drafter and target are apart on average."""
    if counted is None or not counted.drafts or not counted.accepted_per_position:
        return None
    rejections = counted.drafts - counted.accepted_per_position[-1]
    return rejections / (rejections + counted.accepted_tokens) if rejections else None


def _draw(session: Session, arms: Arms, plan: SamplingPlan) -> tuple[SamplingVerdict, Speculation | None]:
    """The first prompt, drawn anew many times; and what was speculated meanwhile."""
    request = next(filter(is_sampled, arms.workload.requests))
    draw = Drawing(partial(session.pool.using, arms.spec), request, plan.tokens, arms.workload.concurrency)
    with session.progress.doing(f"{arms.spec.label} is sampled up to {plan.samples} times"):
        return judge_sampling(draw, _target(session, arms, request, plan), plan), draw.speculation


def _target(session: Session, arms: Arms, request: Request, plan: SamplingPlan) -> Target:
    """The target's distribution: known where its vocabulary is small, and else sampled."""
    enter = partial(session.pool.using, arms.target)
    with enter() as engine:
        about, tells = engine.description, engine.rank((), (), 1) is not None
    vocabulary = about.details.get("model_vocabulary") or about.vocabulary
    if tells and knows_exactly(request.sampling, vocabulary):
        return KnownTarget(rescore(enter, request, vocabulary))
    return SampledTarget(Drawing(enter, request, plan.tokens, arms.workload.concurrency))


def _outcome(drawn: SamplingVerdict, rated: RatedVerdict | None, detects: Detects) -> SamplingOutcome:
    """Measured tokens that were rated say what the gate can see; samples drawn anew, only where none were."""
    if drawn.outcome is SamplingOutcome.DIFFERENT or rated is None:
        return drawn.outcome
    return rated.outcome if rated.sees(detects.total_variation) else SamplingOutcome.UNDECIDABLE


def _part(drawn: SamplingVerdict, rated: RatedVerdict | None, detects: Detects) -> VerdictPart:
    part = sampling_part(drawn)
    sampling = rated_part(part.sampling, rated) if rated is not None else part.sampling
    return replace(part, outcome=_outcome(drawn, rated, detects).value, sampling=sampling)


def _words(drawn: SamplingVerdict, rated: RatedVerdict | None, detects: Detects) -> list[str]:
    outcome = _outcome(drawn, rated, detects)
    if outcome.passes:
        return []
    if drawn.outcome is SamplingOutcome.DIFFERENT or rated is None:
        return [drawn.in_words()]
    return [rated.shortage(detects.total_variation)]
