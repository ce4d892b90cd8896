"""Measure: an engine decodes a workload in timed rounds, turn by turn with the target alone, or at each of its rates.

Every call of an engine that a measurement needs is made here. A sweep puts both arms under the same open load from low
to high. A rate is sustained if at least SUSTAINED_SHARE of it was completed and, where there are objectives, enough
requests met them; inconclusive if the machine's own delays in sending may be why not, or if the load is too short for
an answer to it. The record's other figures are then taken at this arm's highest sustained rate, or at the lowest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.engines.vllm import ADAPTER
from pytest_specdec.errors import EngineError
from pytest_specdec.metrics.base import Base, base_of
from pytest_specdec.metrics.load import SUSTAINED_SHARE, Flow, failed_part, goodput_part
from pytest_specdec.metrics.rounds import NOT_TIMED, Plan, Rounds
from pytest_specdec.metrics.speed import WITHHELD, latency_part, refuse_contradictions
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import MemoryPart, PointPart, SweepPart
from pytest_specdec.run.judge import judge_rounds
from pytest_specdec.run.judgement import Judgement
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.telemetry.monitor import CoreWait, PeakMemory, subject_here, watch
from pytest_specdec.telemetry.timing import DECODE, time_rounds
from pytest_specdec.verdict.coverage import Drafting
from pytest_specdec.verdict.sampling import any_sampled
from pytest_specdec.workloads.scenario import Scenario

NOT_BESIDE = "the target alone had no rounds beside these"


@dataclass(frozen=True)
class Measured:
    """What was decoded, and what the engine said of itself.

    `base`: the target's rounds that these are held against, `first`: its rounds when it was measured; None if these are
    they. `target`: what the target's engine said of itself, None if it is not loaded. `series`: a file. `waited`: for
    which share of the time that its threads wanted a core; `base_waited`: the target's, in rounds beside these.
    `accepted_before`: the engine's acceptance when it was last measured.
    """

    arms: Arms
    rounds: Rounds
    about: Description
    memory: MemoryPart
    waited: Figure[float]
    base_waited: Figure[float]
    series: Figure[str]
    accepted_before: float | None
    first: Rounds | None
    base: Base | None
    target: Description | None

    @property
    def drafting(self) -> Drafting:
        """Whether the engine drafted throughout."""
        asked, runs = self.arms.workload, self.rounds.judged
        at_once = None if asked.arrivals_s else min(asked.concurrency, len(asked.requests))
        return Drafting(self.arms.spec, runs, at_once, self.accepted_before, asked.requests)


def measure(session: Session, benchmark: Any, arms: Arms, plan: Plan) -> Measured:
    """Decode in timed rounds, after the target alone has. Raises EngineError."""
    spec, workload = arms.spec, arms.workload
    # Greedy answers are alike in each round, and the target's speed is that of its rounds beside these.
    enough = plan if any_sampled(workload.requests) else plan.for_reference
    first = session.target_rounds(arms, enough) if spec.speculates else None
    beside = session.timed(Arms(arms.target, workload)) if spec.speculates and not benchmark.disabled else None
    with session.pool.using(spec) as engine:
        refuse_two_models(engine.description, session.pool.describe(arms.target))
        what = f"{spec.label} decodes {workload.name}"
        session.progress.announce(f"{what}, {plan.rounds} rounds of {len(workload.requests)} requests")
        here, timed = subject_here(engine), session.timed(arms)
        peaks, waits = PeakMemory(here), CoreWait(here.group)
        base_waits = CoreWait(subject_here(beside.engine).group) if beside is not None else None
        peaks.start()
        watching = watch(engine, session.settings.monitor, session.series_file(arms))
        during = session.progress.during(what, lambda: timed.told)
        with watching as series, during, session.spent.on(DECODE):
            rounds = time_rounds(timed, plan, beside, benchmark)
        about, memory, waited = engine.description, peaks.stop(engine.description.details), waits.share()
        base_waited = base_waits.share() if base_waits is not None else Figure[float](None, NOT_BESIDE)
    if first is None:
        session.alone_rounds[arms.target_key] = rounds  # for the reference of others
    before = session.acceptance_before(arms, rounds)
    base = base_of(first, beside.so_far if beside is not None else None) if first is not None else None
    target = session.pool.describe(arms.target)
    return Measured(arms, rounds, about, memory, waited, base_waited, series(), before, first, base, target)


def refuse_two_models(about: Description, target: Description | None) -> None:
    """Raise EngineError where one arm alone has an adapter; two names may be those of one and the same."""
    told = [each.configuration[ADAPTER] for each in (about, target) if each and ADAPTER in each.configuration]
    if [bool(each) for each in told] in ([True, False], [False, True]):
        who = ("this engine", "the target alone")
        has, lacks = who if told[0] else who[::-1]
        raise EngineError(
            f"{has} has the adapter {told[0] or told[1]} and {lacks} has none, so these are two models: "
            "name it for both, in options and in the options of the reference"
        )


GOODPUT_HOLDS = 0.95
NO_RATES = "the scenario's load has no rates to sweep"
NOT_SATURATED = "not saturated at the highest rate asked"
NEVER_SUSTAINED = "not even the lowest rate asked was sustained"


@dataclass(frozen=True)
class Sweep:
    """`main`: the scenario at the rate of the record's other figures. `part`: of the record. `words`: failures."""

    main: Scenario
    part: SweepPart
    words: list[str]


