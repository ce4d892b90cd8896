"""Judge greedy: each token of an engine's output, and of the target's own rounds around it, against the target alone.

Of a workload in which others are sampled, the greedy requests are a workload of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Run
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record.parts import ForetoldPart, KnownTruthPart
from pytest_specdec.run.judgement import Judgement, has_another_mode
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.telemetry.timing import LOOK_AGAIN
from pytest_specdec.verdict import rated as rating
from pytest_specdec.verdict import sampling
from pytest_specdec.verdict.equivalence import Calibration, Outcome, Verdict, confirm, judge
from pytest_specdec.verdict.limits import Facts, reshaping_fields
from pytest_specdec.verdict.noise import too_few_tokens
from pytest_specdec.verdict.reference import Reference
from pytest_specdec.verdict.truth import foretell, foretold_part, judge_drafts, judge_truth, truth_of, truth_part
from pytest_specdec.verdict.words import add_hints, add_texts, describe_verdict, finding_parts, outcome_part
from pytest_specdec.workloads.scenario import Scenario
from pytest_specdec.workloads.workload import Workload

FIRST_PASS = "it is the engine's first pass after loading"
TARGET_UNSTABLE = "target only, in its rounds around this engine's"


def judge_greedy(session: Session, whole: Arms, decoded: Rounds, about: Description, scenario: Scenario) -> Judgement:
    """Look at all tokens, at fresh prompts too where their number alone convicts, then at what is known beforehand."""
    arms, [rounds] = greedy_part(whole, [decoded])
    workload, level = arms.workload, session.spend_level()
    reference, verdict = _look(session, arms, rounds, about, level)
    if verdict.by_number_alone and session.rate_all(arms):
        reference, verdict = _look(session, arms, rounds, about, level)
    if verdict.by_number_alone:
        with session.spent.on(LOOK_AGAIN):
            again = _look_again(session, whole, decoded, about, level)
        decides = again.by_number_alone or again.passes  # else it is no look at near-ties, and the first one stands
        verdict = confirm(verdict, again.near_ties) if decides else verdict
    verdict, known, foretold = _by_what_is_known(verdict, reference.calibration, arms, rounds, about)
    untried: tuple[str, ...] = (rating.OTHER_MODE,)
    if not has_another_mode(arms):
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
    """At fresh prompts, in the same company: sampled requests are decoded beside greedy ones here too."""
    fresh = Arms(arms.spec, _continue_answers(arms.workload, rounds.runs[0], about.context))
    part, [again] = greedy_part(fresh, [Rounds((session.decode_once(fresh),), ())])
    session.rate_all(part)
    calibration = session.reference(part).calibration.beside(Facts.of(about), level)
    return judge(part.workload, calibration, {0: again.runs[0]}, partial(session.rescore, part))


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
    if not any_greedy(arms):
        return []
    arms, parts = greedy_part(arms, rounds)
    alone = Arms(arms.target, arms.workload)  # its rounds decode plainly, so the null is that of plain decoding
    known = session.reference(alone).calibration
    calibration = known.beside(known.facts, session.spend_level())
    rescore = partial(session.rescore, alone)
    verdicts = (judge(arms.workload, calibration, each.judged, rescore) for each in parts)
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


def any_greedy(arms: Arms) -> bool:
    """Whether a request has no temperature."""
    return not all(map(sampling.is_sampled, arms.workload.requests))


def greedy_part(arms: Arms, rounds: Iterable[Rounds]) -> tuple[Arms, list[Rounds]]:
    """The requests without a temperature as a workload of their own, and what they got; all, where none has one.

    An engine's counters are of all requests, so none are left of a part.
    """
    requests, workload = arms.workload.requests, arms.workload
    kept = [at for at, request in enumerate(requests) if not sampling.is_sampled(request)]
    if len(kept) == len(requests):
        return arms, list(rounds)

    def part(runs: tuple[Run, ...]) -> tuple[Run, ...]:
        answers = (tuple(run.generations[at] for at in kept) for run in runs)
        return tuple(replace(run, generations=own, speculation=None) for run, own in zip(runs, answers, strict=True))

    parts = [
        replace(each, runs=part(each.runs), warmup=replace(each.warmup, runs=part(each.warmup.runs))) for each in rounds
    ]
    return Arms(arms.spec, replace(workload.only(kept), name=f"{workload.name}, greedy requests")), parts
