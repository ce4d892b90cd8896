"""Measure: an engine decodes a workload in timed rounds, turn by turn with the target alone.

Every call of an engine that a measurement needs is made here; what is judged and described afterwards is what these
rounds gave. Where only one of the two can be awake, each is woken for its turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import ADAPTER
from pytest_specdec.errors import EngineError
from pytest_specdec.metrics.base import Base, base_of
from pytest_specdec.metrics.rounds import Plan, Rounds
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import MemoryPart
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.telemetry.monitor import peak_memory_of, watch
from pytest_specdec.telemetry.timing import DECODE, benchmark_rounds
from pytest_specdec.verdict.exercised import Drafting


@dataclass(frozen=True)
class Measured:
    """What was decoded, and what the engine said of itself.

    `base`: the target's rounds that these are held against, `first`: its rounds when it was measured; None if these are
    they. `target`: what the target's engine said of itself, None if it is not loaded. `series`: a file.
    `accepted_before`: the engine's acceptance when it was last measured.
    """

    arms: Arms
    rounds: Rounds
    about: Description
    memory: MemoryPart
    series: Figure[str]
    accepted_before: float | None
    first: Rounds | None
    base: Base | None
    target: Description | None

    @property
    def of_target(self) -> list[Rounds]:
        """The target's own rounds, when it was measured, and beside or after the engine's."""
        return [*([self.first] if self.first else []), *([self.base.rounds] if self.base else [])]

    @property
    def drafting(self) -> Drafting:
        """Whether the engine drafted throughout."""
        spec, requests, warmups = self.arms.spec, self.arms.workload.requests, self.rounds.warmup.rounds
        return Drafting(spec, self.rounds.judged, warmups, self.accepted_before, requests)


def measure(session: Session, benchmark: Any, arms: Arms, plan: Plan) -> Measured:
    """Decode in timed rounds, after the target alone has. Raises EngineError."""
    spec, workload = arms.spec, arms.workload
    first = session.target_rounds(arms, plan) if spec.speculates else None
    beside = session.timed(Arms(arms.target, workload)) if spec.speculates and not benchmark.disabled else None
    with session.pool.using(spec) as engine:
        refuse_two_models(engine.description, session.pool.describe(arms.target))
        what = f"{spec.label} decodes {workload.name}"
        session.progress.announce(f"{what}, {plan.rounds} rounds of {len(workload.requests)} requests")
        peaks, timed = peak_memory_of(engine), session.timed(arms)
        peaks.start()
        watching = watch(engine, session.settings.monitor, session.series_file(arms))
        during = session.progress.during(what, lambda: timed.told)
        with watching as series, during, session.spent.on(DECODE):
            rounds = benchmark_rounds(benchmark, timed, plan, beside)
        about, memory = engine.description, peaks.stop(engine.description.details)
    if first is None:
        session.keep_target_rounds(arms, rounds)
    before = session.acceptance_before(arms, rounds)
    base = base_of(first, beside.so_far if beside is not None else None) if first is not None else None
    return Measured(arms, rounds, about, memory, series(), before, first, base, session.pool.describe(arms.target))


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
