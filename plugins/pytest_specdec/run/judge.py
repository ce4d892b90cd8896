"""Judge: how one engine's output is judged: token by token under greedy decoding, by distribution under sampling.

By distribution each step needs the one before: an answer of the wrong length or to another prompt is no sample, and the
thousands of samples that a G-test takes are drawn only where the tokens that were measured show nothing. Of an engine
that is only to be measured, as in a lossy mode, limits and texts alone are judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Generation, Run, Speculation
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record import NOT_JUDGED, missing
from pytest_specdec.record.parts import ForetoldPart, KnownTruthPart, VerdictPart
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.telemetry.timing import LOOK_AGAIN
from pytest_specdec.verdict import rated as rating
from pytest_specdec.verdict import sampling
from pytest_specdec.verdict.equivalence import (
    Answer,
    Calibration,
    Case,
    Finding,
    Outcome,
    Verdict,
    answers_of,
    confirm,
    judge,
    judge_texts,
)
from pytest_specdec.verdict.limits import Facts, reshaping_fields
from pytest_specdec.verdict.noise import noise_floor, resolve_dtype, too_few_tokens
from pytest_specdec.verdict.reference import Reference, dtype_of
from pytest_specdec.verdict.sampling_evidence import LEVEL, RatedVerdict
from pytest_specdec.verdict.sampling_statistics import SamplingPlan
from pytest_specdec.verdict.truth import foretell, foretold_part, judge_drafts, judge_truth, truth_of, truth_part
from pytest_specdec.verdict.words import (
    ADVICE,
    SHOWN,
    add_hints,
    add_texts,
    describe_finding,
    describe_verdict,
    finding_parts,
    outcome_part,
    rated_part,
    sampling_part,
)
from pytest_specdec.workloads.scenario import Detects, Scenario
from pytest_specdec.workloads.workload import Request, Workload

RAW = "raw_logprobs"
FIRST_PASS = "it is the engine's first pass after loading"
TARGET_UNSTABLE = "target only, in its rounds around this engine's"
OF_ALL = "the engine counts over all requests, those at a temperature too"
SAMPLED = "at a temperature above 0 there is no single right answer"
ALL_ACCEPTED = "every draft was accepted, so what is sampled after a rejection was never seen: use a poorer draft"


@dataclass(frozen=True)
class Judgement:
    """`part`: the record's verdict. `words`: failures, none if it passes. `tie_rate`: share of answers that tie.

    `warnings`: what was asked for and not tried.
    """

    part: VerdictPart
    words: list[str] = field(default_factory=list)
    tie_rate: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether its figures stand."""
        return not self.words


def judge_rounds(session: Session, arms: Arms, rounds: Rounds, about: Description, scenario: Scenario) -> Judgement:
    """Judge what `rounds` decoded, and whether that sees what the scenario asks for. Raises EngineError."""
    if arms.spec.unjudged is not None:
        return _by_limits_alone(session, arms, rounds, about)
    if not sampling.any_sampled(arms.workload.requests):
        return _token_by_token(session, arms, rounds, about, scenario)
    judged, greedy = _by_distribution(session, arms, rounds, about, scenario.detects), _greedy(arms)
    if not greedy or judged.part.findings:  # limits, which are held for all
        return judged
    beside = _token_by_token(session, _only(arms, greedy), _decoded_of(rounds, greedy), about, scenario)
    outcome = beside.part.outcome if judged.passes and not beside.passes else judged.part.outcome
    foretold = missing(ForetoldPart, OF_ALL)
    part = replace(beside.part, outcome=outcome, sampling=judged.part.sampling, foretold=foretold)
    return Judgement(part, [*judged.words, *beside.words], beside.tie_rate, (*judged.warnings, *beside.warnings))


def _greedy(arms: Arms) -> list[int]:
    return [at for at, request in enumerate(arms.workload.requests) if not sampling.is_sampled(request)]


def _only(arms: Arms, kept: Sequence[int]) -> Arms:
    """These requests as a workload of their own."""
    part = arms.workload.only(kept)
    return Arms(arms.spec, replace(part, name=f"{part.name}, greedy requests"))


