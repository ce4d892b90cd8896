"""What lives as long as the pytest session: the engines, the workloads made for them, and the target-only references.

Everything is made when it is first asked for, and once. This module knows no pytest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.engines.pool import Pool
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Generation, Score
from pytest_specdec.measure.energy import meter_for
from pytest_specdec.measure.interval import Plan
from pytest_specdec.measure.rounds import Clock, Rounds, Timed, clocked, one_pass
from pytest_specdec.measure.speedup import Arm
from pytest_specdec.settings import Settings
from pytest_specdec.verdict.reference import Reference, take_control
from pytest_specdec.workloads.workload import Request, Workload

if TYPE_CHECKING:
    from pytest_specdec.progress import Progress
    from pytest_specdec.results.regression import RegressionGate
    from pytest_specdec.workloads.scenario import Scenario

ROUNDS_AGAIN = 2


class Session:
    """Engines, workloads and references of one pytest session."""

    def __init__(self, settings: Settings, pool: Pool, clock: Clock, progress: Progress) -> None:
        self.settings = settings
        self.pool = pool
        self.progress = progress
        self.regression: RegressionGate | None = None
        self.clock = clock
        self._workloads: dict[tuple[str, str], Workload] = {}
        self._rounds: dict[tuple[str, str], Rounds] = {}
        self._references: dict[tuple[str, str], Reference] = {}
        self._sweeps: dict[tuple[str, str], list[Arm]] = {}

    def workload(self, spec: EngineSpec, scenario: Scenario) -> Workload:
        """The scenario as token ids of this target; encoded by the target-only engine."""
        key = (spec.target_only().key, f"{scenario.name} {scenario.digest}")
        if key not in self._workloads:
            with self.pool.using(spec.target_only()) as engine:
                about = engine.description
                made = scenario.realise(about.vocabulary, about.context, engine.encode, engine.encode_messages)
            self._workloads[key] = made
            for note in made.notes:
                self.progress.announce(f"{scenario.name}: {note}")
        return self._workloads[key]

    def plan(self, scenario: Scenario) -> Plan:
        """Rounds and warm-up: exactly the settings', or else as many as the scenario's interval asks for."""
        rounds, warmup = self.settings.rounds, self.settings.warmup
        return Plan(
            rounds or scenario.rounds,
            scenario.warmup_rounds if warmup is None else warmup,
            scenario.interval if rounds is None else None,
            self.settings.time_budget,
            warmup is None,
        )

    def target_rounds(self, spec: EngineSpec, workload: Workload, plan: Plan) -> Rounds:
        """The target alone on this workload, timed now if no test has done so."""
        target_only = spec.target_only()
        key = (target_only.key, workload.digest)
        if key not in self._rounds:
            with self.pool.using(target_only) as engine:
                timed = Timed(engine, workload, self.clock, meter_for(engine))
                what = f"{target_only.label} decodes {workload.name} for reference"
                self._rounds[key] = self._clocked(timed, plan, what)
        return self._rounds[key]

    def clocked_rounds(self, spec: EngineSpec, workload: Workload, plan: Plan) -> Rounds:
        """Any engine on this workload, timed by the session's clock; kept by nobody."""
        with self.pool.using(spec) as engine:
            what = f"{spec.label} decodes {workload.name}, {len(workload.requests)} requests"
            return self._clocked(Timed(engine, workload, self.clock, meter_for(engine)), plan, what)

    def target_beside(self, spec: EngineSpec, workload: Workload) -> Timed | None:
        """The target alone, to take turns with this engine; None where one of them must sleep while the other runs."""
        other = self.pool.beside(spec)
        return Timed(other, workload, self.clock) if other is not None else None

    def target_again(self, spec: EngineSpec, workload: Workload) -> Rounds:
        """The target alone once more, after another engine has run."""
        target_only = spec.target_only()
        with self.pool.using(target_only) as engine:
            what = f"{target_only.label} decodes {workload.name} once more"
            return self._clocked(Timed(engine, workload, self.clock), Plan(ROUNDS_AGAIN, 1), what)

    def _clocked(self, timed: Timed, plan: Plan, what: str) -> Rounds:
        """Time these rounds, and say so."""
        with self.progress.doing(what, lambda: timed.told):
            return clocked(timed, plan)

    def keep_target_rounds(self, spec: EngineSpec, workload: Workload, rounds: Rounds) -> None:
        """Take what a test of the target alone has measured for the reference of others."""
        self._rounds[spec.key, workload.digest] = rounds

    def reference(self, spec: EngineSpec, workload: Workload) -> Reference:
        """The control of the target's rounds on this workload, taken once, when they have been decoded."""
        target_only = spec.target_only()
        key = (target_only.key, workload.digest)
        if key not in self._references:
            with self.pool.using(target_only) as engine:
                rounds = self._rounds[key]
                with self.progress.doing(f"{target_only.label} takes the control of {workload.name}"):
                    self._references[key] = take_control(engine, workload, rounds, self.settings.control, self.clock)
        return self._references[key]

    def series_file(self, spec: EngineSpec, workload: Workload) -> Path:
        """Where the samples of this engine's GPUs on this workload are kept; the name sorts by time."""
        return Path(self.settings.series) / f"{datetime.now():%Y%m%d-%H%M%S}-{spec.key}-{workload.digest}.json"

    def sweep(self, spec: EngineSpec, workload: Workload, arm: Arm) -> list[Arm]:
        """The arms measured so far that differ from this one in γ alone, this one included if its verdict passes."""
        arms = self._sweeps.setdefault((replace(spec, gamma=None).key, workload.digest), [])
        if arm.passes and spec.speculates:
            arms.append(arm)
        return arms

    def alone(self, spec: EngineSpec, workload: Workload, request: int) -> Generation:
        """One request once more, by itself at batch 1: does what went wrong depend on its neighbours?"""
        what = f"{spec.label} decodes request {request} of {workload.name} alone"
        with self.pool.using(spec) as engine, self.progress.during(what):
            return one_pass(engine, workload.only(request)).generations[0]

    def rescore(
        self, spec: EngineSpec, requests: Sequence[Request], outputs: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[Score]]:
        """Rate outputs by the target alone; the speculative engine is parked meanwhile."""
        what = f"{spec.target_only().label} rescores {sum(map(len, outputs))} tokens"
        with self.pool.using(spec.target_only()) as engine, self.progress.doing(what):
            return engine.score(requests, outputs)
