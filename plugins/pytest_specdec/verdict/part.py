"""A verdict as the record has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from pytest_specdec.record import Figure
from pytest_specdec.record.parts import (
    CalibrationPart,
    FindingPart,
    NearTiesPart,
    RatedPart,
    SamplingPart,
    SensitivityPart,
    VerdictPart,
)
from pytest_specdec.verdict.equivalence import Finding, Verdict
from pytest_specdec.verdict.noise import NearTies, NoiseFloor, ulp
from pytest_specdec.verdict.reference import Reference
from pytest_specdec.verdict.sampling.evidence import RatedVerdict
from pytest_specdec.verdict.sampling.judgement import SamplingVerdict
from pytest_specdec.verdict.sensitivity import Sensitivity
from pytest_specdec.verdict.words import SHOWN, WINDOW

NO_LOGITS = "the engine gives no logits"
NOT_RESCORED = "it was not rescored"
UNSEEN = "no difference would have been found in so few tokens"
NO_SHARE = "not even if all tokens came from the draft, or rejections were not counted"
NO_TIME = "decoding took no time"
NONE_FOUND = "no number of them among these tokens"
ONE_LOOK = "the first look decided"


def outcome_part(verdict: Verdict, reference: Reference) -> VerdictPart:
    """Of a verdict token by token: outcome, counts over all requests of all rounds, gaps and floor."""
    return VerdictPart(
        outcome=verdict.outcome.value,
        counts=verdict.counts,
        max_gap_logits=Figure(verdict.max_gap),
        noise_floor_ulps=Figure(verdict.floor.bound),
        noise_floor_logits=Figure(verdict.floor.bound_logits, NO_LOGITS),
        near_ties=_near_ties(verdict.near_ties, verdict.limits.rated),
        limits=_limits(verdict.limits),
        calibration=calibration_part(verdict.floor, reference),
        reference_versions=dict(reference.versions),
    )


def _near_ties(ties: NearTies, rated: int) -> NearTiesPart:
    return NearTiesPart(
        count=ties.judged,
        tokens=ties.judged_tokens,
        rated=rated,
        calibration_count=ties.null.near_ties,
        calibration_tokens=ties.null.tokens,
        shape=ties.null.shape,
        margin=ties.null.margin,
        p_value=ties.p_value,
        level=ties.level,
        p_value_again=Figure(ties.again.p_value if ties.again is not None else None, ONE_LOOK),
    )


def _limits(limits: Sensitivity) -> SensitivityPart:
    return SensitivityPart(
        near_ties=Figure(limits.near_ties, NONE_FOUND),
        lossy=Figure(limits.lossy, NONE_FOUND),
        statement=limits.statement,
    )


def calibration_part(floor: NoiseFloor, reference: Reference) -> CalibrationPart:
    """What the floor was measured on, and what rescoring cost."""
    cost = reference.rescoring_seconds / reference.decoding_seconds if reference.decoding_seconds else None
    certified = [each for several in reference.calibration.certified for each in several]
    return CalibrationPart(
        dtype=floor.dtype,
        unknown=floor.unknown,
        tokens=floor.tokens,
        answers_rated=sum(len(each.scores) for each in certified),
        answers=sum(len(each.generation.token_ids) for each in certified),
        near_ties=floor.near_ties,
        largest_gap_logits=Figure(floor.largest_logits),
        ulp_logits=Figure(ulp(floor.top, floor.dtype) if floor.top is not None else None, NO_LOGITS),
        gaps_in_ulps={str(ulps): count for ulps, count in floor.histogram},
        disagreements=floor.disagreements,
        compared=floor.compared,
        rescoring_over_decoding=Figure(cost, NO_TIME),
    )


def finding_parts(findings: Sequence[Finding]) -> tuple[FindingPart, ...]:
    """The first of these findings, each with the tokens of both sides around the first difference."""
    return tuple(map(_finding, findings[:SHOWN]))


def _finding(finding: Finding) -> FindingPart:
    first = max(0, (finding.position or 0) - WINDOW)
    window = slice(0) if finding.position is None else slice(first, finding.position + WINDOW + 1)
    return FindingPart(
        request=finding.request,
        round=finding.round,
        outcome=finding.outcome.value,
        detail=finding.detail,
        position=finding.position,
        sides=finding.sides,
        gap_logits=Figure(finding.gap, NOT_RESCORED),
        hints=finding.hints,
        window_start=first,
        expected=finding.expected[window],
        seen=finding.seen[window],
    )


def sampling_part(verdict: SamplingVerdict) -> VerdictPart:
    """Of a verdict by distribution."""
    return VerdictPart(
        outcome=verdict.outcome.value,
        sampling=SamplingPart(
            samples=verdict.samples,
            look=verdict.look,
            plan=asdict(verdict.plan),
            power_statement=verdict.power_statement(),
            positions=tuple(position.wire() for position in verdict.positions),
        ),
    )


def rated_part(drawn: SamplingPart | None, rated: RatedVerdict) -> SamplingPart:
    """The same, with what the measured tokens say."""
    evidence = rated.evidence
    part = RatedPart(
        tokens=evidence.tokens,
        unrated=len(rated.unrated),
        log_e_value=evidence.log_e,
        strongest=evidence.worst().in_words() if evidence.tokens else "",
        detects_total_variation=Figure(rated.detects, UNSEEN),
        detects_draft_share=Figure(rated.detects_draft_share, NO_SHARE),
        statement=rated.statement(),
    )
    return replace(drawn or SamplingPart(), rated=part)