def _decoded_of(rounds: Rounds, kept: Sequence[int]) -> Rounds:
    """What these requests got; the engine's counters are of all, and left out."""

    def part(runs: tuple[Run, ...]) -> tuple[Run, ...]:
        return tuple(replace(each, generations=_at(each.generations, kept), speculation=None) for each in runs)

    return replace(rounds, runs=part(rounds.runs), warmup=replace(rounds.warmup, runs=part(rounds.warmup.runs)))


def _at(generations: Sequence[Generation], kept: Sequence[int]) -> tuple[Generation, ...]:
    return tuple(generations[at] for at in kept)


def _by_limits_alone(session: Session, arms: Arms, rounds: Rounds, about: Description) -> Judgement:
    """Of tokens nothing is claimed, but what a lossy mode keeps as well; how many answers are right is told."""
    if broken := _broken_limits(session, arms, rounds, about):
        return _with_broken_limits(broken, arms)
    right = _count_right_answers(session, arms, rounds, about)
    left = sum(len(run.generations) for run in rounds.judged.values()) - sum(right.values())
    counts = right | ({NOT_JUDGED: left} if left else {})
    return _without_truth(VerdictPart(outcome=NOT_JUDGED, counts=counts), [], NOT_JUDGED)


def _count_right_answers(session: Session, arms: Arms, rounds: Rounds, about: Description) -> dict[str, int]:
    """How many are the target's own, with the end that this engine leaves out; nothing at a temperature."""
    if sampling.any_sampled(arms.workload.requests):
        return {}
    known = session.reference(Arms(arms.target, arms.workload)).calibration  # by which its own rounds are judged
    cases = _cases(arms, rounds, known.beside(Facts.of(about), LEVEL))
    return {Outcome.IDENTICAL.value: sum(case.certificate is not None for case in cases)}


def _token_by_token(session: Session, arms: Arms, rounds: Rounds, about: Description, scenario: Scenario) -> Judgement:
    workload, level = arms.workload, session.spend_level()
    reference, verdict = _look(session, arms, rounds, about, level)
    if verdict.by_number_alone and session.rate_all(arms):
        reference, verdict = _look(session, arms, rounds, about, level)
    if verdict.by_number_alone:
        with session.spent.on(LOOK_AGAIN):
            again = _look_again(session, arms, rounds, about, level)
        decides = again.by_number_alone or again.passes  # else it is no look at near-ties, and the first one stands
        verdict = confirm(verdict, again.near_ties) if decides else verdict
    verdict, known, foretold = _by_what_is_known(verdict, reference.calibration, arms, rounds, about)
    untried: tuple[str, ...] = (rating.OTHER_MODE,)
    if not _another_mode(arms):
        rank = partial(session.rank, arms)
        verdict, untried = rating.judge_logprobs(verdict, workload, rounds.judged, rank, reference.calibration.facts)
    part = replace(outcome_part(verdict, reference), known_truth=known, foretold=foretold)
    ties = verdict.counts.get(Outcome.TIE.value, 0) / sum(verdict.counts.values())
    if verdict.passes:
        warnings = *without_effect(workload, reference.calibration), *untried
        unseen = too_few_tokens(verdict.limits, scenario.detects.shares)
        words = [f"undecidable: {each} of {scenario.path}" for each in unseen]
        part = replace(part, outcome=Outcome.UNDECIDABLE.value) if words else part
        return Judgement(part, words, ties, warnings)
    told = add_hints(verdict, workload, arms.spec.gamma, about, partial(session.alone, arms))
    told = add_texts(_name_first_pass(told, rounds), workload, partial(session.decode, arms))
    told = _by_whole_numbers(told, workload)
    part = replace(part, findings=finding_parts(told.findings))
    return Judgement(part, ["\n".join([describe_verdict(told, workload.name), *_asked_beside(arms, about)])], ties)


def _by_whole_numbers(verdict: Verdict, workload: Workload) -> Verdict:
    """Findings with the numbers that requests have in the workload that theirs is a part of."""
    numbers = workload.numbers or range(len(workload.requests))
    return replace(verdict, findings=tuple(replace(each, request=numbers[each.request]) for each in verdict.findings))


