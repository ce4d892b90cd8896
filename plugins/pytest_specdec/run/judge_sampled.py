"""Judge sampled: the output of requests at a temperature, by distribution.

Each step needs the one before: an answer of the wrong length or to another prompt is no sample, and the thousands of
samples that a G-test takes are drawn only where the tokens that were measured show nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Speculation
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record.parts import VerdictPart
from pytest_specdec.run.judgement import Judgement, broken_limits, has_another_mode, with_broken_limits, without_truth
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.verdict import rated as rating
from pytest_specdec.verdict import sampling
from pytest_specdec.verdict.equivalence import Answer, Finding, Outcome, answers_of
from pytest_specdec.verdict.limits import Facts, reshaping_fields
from pytest_specdec.verdict.noise import resolve_dtype
from pytest_specdec.verdict.reference import dtype_of
from pytest_specdec.verdict.sampling_evidence import LEVEL, RatedVerdict
from pytest_specdec.verdict.sampling_statistics import SamplingPlan
from pytest_specdec.verdict.words import rated_part, sampling_part
from pytest_specdec.workloads.scenario import Detects
from pytest_specdec.workloads.workload import Request

ALL_ACCEPTED = "every draft was accepted, so what is sampled after a rejection was never seen: use a poorer draft"


def judge_sampled(session: Session, arms: Arms, rounds: Rounds, about: Description, detects: Detects) -> Judgement:
    """Hold limits, then measured tokens, then samples drawn anew, against the target's distribution."""
    if broken := broken_limits(session, arms, rounds, about):
        return with_broken_limits(broken, arms)
    rated, wrong, untried = _rate(session, arms, rounds)
    if rated is not None and not rated.outcome.passes:
        part = VerdictPart(outcome=rated.outcome.value, sampling=rated_part(None, rated))
        return without_truth(part, [rated.in_words()])
    plan = SamplingPlan.for_gamma(arms.spec.gamma, level=LEVEL)
    seeing = rated if rated is not None and rated.detects is not None else None
    if seeing is None and detects.total_variation is not None:
        plan = replace(plan, total_variation=detects.total_variation)
    drawn, counted = _draw(session, arms, plan)
    part, words = _weigh(drawn, rated, seeing, detects)
    if arms.spec.speculates and counted is not None and 0 < counted.draft_tokens == counted.accepted_tokens:
        words.append(ALL_ACCEPTED)
    judgement = without_truth(part, words)
    if not (judgement.passes and wrong):
        return replace(judgement, warnings=untried if judgement.passes else ())
    red = with_broken_limits(wrong, arms)
    return replace(red, part=replace(red.part, sampling=judgement.part.sampling))


def _rate(session: Session, arms: Arms, rounds: Rounds) -> tuple[RatedVerdict | None, list[Finding], tuple[str, ...]]:
    """What one pass of the target over all answers, warm-up's too, says of their tokens, None where they cannot be
    rated; what is wrong with the log-probabilities that came with them; and a word on what of these was not compared.
    """
    requests, (facts, dtype) = arms.workload.requests, _facts_and_dtype(session, arms)
    answers = answers_of(requests, rounds.judged)
    told, untried = ([], (rating.OTHER_MODE,)) if has_another_mode(arms) else rating.those_told(answers)
    seen = rating.look_at(partial(session.rank, arms), _ratable(answers), told, dtype, facts)
    if seen is None:
        return None, [], (*untried, rating.NOT_RATED) if told else untried
    return _of_tokens(session, arms, rounds, seen[0]) if _ratable(answers) else None, seen[1], untried


def _ratable(answers: Sequence[Answer]) -> list[Answer]:
    """Those at a temperature whose distribution is the target's own, which no field reshapes."""
    return [answer for answer in answers if sampling.is_sampled(answer[2]) and not reshaping_fields(answer[2])]


def _of_tokens(
    session: Session, arms: Arms, rounds: Rounds, tokens: Sequence[rating.Rated | rating.Unrated]
) -> RatedVerdict:
    """What all tokens say. A conviction is tried on the target."""
    requests, (facts, dtype) = arms.workload.requests, _facts_and_dtype(session, arms)
    repeats = any("seed" in request.sampling for request in requests)
    verdict = RatedVerdict.of(tokens, repeats)
    if verdict.outcome.passes or not arms.spec.speculates:
        return verdict
    answers = answers_of(requests, dict(enumerate(session.alone_rounds[arms.target_key].runs)))
    own = rating.look_at(partial(session.rank, arms), _ratable(answers), (), dtype, facts) or ([], [])
    return replace(verdict, target_strays=not RatedVerdict.of(own[0], repeats).outcome.passes)


def _facts_and_dtype(session: Session, arms: Arms) -> tuple[Facts, str]:
    """The target's facts, and the dtype that it computes in, which options of the engine may have set."""
    with session.pool.using(arms.target) as engine:
        return Facts.of(engine.description), resolve_dtype(dtype_of(engine)[0])[0]


def _draw(session: Session, arms: Arms, plan: SamplingPlan) -> tuple[sampling.SamplingVerdict, Speculation | None]:
    request = next(filter(sampling.is_sampled, arms.workload.requests))
    draw = sampling.Drawing(partial(session.pool.using, arms.spec), request, plan.tokens, arms.workload.concurrency)
    what = f"{arms.spec.label} is sampled up to {plan.samples} times"
    with session.progress.doing(what, lambda: f"{draw.drawn:,} so far"):
        return sampling.judge_sampling(draw, _target(session, arms, request, plan), plan), draw.speculation


def _target(session: Session, arms: Arms, request: Request, plan: SamplingPlan) -> sampling.Target:
    enter = partial(session.pool.using, arms.target)
    with enter() as engine:
        about, tells = engine.description, engine.rank((), (), 1) is not None
    vocabulary = about.details.get("model_vocabulary") or about.vocabulary
    if tells and sampling.knows_exactly(request.sampling, vocabulary):
        return sampling.KnownTarget(sampling.rescore(enter, request, vocabulary))
    draw = sampling.Drawing(enter, request, plan.tokens, arms.workload.concurrency)
    return sampling.SampledTarget(draw, plan.tokens)


def _weigh(
    drawn: sampling.SamplingVerdict, rated: RatedVerdict | None, seeing: RatedVerdict | None, detects: Detects
) -> tuple[VerdictPart, list[str]]:
    """Measured tokens say what the gate can see; samples drawn anew, only where those would have shown nothing."""
    outcome, words = drawn.outcome, [drawn.in_words()]
    if seeing is not None and outcome is not Outcome.DIFFERENT:
        sees = seeing.sees(detects.total_variation)
        outcome = seeing.outcome if sees else Outcome.UNDECIDABLE
        words = [] if sees else [seeing.shortage(detects.total_variation)]
    part = sampling_part(drawn)
    both = rated_part(part.sampling, rated) if rated is not None else part.sampling
    return replace(part, outcome=outcome.value, sampling=both), [] if outcome.passes else words
