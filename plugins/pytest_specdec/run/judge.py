"""Judge: how one engine's output is judged: token by token under greedy decoding, by distribution under sampling.

Of a mix, both, each for its own requests. Of an engine that is only to be measured, as in a lossy mode, limits and
texts alone are judged.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_specdec.engines.engine import Description
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record import NOT_JUDGED, PASSING, missing
from pytest_specdec.record.parts import ForetoldPart, VerdictPart
from pytest_specdec.run.judge_greedy import any_greedy, judge_greedy
from pytest_specdec.run.judge_sampled import judge_sampled
from pytest_specdec.run.judgement import Judgement, broken_limits, cases_of, with_broken_limits, without_truth
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.verdict import sampling
from pytest_specdec.verdict.equivalence import Outcome
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.sampling_evidence import LEVEL
from pytest_specdec.workloads.scenario import Scenario

SAYS_LITTLE = (*PASSING, Outcome.UNDECIDABLE.value)
OF_ALL = "the engine counts over all requests, those at a temperature too"


def judge_rounds(session: Session, arms: Arms, rounds: Rounds, about: Description, scenario: Scenario) -> Judgement:
    """Judge what `rounds` decoded, and whether that sees what the scenario asks for. Raises EngineError."""
    if arms.spec.unjudged is not None:
        return _by_limits_alone(session, arms, rounds, about)
    if not sampling.any_sampled(arms.workload.requests):
        return judge_greedy(session, arms, rounds, about, scenario)
    judged = judge_sampled(session, arms, rounds, about, scenario.detects)
    if not any_greedy(arms) or {each.outcome for each in judged.part.findings} - {Outcome.LOGPROBS.value}:
        return judged  # limits are held for all
    beside = judge_greedy(session, arms, rounds, about, scenario)
    return judged if beside.passes and judged.part.findings else _joined(judged, beside)


def _joined(judged: Judgement, beside: Judgement) -> Judgement:
    """What is said of the sampled requests and of the greedy ones; a fault goes before what nothing decides."""
    failing = [each.part.outcome for each in (judged, beside) if not each.passes]
    outcome = max(failing, key=_weight, default=judged.part.outcome)
    foretold, said = missing(ForetoldPart, OF_ALL), dict.fromkeys((*judged.warnings, *beside.warnings))
    part = replace(beside.part, outcome=outcome, sampling=judged.part.sampling, foretold=foretold)
    return Judgement(part, [*judged.words, *beside.words], beside.tie_rate, tuple(said))


def _weight(outcome: str) -> tuple[bool, int]:
    return outcome not in SAYS_LITTLE, Outcome(outcome).severity


def _by_limits_alone(session: Session, arms: Arms, rounds: Rounds, about: Description) -> Judgement:
    """Of tokens nothing is claimed, but what a lossy mode keeps as well; how many answers are right is told."""
    if broken := broken_limits(session, arms, rounds, about):
        return with_broken_limits(broken, arms)
    right = _count_right_answers(session, arms, rounds, about)
    left = sum(len(run.generations) for run in rounds.judged.values()) - sum(right.values())
    counts = right | ({NOT_JUDGED: left} if left else {})
    return without_truth(VerdictPart(outcome=NOT_JUDGED, counts=counts), [], NOT_JUDGED)


def _count_right_answers(session: Session, arms: Arms, rounds: Rounds, about: Description) -> dict[str, int]:
    """How many are the target's own, with the end that this engine leaves out; nothing at a temperature."""
    if sampling.any_sampled(arms.workload.requests):
        return {}
    known = session.reference(Arms(arms.target, arms.workload)).calibration  # by which its own rounds are judged
    cases = cases_of(arms, rounds, known.beside(Facts.of(about), LEVEL))
    return {Outcome.IDENTICAL.value: sum(case.certificate is not None for case in cases)}