@dataclass(frozen=True)
class Curve:
    """One arm over all rates: a point and a judgement for each, from low to high."""

    points: dict[float, PointPart]
    judgements: dict[float, Judgement]

    @property
    def sustained(self) -> list[float]:
        """The rates that were."""
        return [rate for rate, point in self.points.items() if point.sustained]

    @property
    def saturation(self) -> Figure[float]:
        """The highest rate sustained, or why there is none. What lies above one that was not decides nothing."""
        if not all(judgement.passes for judgement in self.judgements.values()):
            return Figure(None, WITHHELD)
        highest = max(self.sustained, default=None)
        above = [point for rate, point in self.points.items() if highest is None or rate > highest]
        if not above:
            return Figure(None, NOT_SATURATED)
        if above[0].sustained is None:
            return Figure(None, above[0].reason)
        return Figure(highest, NEVER_SUSTAINED)

    def failures(self, who: str) -> list[str]:
        """What is wrong with the output at each rate."""
        told = [(rate, words) for rate, each in self.judgements.items() for words in each.words]
        return [f"{who} at {rate:g} requests/s: {words}" for rate, words in told]


def sweep_rates(session: Session, spec: EngineSpec, scenario: Scenario, plan: Plan, timed: bool) -> Sweep:
    """Sweep the scenario's rates, the target alone first. Without rates, or untimed, there is nothing to do.

    Raises EngineError.
    """
    steps = scenario.by_rate()
    if not steps:
        return Sweep(scenario, missing(SweepPart, NO_RATES), [])
    if not timed:
        return Sweep(steps[min(steps)], missing(SweepPart, NOT_TIMED), [])
    ours = {rate: Arms(spec, session.workload(spec, step)) for rate, step in steps.items()}
    base = _curve(session, scenario, {rate: Arms(arms.target, arms.workload) for rate, arms in ours.items()}, plan)
    curve = _curve(session, scenario, ours, plan) if spec.speculates else base
    words = curve.failures(spec.label) + (base.failures("target only") if spec.speculates else [])
    part = SweepPart(
        points=tuple(curve.points.values()),
        target_points=tuple(base.points.values()),
        sustained_share=SUSTAINED_SHARE,
        saturation_per_second=curve.saturation,
        target_saturation_per_second=base.saturation,
    )
    return Sweep(steps[max(curve.sustained, default=min(steps))], part, words)


def _curve(session: Session, scenario: Scenario, arms: Mapping[float, Arms], plan: Plan) -> Curve:
    rounds, judgements = {}, {}
    for rate, each in arms.items():
        rounds[rate] = session.time_rounds(each, plan) if each.spec.speculates else session.target_rounds(each, plan)
    for rate, each in arms.items():
        with session.pool.using(each.spec) as engine:
            about = engine.description
        judgements[rate] = judge_rounds(session, each, rounds[rate], about, scenario)
    points: dict[float, PointPart] = {}
    kept_up = None
    for rate, timed in rounds.items():
        if judgements[rate].passes:
            refuse_contradictions(timed, arms[rate].workload.concurrency)
        points[rate] = _point(rate, scenario, timed, judgements[rate], kept_up)
        kept_up = Flow.of(timed) if points[rate].sustained else kept_up
    return Curve(points, judgements)


def _point(rate: float, scenario: Scenario, rounds: Rounds, judgement: Judgement, kept_up: Flow | None) -> PointPart:
    """One arm at one rate; what speaks of speed is null where the verdict does not pass.

    `kept_up`: the flow at the last rate that was sustained.
    """
    flow = Flow.of(rounds)
    told = PointPart(
        asked=rate,
        sent=flow.sent,
        failed=failed_part(rounds).count,
        verdict=judgement.part.outcome,
        reason=WITHHELD,
    )
    if not judgement.passes:
        return told
    latency, goodput = latency_part(rounds), goodput_part(scenario.slo.asked, rounds)
    met = _goodput_holds(goodput.share.value, scenario)
    sustained, doubt = flow.sustained and met, None
    if not sustained and flow.sustained_at_best and _goodput_holds(goodput.at_best.value, scenario):
        doubt = flow.doubt  # only the machine's delays in sending may have kept the engine from it
    elif not flow.sustained and met:
        doubt = (flow.too_short_beside(kept_up) if kept_up is not None else None) or flow.too_short_alone
    return replace(
        told,
        completed=flow.completed,
        tokens_per_second=rounds.tokens_per_second,
        ttft_p50_s=latency.ttft_s.p50,
        ttft_p99_s=latency.ttft_s.p99,
        tpot_p50_s=latency.tpot_s.p50,
        tpot_p99_s=latency.tpot_s.p99,
        goodput=goodput.share.value,
        goodput_requests_per_second=goodput.requests_per_second.value,
        sustained=None if doubt else sustained,
        reason=doubt,
    )


def _goodput_holds(share: float | None, scenario: Scenario) -> bool:
    enough = GOODPUT_HOLDS if scenario.min_goodput is None else scenario.min_goodput
    return not scenario.slo.asked or (share is not None and share >= enough)
