"""A verdict in words, with hints, and as the record has it.

A red gate tells what differs, where, by how much, against which floor, what stands near it, and what to try. What
stands near a finding is a hint, and no part of the verdict: speculative decoders break at edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Generation, steps_of
from pytest_specdec.record import Figure, parts
from pytest_specdec.verdict.equivalence import THIS_ENGINE, Finding, Outcome, Verdict
from pytest_specdec.verdict.limits import Decode, Facts, agreement, quote, reshaping_fields
from pytest_specdec.verdict.noise import NearTies, NoiseFloor, ulp
from pytest_specdec.verdict.reference import Reference
from pytest_specdec.verdict.sampling import SamplingVerdict
from pytest_specdec.verdict.sampling_evidence import RatedVerdict
from pytest_specdec.workloads.workload import Request, Workload

WINDOW = 4
SHOWN = 3
ADVICE = {
    Outcome.DIVERGENT: "try --specdec-dtype float32: numerics vanish there, a fault stays; then another method or γ",
    Outcome.DRAFT_STATE: "look at the drafter's own KV cache and positions: tokens are right, its drafts are not",
    Outcome.LOGPROBS: "look at how this engine gathers log-probabilities in a step of several tokens: ids are right",
    Outcome.TEXT: "look at detokenization in this engine, and at where it cuts text that has a stop text in it",
    Outcome.LENGTH: "look at EOS, stop and max_tokens handling inside a speculation step of this engine",
    Outcome.INPUTS_DIFFER: "look at tokenizer, chat template and BOS handling: both arms must be sent the same ids",
    Outcome.ENGINE_ERROR: "look at what the engine says of the failed requests, and at its log",
    Outcome.UNDECIDABLE: "run the target-only test alone; until its output is stable, nothing can be said",
}
IN_FLOAT32 = "try another method, γ or version: in float32 numerics explain no such gap"
MANY_IN_FLOAT32 = "try another method, γ or version: each gap is within the floor, but there are too many of them"
TARGET_WRONG = (
    "look at the target's own KV cache, positions and attention in this engine: target-only decoding is wrong"
)


def add_hints(
    verdict: Verdict,
    workload: Workload,
    gamma: int | None,
    description: Description,
    alone: Callable[[int], Generation],
) -> Verdict:
    """A verdict that fails, with hints at its first findings; `alone` decodes one request by itself at batch 1."""
    if verdict.passes or not verdict.findings:
        return verdict
    told = [
        replace(finding, hints=find_hints(finding, workload.requests[finding.request], gamma, description))
        for finding in verdict.findings[:SHOWN]
    ]
    if workload.concurrency > 1 and told[0].sides[1] == THIS_ENGINE:
        told[0] = replace(told[0], hints=(*told[0].hints, occurs_alone(told[0], alone(told[0].request))))
    return replace(verdict, findings=(*told, *verdict.findings[SHOWN:]))


def add_texts(verdict: Verdict, workload: Workload, decode: Decode) -> Verdict:
    """The same, its first findings told as text too, where there is a tokenizer."""
    first = verdict.findings[:SHOWN]
    texts = (as_text(each, workload.requests[each.request], decode) for each in first)
    told = [replace(each, hints=(*text, *each.hints)) for each, text in zip(first, texts, strict=True)]
    return replace(verdict, findings=(*told, *verdict.findings[SHOWN:]))


def as_text(finding: Finding, request: Request, decode: Decode) -> tuple[str, ...]:
    """The tokens from the first difference on as the tokenizer writes them, and what stands before."""
    if finding.position is None:
        return ()
    around = slice(finding.position, finding.position + WINDOW + 1)
    before = (*request.prompt_ids, *finding.seen[: finding.position])
    texts = decode([request] * 3, [before, finding.expected[around], finding.seen[around]])
    told = [quote(text) for text in texts if text is not None]
    if len(told) < len(texts) or texts[1] == texts[2]:  # without a tokenizer, or where special tokens alone differ
        return ()
    sides = (f"{side} {text}" for side, text in zip(finding.sides, told[1:], strict=True))
    return (f"as text, after {told[0]}: {', '.join(sides)}",)


def find_hints(finding: Finding, request: Request, gamma: int | None, description: Description) -> tuple[str, ...]:
    """The hints of one finding, in no order of likelihood."""
    at = finding.worst if finding.worst is not None else finding.position
    fields = reshaping_fields(request)
    found = [f"sampling fields that every token must see: {', '.join(fields)}"] if fields else []
    if at is not None:
        found += _steps(finding, at, Facts.of(description).stop_tokens(request))
        found += _boundaries(len(request.prompt_ids), at, gamma or 0, description)
        warm = description.details.get("prefix_caching") and finding.round > 0
        found += [f"the prefix cache is on and warm in round {finding.round}"] if warm else []
    return tuple(found)


def _steps(finding: Finding, at: int, stop_tokens: frozenset[int]) -> list[str]:
    found, steps = [], steps_of(finding.chunks)
    for number, step in enumerate(steps):
        if at in step and len(step) > 1:
            role = "the target's own token after the accepted drafts" if at == step[-1] else "an accepted draft"
            found.append(f"token {at} is number {at - step[0] + 1} of {len(step)} in step {number}: {role}")
    inner = (each for step in steps for each in step[:-1] if each < len(finding.seen))
    passed = next((each for each in inner if finding.seen[each] in stop_tokens), None)
    return found + ([] if passed is None else [f"EOS or a stop token at {passed} stands inside a step, not at its end"])


def _boundaries(prompt: int, at: int, gamma: int, description: Description) -> list[str]:
    details, place = description.details, prompt + at
    found = []
    block, chunk = details.get("block_size"), details.get("prefill_chunk")
    if block and place % block in (0, block - 1):
        found.append(f"position {place} is at the edge of a cache block of {block}")
    if chunk and prompt > chunk:
        found.append(f"the prompt of {prompt} tokens is longer than a prefill chunk of {chunk}")
    near = 1 + gamma
    for name, context in (("context", description.context), ("draft's context", details.get("draft_context"))):
        if context and place + near >= context:
            found.append(f"position {place} is within a step of the end of the {name} of {context}")
    return found


def occurs_alone(finding: Finding, again: Generation) -> str:
    """Whether the request gives the same wrong tokens by itself at batch 1."""
    if again.token_ids == finding.seen:
        return "it occurs in the same way with this request alone at batch 1"
    if again.token_ids == finding.expected:
        return "it depends on the batch: alone at batch 1 the request is right"
    return f"alone at batch 1 it is wrong in another way, from token {agreement(again.token_ids, finding.seen)} on"


def describe_verdict(verdict: Verdict, workload: str) -> str:
    """The message of a verdict that does not pass."""
    judged = sum(verdict.counts.values())
    counts = ", ".join(f"{count} {name}" for name, count in verdict.counts.items() if count)
    lines = [f"{verdict.outcome.value}: {counts} of {judged} generations on {workload}"]
    if verdict.floor.insane:
        lines.append(f"the calibration failed: {verdict.floor.insane}")
    lines += verdict.drafts
    alike: dict[object, list[Finding]] = {}
    for each in verdict.findings:
        alike.setdefault((each.request, each.detail, each.position), []).append(each)
    lines += [line for same in [*alike.values()][:SHOWN] for line in describe_finding(same[0], len(same) - 1)]
    if len(alike) > SHOWN:
        lines.append(f"… and {len(alike) - SHOWN} more")
    lines += _floor(verdict)
    advice = ADVICE.get(verdict.outcome)
    if advice and verdict.outcome is Outcome.DIVERGENT and verdict.floor.dtype == "float32":
        advice = MANY_IN_FLOAT32 if verdict.by_number_alone else IN_FLOAT32
    if advice and verdict.findings and verdict.findings[0].target_wrong:
        advice = TARGET_WRONG
    return "\n".join([*lines, f"what to try: {advice}"] if advice else lines)


def round_name(number: int) -> str:
    """A round by its number, from 0; warm-up rounds are counted back from there."""
    return f"round {number}" if number >= 0 else f"warm-up round {number}"


def place_of(request: int, round: int, more: int) -> str:
    """Where a finding was made. `more`: in how many other rounds it was made too."""
    return f"request {request}, {round_name(round)}" + (f" and {more} more" if more else "")


def describe_finding(finding: Finding, more: int = 0) -> list[str]:
    """One finding, with a window of tokens of both sides around the first difference."""
    lines = [f"{place_of(finding.request, finding.round, more)}: {finding.outcome.value}: {finding.detail}"]
    if finding.position is not None:
        lines.append(f"  first difference at token {finding.position}")
        for side, tokens in zip(finding.sides, (finding.expected, finding.seen), strict=True):
            lines.append(f"  {side}  {window(tokens, finding.position)}")
    return lines + [f"  hint: {hint}" for hint in finding.hints]


def window(tokens: Sequence[int], position: int) -> str:
    """The tokens around a position, the one at the position in brackets, "end" past the last."""
    first, last = max(0, position - WINDOW), position + WINDOW + 1
    shown = [f"[{token}]" if at == position else str(token) for at, token in enumerate(tokens[:last])][first:]
    if position >= len(tokens):
        shown.append("[end]")
    return " ".join((["…"] if first else []) + shown + (["…"] if last < len(tokens) else []))


def _floor(verdict: Verdict) -> list[str]:
    floor = verdict.floor
    calibration = f"over {floor.tokens} target-only tokens the largest gap was {floor.largest:.4g} ULPs"
    what = "near-ties" if verdict.by_number_alone else "not the target's argmax"  # which faults are not either
    batches = f"{floor.disagreements} of {floor.compared} prompts differ between batch 1 and the workload's concurrency"
    return [
        f"noise floor {floor.bound} ULPs ({floor.dtype}): {calibration}; {batches}",
        f"{what}: {describe_near_ties(verdict.near_ties)}",
        f"limit of detection: this gate {verdict.limits.statement}",
        *(f"not known: {each}" for each in floor.unknown),
    ]


def describe_near_ties(ties: NearTies) -> str:
    """Both counts, how they were compared, and the second look if there was one."""
    null = ties.null
    here = f"{ties.judged} of {ties.judged_tokens} tokens"
    there = f"{null.near_ties} of {null.tokens} in the calibration, by {null.shape}"
    found = f"p = {ties.p_value:.2g} for {null.margin:g} times as many, level {ties.level:.2g}"
    again = f"; at fresh prompts {describe_near_ties(ties.again)}" if ties.again is not None else ""
    return f"{here}, {there} ({found}{', too many' if ties.suspect else ''}){again}"


NO_LOGITS = "the engine gives no logits"
NOT_RESCORED = "it was not rescored"
UNSEEN = "no difference would have been found in so few tokens"
NO_TIME = "decoding took no time"
NONE_FOUND = "no number of them among these tokens"
ONE_LOOK = "the first look decided"


def outcome_part(verdict: Verdict, reference: Reference) -> parts.VerdictPart:
    """Of a verdict token by token: outcome, counts over all requests of all rounds, gaps and floor."""
    limits, floor = verdict.limits, verdict.floor
    unit = ulp(floor.top, floor.dtype) if floor.top is not None else None  # at the largest logit; elsewhere smaller
    return parts.VerdictPart(
        outcome=verdict.outcome.value,
        counts=verdict.counts,
        max_gap_logits=Figure(verdict.max_gap),
        noise_floor_ulps=Figure(floor.bound),
        noise_floor_logits=Figure(floor.bound * unit if unit is not None else None, NO_LOGITS),
        near_ties=_near_ties(verdict.near_ties, limits.rated),
        limits=parts.SensitivityPart(
            near_ties=Figure(limits.near_ties, NONE_FOUND),
            lossy=Figure(limits.lossy, NONE_FOUND),
            statement=limits.statement,
        ),
        calibration=_calibration(floor, unit, reference),
        reference_versions=dict(reference.versions),
    )


def _near_ties(ties: NearTies, rated: int) -> parts.NearTiesPart:
    return parts.NearTiesPart(
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


def _calibration(floor: NoiseFloor, unit: float | None, reference: Reference) -> parts.CalibrationPart:
    cost = reference.rescoring_seconds / reference.decoding_seconds if reference.decoding_seconds else None
    certified = [each for several in reference.calibration.certified for each in several]
    return parts.CalibrationPart(
        dtype=floor.dtype,
        unknown=floor.unknown,
        tokens=floor.tokens,
        answers_rated=sum(len(each.scores) for each in certified),
        answers=sum(len(each.generation.token_ids) for each in certified),
        near_ties=floor.near_ties,
        largest_gap_logits=Figure(floor.largest_logits),
        ulp_logits=Figure(unit, NO_LOGITS),
        gaps_in_ulps={str(ulps): count for ulps, count in floor.histogram},
        disagreements=floor.disagreements,
        compared=floor.compared,
        rescoring_over_decoding=Figure(cost, NO_TIME),
    )


def finding_parts(findings: Sequence[Finding]) -> tuple[parts.FindingPart, ...]:
    """The first of these findings, each with the tokens of both sides around the first difference."""
    told = []
    for finding in findings[:SHOWN]:
        first = max(0, (finding.position or 0) - WINDOW)
        around = slice(0) if finding.position is None else slice(first, finding.position + WINDOW + 1)
        part = parts.FindingPart(
            request=finding.request,
            round=finding.round,
            outcome=finding.outcome.value,
            detail=finding.detail,
            position=finding.position,
            sides=finding.sides,
            gap_logits=Figure(finding.gap, NOT_RESCORED),
            hints=finding.hints,
            window_start=first,
            expected=finding.expected[around],
            seen=finding.seen[around],
        )
        told.append(part)
    return tuple(told)


def sampling_part(verdict: SamplingVerdict) -> parts.VerdictPart:
    """Of a verdict by distribution."""
    return parts.VerdictPart(
        outcome=verdict.outcome.value,
        sampling=parts.SamplingPart(
            samples=verdict.samples,
            look=verdict.look,
            plan=asdict(verdict.plan),
            power_statement=verdict.power_statement(),
            positions=tuple(map(asdict, verdict.positions)),
        ),
    )


def rated_part(drawn: parts.SamplingPart | None, rated: RatedVerdict) -> parts.SamplingPart:
    """The same, with what the measured tokens say."""
    evidence = rated.evidence
    part = parts.RatedPart(
        tokens=evidence.tokens,
        unrated=len(rated.unrated),
        log_e_value=evidence.log_e,
        strongest=evidence.strongest() if evidence.tokens else "",
        detects_total_variation=Figure(rated.detects, UNSEEN),
        statement=rated.statement(),
    )
    return replace(drawn or parts.SamplingPart(), rated=part)
