"""Judgement: what became of one engine's output, and the limits that hold for every answer, however it is decoded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

from pytest_specdec.engines.engine import Description
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record import NOT_JUDGED, missing
from pytest_specdec.record.parts import ForetoldPart, KnownTruthPart, VerdictPart
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.verdict.equivalence import Calibration, Case, Finding, answers_of, judge_texts
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.noise import noise_floor
from pytest_specdec.verdict.sampling_evidence import LEVEL
from pytest_specdec.verdict.words import ADVICE, SHOWN, describe_finding, finding_parts

RAW = "raw_logprobs"
SAMPLED = "at a temperature above 0 there is no single right answer"


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


def without_truth(part: VerdictPart, words: list[str], why: str = SAMPLED) -> Judgement:
    """A judgement that no known truth stands behind."""
    known, foretold = missing(KnownTruthPart, why), missing(ForetoldPart, why)
    return Judgement(replace(part, known_truth=known, foretold=foretold), words)


def broken_limits(session: Session, arms: Arms, rounds: Rounds, about: Description) -> list[Finding]:
    """Answers to another prompt, of a wrong length or end, or whose text is not that of their tokens, worst first."""
    with session.pool.using(arms.target) as engine:
        facts = Facts.of(engine.description)
    nothing_known = Calibration(((),) * len(arms.workload.requests), noise_floor((), arms.spec.dtype), facts)
    cases = cases_of(arms, rounds, nothing_known.beside(Facts.of(about), LEVEL))
    findings = [finding for case in cases if (finding := case.judge_limits()) is not None]
    findings = findings or [*judge_texts(cases, partial(session.decode, arms)).values()]
    return sorted(findings, key=lambda each: -each.outcome.severity)


def cases_of(arms: Arms, rounds: Rounds, calibration: Calibration) -> list[Case]:
    """Every answer of every round, to be judged by this calibration."""
    return [Case.of(answer, calibration) for answer in answers_of(arms.workload.requests, rounds.judged)]


def with_broken_limits(findings: list[Finding], arms: Arms) -> Judgement:
    """The red judgement on these."""
    worst = findings[0].outcome
    counts = Counter(finding.outcome.value for finding in findings)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    lines = [f"{worst.value}: {told} on {arms.workload.name}"]
    lines += [line for finding in findings[:SHOWN] for line in describe_finding(finding)]
    lines.append(f"what to try: {ADVICE[worst]}")
    part = VerdictPart(outcome=worst.value, counts=counts, findings=finding_parts(findings))
    return without_truth(part, ["\n".join(lines)], SAMPLED if arms.spec.unjudged is None else NOT_JUDGED)


def has_another_mode(arms: Arms) -> bool:
    """Whether log-probabilities were asked for that the target does not rate: after temperature, or logits."""
    asked = any(request.sampling.get("logprobs") is not None for request in arms.workload.requests)
    return asked and arms.spec.options.get("logprobs_mode", RAW) != RAW
