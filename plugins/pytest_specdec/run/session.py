"""What lives as long as the pytest session: the engines, the workloads made for them, and the target-only references.

Everything is made when it is first asked for, and once. This module knows no pytest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.pool import Pool
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Generation, Score
from pytest_specdec.metrics.interval import Plan
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.metrics.speedup import Arm
from pytest_specdec.settings import Settings
from pytest_specdec.telemetry.energy import meter_for
from pytest_specdec.telemetry.timing import Clock, Timed, time_rounds
from pytest_specdec.verdict.reference import Reference, calibrate
from pytest_specdec.workloads.workload import Request, Workload

if TYPE_CHECKING:
    from pytest_specdec.history.history import RegressionGate
    from pytest_specdec.progress import Progress
    from pytest_specdec.workloads.scenario import Scenario


@dataclass(frozen=True)
class Arms:
    """One engine on one workload, beside the target alone on the same."""

    spec: EngineSpec
    workload: Workload

    @property
    def target(self) -> EngineSpec:
        """The target alone."""
        return self.spec.target_only()

    @property
    def target_key(self) -> tuple[str, str]:
        """Which target on which workload."""
        return self.target.key, self.workload.digest

    @property
    def sweep_key(self) -> tuple[str, str]:
        """What arms have in common that differ in γ alone."""
        return replace(self.spec, gamma=None).key, self.workload.digest


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

    def target_rounds(self, arms: Arms, plan: Plan) -> Rounds:
        """The target alone on this workload, timed now if no test has done so."""
        if arms.target_key not in self._rounds:
            with self.pool.using(arms.target) as engine:
                timed = Timed(engine, arms.workload, self.clock, meter_for(engine))
                what = f"{arms.target.label} decodes {arms.workload.name} for reference"
                self._rounds[arms.target_key] = self._time_rounds(timed, plan, what)
        return self._rounds[arms.target_key]

    def time_rounds(self, arms: Arms, plan: Plan) -> Rounds:
        """The engine on this workload, timed by the session's clock; kept by nobody."""
        with self.pool.using(arms.spec) as engine:
            what = f"{arms.spec.label} decodes {arms.workload.name}, {len(arms.workload.requests)} requests"
            return self._time_rounds(Timed(engine, arms.workload, self.clock, meter_for(engine)), plan, what)

    def timed(self, arms: Arms) -> Timed:
        """The rounds of this engine, which is woken for its turn where another one runs meanwhile."""
        spec = arms.spec
        engine = self.pool.awake(spec)
        return Timed(engine, arms.workload, self.clock, meter_for(engine), lambda: self.pool.wake(spec))

    def _time_rounds(self, timed: Timed, plan: Plan, what: str) -> Rounds:
        """Time these rounds, and say so."""
        with self.progress.doing(what, lambda: timed.told):
            return time_rounds(timed, plan)

    def keep_target_rounds(self, arms: Arms, rounds: Rounds) -> None:
        """Take what a test of the target alone has measured for the reference of others."""
        self._rounds[arms.target_key] = rounds

    def reference(self, arms: Arms) -> Reference:
        """The calibration of the target's rounds on this workload, taken once, when they have been decoded."""
        key, workload = arms.target_key, arms.workload
        if key not in self._references:
            with self.pool.using(arms.target) as engine:
                together = self._rounds[key].runs[0]
                with self.progress.doing(f"{arms.target.label} calibrates on {workload.name}"):
                    self._references[key] = calibrate(engine, workload, together, self.settings.calibration, self.clock)
        return self._references[key]

    def series_file(self, arms: Arms) -> Path:
        """Where the samples of this engine's GPUs on this workload are kept; the name sorts by time."""
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{arms.spec.key}-{arms.workload.digest}.json"
        return Path(self.settings.series) / name

    def keep_arm(self, arms: Arms, rounds: Rounds) -> None:
        """Keep a speculative engine's rounds, whose verdict passes, for the other γ of its sweep."""
        self._sweeps.setdefault(arms.sweep_key, []).append(Arm(rounds, arms.spec.gamma or 0, arms.spec.dtype))

    def sweep(self, arms: Arms) -> list[Arm]:
        """The arms kept so far that differ from this one in γ alone."""
        return self._sweeps.get(arms.sweep_key, [])

    def alone(self, arms: Arms, request: int) -> Generation:
        """One request once more, by itself at batch 1: does what went wrong depend on its neighbours?"""
        what = f"{arms.spec.label} decodes request {request} of {arms.workload.name} alone"
        with self.pool.using(arms.spec) as engine, self.progress.during(what):
            return one_pass(engine, arms.workload.only(request)).generations[0]

    def rescore(
        self, arms: Arms, requests: Sequence[Request], outputs: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[Score]]:
        """Rate outputs by the target alone; the speculative engine is parked meanwhile."""
        what = f"{arms.target.label} rescores {sum(map(len, outputs))} tokens"
        with self.pool.using(arms.target) as engine, self.progress.doing(what):
            return engine.score(requests, outputs)

    def decode(self, arms: Arms, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Sequence[str | None]:
        """The text of outputs by the target's tokenizer; None where it tells none."""
        with self.pool.using(arms.target) as engine:
            return engine.decode(requests, outputs)
