"""Describe: the record of what was measured and judged. No engine is called; the same values give the same record.

A red verdict leaves no speed, nor does a round that was not timed: `withhold_speed` takes it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TypeVar

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.hardware import cores, gpus, processor
from pytest_specdec.metrics.acceptance import acceptance_part
from pytest_specdec.metrics.answers import answers_part, warn_of_answers
from pytest_specdec.metrics.base import (
    differing_settings,
    target_alone_part,
    warn_of_differences,
    warn_of_limits,
    warnings_of,
)
from pytest_specdec.metrics.load import load_part
from pytest_specdec.metrics.roofline import Step, roofline_part
from pytest_specdec.metrics.rounds import NOT_TIMED, Rounds
from pytest_specdec.metrics.speed import (
    WITHHELD,
    latency_part,
    median_chunk_gap_s,
    percentile,
    refuse_contradictions,
    throughput_part,
    with_steady_ratio,
)
from pytest_specdec.metrics.speedup import Arm, explain_in_hindsight, over_target, speedup_part
from pytest_specdec.record import Figure, Record, missing, parts, to_json
from pytest_specdec.run.judgement import Judgement
from pytest_specdec.run.measure import Measured, Sweep
from pytest_specdec.run.session import Arms
from pytest_specdec.verdict.coverage import coverage_part, exercised_part, kind_of, reads_whole_codes, would_have_seen
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.workloads.scenario import Scenario
from pytest_specdec.workloads.workload import Workload

Part = TypeVar("Part")


def describe(
    measured: Measured, judgement: Judgement, scenario: Scenario, sweep: Sweep, passed: Sequence[Record]
) -> Record:
    """The record, not yet concluded. `sweep`: of rates; `passed`: before it, at other γ too. Raises Contradiction."""
    if judgement.passes:
        refuse_contradictions(measured.rounds, measured.arms.workload.concurrency)
    record = explain_in_hindsight([*passed, _whole(measured, judgement, scenario, sweep)])[-1]
    record = replace(record, roofline=_roofline(measured, record.speedup))
    if not judgement.passes:
        return withhold_speed(record)
    if measured.rounds.measured:
        return record
    target = missing(parts.TargetAlonePart, NOT_TIMED) if record.asked.speculates else record.target_alone
    return replace(withhold_speed(record, NOT_TIMED), target_alone=target)


def _whole(measured: Measured, judgement: Judgement, scenario: Scenario, sweep: Sweep) -> Record:
    """Without the roofline, for which the costs of a step must be known."""
    spec, rounds, base = measured.arms.spec, measured.rounds, measured.base
    arm = Arm(rounds, spec.gamma or 0, spec.dtype)
    target = Arm(base.rounds, 0, measured.arms.target.dtype) if base is not None else None
    settings = differing_settings(measured.about, measured.target) if base is not None else {}
    speedup = speedup_part(arm, target, base.drift if base is not None else None)
    workload, about = measured.arms.workload, measured.about
    places = None if workload.arrivals_s else workload.concurrency
    told = {"details": to_json(about.details), "differences": to_json(settings)}
    alone = target_alone_part(base)
    answers = answers_part(workload.requests, rounds.runs, Facts.of(about).eos_token_ids)
    exercised = exercised_part(workload.requests, [*rounds.judged.values()], about.details, about.context, spec.gamma)
    return Record(
        asked=asked_part(spec, scenario),
        workload=workload_part(workload),
        engine=parts.EnginePart(versions=dict(about.versions), device=about.device, **told),
        verdict=judgement.part,
        coverage=replace(coverage_part(measured.arms.known, rounds.runs[0].generations), exercised=exercised),
        throughput=replace(throughput_part(rounds, places), waited_for_cores=measured.waited),
        latency=latency_part(rounds),
        acceptance=acceptance_part(rounds, spec.most_drafted, workload.categories),
        answers=answers,
        target_alone=alone if base is None else replace(alone, waited_for_cores=measured.base_waited),
        speedup=with_steady_ratio(speedup, rounds, base.rounds, places) if base is not None else speedup,
        energy=replace(over_target(arm, target), series=measured.series),
        memory=measured.memory,
        load=replace(load_part(sweep.main, rounds, base.rounds if base is not None else None), sweep=sweep.part),
        hardware=hardware_part(),
        warnings=(
            *warnings_of(rounds, base, workload.keeps_prefix_cache),
            *warn_of_differences(settings),
            *warn_of_answers(answers, rounds.tokens),
            *(warn_of_limits(about, workload.concurrency, spec.gamma) if scenario.load.kind == "closed" else ()),
        ),
        notes=tuple(workload.notes),
        detection=_detection(measured, judgement),
    )


def _detection(measured: Measured, judgement: Judgement) -> parts.DetectionPart | None:
    """What a verdict that passes would have seen, by its shortest answer; token by token alone was it measured."""
    kind = kind_of(measured.arms.known)
    unjudged = measured.arms.spec.unjudged is not None
    if kind is None or not judgement.passes or unjudged or judgement.part.sampling is not None:
        return None
    answers = [each for run in measured.rounds.runs for each in run.generations]
    if not reads_whole_codes(measured.arms.known, answers):
        return None
    return would_have_seen(kind, min(len(each.token_ids) for each in answers))


def sketch(arms: Arms, scenario: Scenario, rounds: Rounds) -> Record:
    """What the rounds so far say, without a verdict: enough to be held against an earlier run."""
    return Record(
        asked=asked_part(arms.spec, scenario),
        workload=workload_part(arms.workload),
        throughput=throughput_part(rounds),
        latency=latency_part(rounds),
        acceptance=acceptance_part(rounds, arms.spec.most_drafted),
        load=load_part(scenario, rounds, None),
        hardware=hardware_part(),
    )


def withhold_speed(record: Record, why: str = WITHHELD) -> Record:
    """The same record without any figure of speed: a wrong answer has none, nor has one that nobody timed."""
    load, throughput = record.load, record.throughput
    rounds = replace(throughput.per_round, ttft_us=None, tpot_us=None, e2e_us=None)
    goodput = replace(missing(parts.GoodputPart, why), slo=load.goodput.slo)
    return replace(
        record,
        throughput=replace(_withhold(throughput, why, "steady_tokens_per_second", "steady_share"), per_round=rounds),
        latency=missing(parts.LatencyPart, why),
        speedup=missing(parts.SpeedupPart, why) if record.asked.speculates else record.speedup,
        roofline=_withhold(record.roofline, why, "bytes_per_second", "roof_share"),
        energy=_withhold(record.energy, why, "over_target", "over_target_interval"),
        load=replace(
            _withhold(load, why, "latency_over_target"), completed_per_second=Figure(None, why), goodput=goodput
        ),
    )


def _withhold(part: Part, why: str, *names: str) -> Part:
    """The part without these figures; one that is missing anyway keeps its reason."""
    known = [name for name in names if getattr(part, name).value is not None]
    return replace(part, **dict.fromkeys(known, Figure(None, why)))  # type: ignore[type-var]


def asked_part(spec: EngineSpec, scenario: Scenario) -> parts.AskedPart:
    """What is known before an engine is loaded; the scenario's content by a digest over it, whatever the target."""
    return parts.AskedPart(
        scenario=scenario.name,
        scenario_digest=scenario.digest,
        load=to_json(scenario.load.model_dump()),
        engine=spec.backend,
        engine_key=spec.key,
        sweep_key=replace(spec, gamma=None).key,
        target=spec.target,
        draft=spec.draft,
        method=spec.method,
        named_method=spec.named_method,
        gamma=spec.gamma,
        dtype=spec.dtype,
        parallelism=spec.parallelism,
        unjudged=spec.unjudged,
    )