def _asked_beside(arms: Arms, about: Description) -> list[str]:
    """What else may be why: options that trade exactness for speed on purpose, and another model behind a url."""
    own, served = dict(arms.spec.speculative_options), about.details.get("taken_at_its_word")
    told = (
        [f"speculative_options = {own}: try it without them, and see whether they may change the output"] if own else []
    )
    if served:
        told.append(f"the server calls its model {served}, and the target is {arms.spec.target}: are they the same?")
    return told


def _look(session: Session, arms: Arms, rounds: Rounds, about: Description, level: float) -> tuple[Reference, Verdict]:
    reference = session.reference(arms)
    calibration = reference.calibration.beside(Facts.of(about), level)
    rescore, decode = partial(session.rescore, arms), partial(session.decode, arms)
    return reference, judge(arms.workload, calibration, rounds.judged, rescore, decode)


def _look_again(session: Session, arms: Arms, rounds: Rounds, about: Description, level: float) -> Verdict:
    fresh = Arms(arms.spec, _continue_answers(arms.workload, rounds.runs[0], about.context))
    session.rate_all(fresh)
    calibration = session.reference(fresh).calibration.beside(Facts.of(about), level)
    run = session.decode_once(fresh)
    return judge(fresh.workload, calibration, {0: run}, partial(session.rescore, fresh))


def _continue_answers(workload: Workload, run: Run, context: int) -> Workload:
    requests = [
        replace(each, prompt_ids=(*each.prompt_ids, *answer.token_ids)[-max(context - each.max_tokens, 1) :])
        for each, answer in zip(workload.requests, run.generations, strict=True)
    ]
    return replace(workload, name=f"{workload.name}, continued", requests=tuple(requests), arrivals_s=())


def without_effect(workload: Workload, calibration: Calibration) -> tuple[str, ...]:
    """A word on sampling fields under which the target chose as it would have without them: they were not tried."""
    pairs = zip(workload.requests, calibration.certified, strict=True)
    shaped = [(reshaping_fields(request), several) for request, several in pairs if reshaping_fields(request)]
    if not shaped or any(score.gap for _, several in shaped for each in several for score in each.scores):
        return ()
    fields = sorted({field for names, _ in shaped for field in names})
    return (f"{', '.join(fields)} had no effect on this workload: every token is what the target chooses without",)


def _name_first_pass(verdict: Verdict, rounds: Rounds) -> Verdict:
    first = {number for number, run in rounds.judged.items() if run.first}
    later = {each.request for each in verdict.findings if each.round not in first}
    findings = (
        replace(each, hints=(*each.hints, FIRST_PASS)) if each.round in first and each.request not in later else each
        for each in verdict.findings
    )
    return replace(verdict, findings=tuple(findings))


def judge_target(session: Session, arms: Arms, rounds: Iterable[Rounds]) -> list[str]:
    """What is wrong with the target's own rounds, before the engine's and beside them. Raises EngineError.

    The number of its near-ties alone convicts nobody: it is what the calibration counts.
    """
    greedy = _greedy(arms)
    if not greedy:
        return []
    if len(greedy) < len(arms.workload.requests):
        arms, rounds = _only(arms, greedy), [_decoded_of(each, greedy) for each in rounds]
    alone = Arms(arms.target, arms.workload)  # its rounds decode plainly, so the null is that of plain decoding
    known = session.reference(alone).calibration
    calibration = known.beside(known.facts, session.spend_level())
    rescore = partial(session.rescore, alone)
    verdicts = (judge(arms.workload, calibration, each.judged, rescore) for each in rounds)
    return [
        f"{TARGET_UNSTABLE}: {describe_verdict(_by_whole_numbers(verdict, arms.workload), arms.workload.name)}"
        for verdict in verdicts
        if not (verdict.passes or verdict.by_number_alone)
    ]


def _by_what_is_known(
    verdict: Verdict, calibration: Calibration, arms: Arms, rounds: Rounds, about: Description
) -> tuple[Verdict, KnownTruthPart, ForetoldPart]:
    spec, runs = arms.spec, rounds.judged
    truth = truth_of(arms.known, arms.workload.requests)
    foretold = foretell(spec, about, arms.workload, truth, runs.values())
    verdict = judge_truth(verdict, truth, calibration, runs, spec.speculates)
    verdict = judge_drafts(verdict, foretold, runs)
    return verdict, truth_part(truth, calibration, runs.values()), foretold_part(foretold, rounds.runs)


