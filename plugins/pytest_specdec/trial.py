"""One trial: an engine decodes a workload in timed rounds, the target alone beside it, and figures are taken from both.

The same rounds are judged and measured. Where both engines are resident the target's rounds alternate with the
engine's own; else the target is timed before and again after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.measure.acceptance import acceptance_part
from pytest_specdec.measure.base import Base, base_of, base_part, warnings_of
from pytest_specdec.measure.energy import meter_for
from pytest_specdec.measure.goodput import failed_part
from pytest_specdec.measure.interval import Plan
from pytest_specdec.measure.latency import latency_part, median_chunk_gap_s
from pytest_specdec.measure.memory import peak_memory_of, told_memory
from pytest_specdec.measure.monitor import watched
from pytest_specdec.measure.roofline import roofline_part, step_of
from pytest_specdec.measure.rounds import Rounds, Timed, benchmarked
from pytest_specdec.measure.speedup import Arm, speedup_part
from pytest_specdec.measure.switches import switched_apart
from pytest_specdec.results import record
from pytest_specdec.results.per_round import per_round_part
from pytest_specdec.session import Session
from pytest_specdec.workloads.workload import Workload

Record = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """What was decoded, and what the engine said of itself.

    `memory`, `series`: parts of the record. `beside`: the target's turns, if it took any. `first`: the target's rounds
    when it was measured, None if these are they.
    """

    spec: EngineSpec
    workload: Workload
    rounds: Rounds
    about: Description
    memory: Record
    series: Record
    beside: Timed | None
    first: Rounds | None


def tried(session: Session, benchmark: Any, spec: EngineSpec, workload: Workload, plan: Plan) -> Trial:
    """Decode in timed rounds, after the target alone has. Raises EngineError."""
    first = session.target_rounds(spec, workload, plan) if spec.speculates else None
    with session.pool.using(spec) as engine:
        what = f"{spec.label} decodes {workload.name}"
        session.progress.announce(f"{what}, {plan.rounds} rounds of {len(workload.requests)} requests")
        memory, beside = peak_memory_of(engine), session.target_beside(spec, workload)
        timed = Timed(engine, workload, session.clock, meter_for(engine))
        memory.start()
        watching = watched(engine, session.settings.monitor, session.series_file(spec, workload))
        with watching as series, session.progress.during(what, lambda: timed.told):
            rounds = benchmarked(benchmark, timed, plan, beside)
        peaks = {**memory.stop(), **told_memory(engine.description.details)}
        trial = Trial(spec, workload, rounds, engine.description, peaks, series, beside, first)
    if first is None:
        session.keep_target_rounds(spec, workload, rounds)
    return trial


def figures(session: Session, trial: Trial, passes: bool) -> Record:
    """The parts of the record that were measured. `passes`: the verdict, without which nothing has a speed."""
    rounds, base = trial.rounds, _base(session, trial)
    speedup = _speedup(session, trial, base, passes)
    return {
        **record.engine_part(trial.about),
        **record.workload_part(trial.workload),
        **record.throughput_part(rounds),
        **per_round_part(rounds, passes),
        **acceptance_part(rounds, trial.spec.gamma),
        **latency_part(rounds, trial.workload.concurrency, passes),
        **speedup,
        **base_part(rounds, base, speedup["speedup"]),
        "roofline": _roofline(trial, speedup),
        **failed_part(rounds),
        "energy": record.energy_part(rounds),
        **trial.memory,
        **trial.series,
        "warnings": warnings_of(rounds, base) + _apart(session, trial),
    }


def _base(session: Session, trial: Trial) -> Base | None:
    """The target's rounds that these are held against: turn by turn with them, or else before and after."""
    if trial.first is None:
        return None
    beside = trial.beside.so_far if trial.beside is not None else None
    sleeps = beside is None and trial.rounds.measured
    return base_of(trial.first, beside, session.target_again(trial.spec, trial.workload) if sleeps else None)


def _apart(session: Session, trial: Trial) -> list[str]:
    """Warnings of what stands differently in the target's engine."""
    return switched_apart(trial.about, session.pool.described(trial.spec.target_only()))


def _speedup(session: Session, trial: Trial, base: Base | None, passes: bool) -> Record:
    """The speed-up over the target alone, explained by the sweep of γ measured so far."""
    arm = _arm(trial.rounds, trial.spec, passes)
    target = _arm(base.rounds, trial.spec.target_only(), True) if base is not None else None
    return speedup_part(arm, target, session.sweep(trial.spec, trial.workload, arm))


def _arm(rounds: Rounds, spec: EngineSpec, passes: bool) -> Arm:
    energy = rounds.energy
    return Arm(
        rounds, spec.gamma or 0, spec.dtype, tuple(energy.get("scope") or ()), passes, energy.get("joules_per_token")
    )


def _roofline(trial: Trial, speedup: Record) -> Record:
    """For a step of the target: the plain one, or the one that verifies γ drafts."""
    details, spec = trial.about.details, trial.spec
    step_s = speedup["verify_step_s"] if spec.speculates else median_chunk_gap_s(trial.rounds.runs)
    at_once = int(details.get("concurrency", trial.workload.concurrency))
    step = step_of(trial.rounds, str(details.get("dtype", spec.dtype)), at_once, spec.gamma or 0)
    return roofline_part(details.get("architecture"), step, trial.about.device, step_s)