def engine_error(spec: EngineSpec, scenario: Scenario, message: str) -> Record:
    """The record of a gate that an engine's fault kept from a verdict."""
    workload = parts.WorkloadPart(concurrency=scenario.max_concurrency)
    verdict = parts.VerdictPart(outcome="engine error", detail=message)
    return Record(asked=asked_part(spec, scenario), workload=workload, verdict=verdict)


def workload_part(workload: Workload) -> parts.WorkloadPart:
    """Which token ids were decoded, and how many requests at once; the ids themselves are counted."""
    lengths = sorted(len(request.prompt_ids) for request in workload.requests)
    prompts = parts.PromptTokens(
        min=lengths[0],
        mean=sum(lengths) / len(lengths),
        p50=percentile(lengths, 50),
        p90=percentile(lengths, 90),
        max=lengths[-1],
        total=sum(lengths),
    )
    return parts.WorkloadPart(
        digest=workload.digest,
        requests=len(workload.requests),
        concurrency=workload.concurrency,
        prompt_tokens=prompts,
        skipped_rows=workload.skipped_rows,
    )


def hardware_part() -> parts.HardwarePart:
    """What a record is keyed by: visible GPUs, driver, processor and cores."""
    found = gpus()
    return parts.HardwarePart(
        gpus=tuple(parts.GpuPart(**asdict(gpu)) for gpu in found.visible),
        driver=found.driver,
        processor=processor(),
        cores=cores(),
    )


def _roofline(measured: Measured, speedup: parts.SpeedupPart) -> parts.RooflinePart:
    details, spec, rounds = measured.about.details, measured.arms.spec, measured.rounds
    step_s = speedup.model.verify_step_s.value if spec.speculates else median_chunk_gap_s(rounds.runs)
    concurrency = int(details.get("concurrency", measured.arms.workload.concurrency))
    step = Step.of(rounds, str(details.get("dtype", spec.dtype)), concurrency, spec.gamma or 0)
    return roofline_part(details.get("architecture"), step, measured.about.device, step_s)