def _by_distribution(session: Session, arms: Arms, rounds: Rounds, about: Description, detects: Detects) -> Judgement:
    if broken := _broken_limits(session, arms, rounds, about):
        return _with_broken_limits(broken, arms)
    rated, wrong, untried = _rate(session, arms, rounds)
    if rated is not None and not rated.outcome.passes:
        part = VerdictPart(outcome=rated.outcome.value, sampling=rated_part(None, rated))
        return _without_truth(part, [rated.in_words()])
    plan = SamplingPlan.for_gamma(arms.spec.gamma, level=LEVEL)
    seeing = rated if rated is not None and rated.detects is not None else None
    if seeing is None and detects.total_variation is not None:
        plan = replace(plan, total_variation=detects.total_variation)
    drawn, counted = _draw(session, arms, plan)
    part, words = _weigh(drawn, rated, seeing, detects)
    if arms.spec.speculates and counted is not None and 0 < counted.draft_tokens == counted.accepted_tokens:
        words.append(ALL_ACCEPTED)
    judgement = _without_truth(part, words)
    if not (judgement.passes and wrong):
        return replace(judgement, warnings=untried if judgement.passes else ())
    red = _with_broken_limits(wrong, arms)
    return replace(red, part=replace(red.part, sampling=judgement.part.sampling))


def _without_truth(part: VerdictPart, words: list[str], why: str = SAMPLED) -> Judgement:
    known, foretold = missing(KnownTruthPart, why), missing(ForetoldPart, why)
    return Judgement(replace(part, known_truth=known, foretold=foretold), words)


def _broken_limits(session: Session, arms: Arms, rounds: Rounds, about: Description) -> list[Finding]:
    with session.pool.using(arms.target) as engine:
        facts = Facts.of(engine.description)
    nothing_known = Calibration(((),) * len(arms.workload.requests), noise_floor((), arms.spec.dtype), facts)
    cases = _cases(arms, rounds, nothing_known.beside(Facts.of(about), LEVEL))
    findings = [finding for case in cases if (finding := case.judge_limits()) is not None]
    findings = findings or [*judge_texts(cases, partial(session.decode, arms)).values()]
    return sorted(findings, key=lambda each: -each.outcome.severity)


def _cases(arms: Arms, rounds: Rounds, calibration: Calibration) -> list[Case]:
    return [Case.of(answer, calibration) for answer in answers_of(arms.workload.requests, rounds.judged)]


def _another_mode(arms: Arms) -> bool:
    """Whether log-probabilities were asked for that the target does not rate: after temperature, or logits."""
    asked = any(request.sampling.get("logprobs") is not None for request in arms.workload.requests)
    return asked and arms.spec.options.get("logprobs_mode", RAW) != RAW


def _with_broken_limits(findings: list[Finding], arms: Arms) -> Judgement:
    worst = findings[0].outcome
    counts = Counter(finding.outcome.value for finding in findings)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    lines = [f"{worst.value}: {told} on {arms.workload.name}"]
    lines += [line for finding in findings[:SHOWN] for line in describe_finding(finding)]
    lines.append(f"what to try: {ADVICE[worst]}")
    part = VerdictPart(outcome=worst.value, counts=counts, findings=finding_parts(findings))
    return _without_truth(part, ["\n".join(lines)], SAMPLED if arms.spec.unjudged is None else NOT_JUDGED)


def _rate(session: Session, arms: Arms, rounds: Rounds) -> tuple[RatedVerdict | None, list[Finding], tuple[str, ...]]:
    """What one pass of the target over all answers, warm-up's too, says of their tokens, None where they cannot be
    rated; what is wrong with the log-probabilities that came with them; and a word on what of these was not compared.
    """
    requests, (facts, dtype) = arms.workload.requests, _facts_and_dtype(session, arms)
    answers = answers_of(requests, rounds.judged)
    told, untried = ([], (rating.OTHER_MODE,)) if _another_mode(arms) else rating.those_told(answers)
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
