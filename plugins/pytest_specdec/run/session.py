"""What lives as long as the pytest session: the engines, the workloads made for them, and the target-only references.

Everything is made when it is first asked for, and once. This module knows no pytest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from pytest_specdec.engines.engine import Engine, one_pass
from pytest_specdec.engines.pool import Pool
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Generation, Ranking, Run, Score
from pytest_specdec.history.history import RegressionGate
from pytest_specdec.metrics.rounds import Plan, Rounds
from pytest_specdec.progress import Progress
from pytest_specdec.record import Record
from pytest_specdec.settings import Settings
from pytest_specdec.telemetry.energy import meter_for
from pytest_specdec.telemetry.meter import Clock
from pytest_specdec.telemetry.timing import DECODE, LOAD, RATE, Spent, Timed, time_rounds
from pytest_specdec.verdict.noise import level_of_gate
from pytest_specdec.verdict.rated import MOST
from pytest_specdec.verdict.reference import Reference, Sample, calibrate, verify_itself
from pytest_specdec.workloads.scenario import Scenario
from pytest_specdec.workloads.workload import Limits, Request, Workload

RATED = 2000


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
    def known(self) -> str:
        """The model that may be known: the target, or the adapter over it, of which nothing is."""
        return self.target.adapter or self.spec.target

    @property
    def target_key(self) -> tuple[str, str]:
        """Which target on which workload."""
        return self.target.key, self.workload.digest


class Session:
    """Engines, workloads and references of one pytest session."""

    def __init__(self, settings: Settings, pool: Pool, clock: Clock, progress: Progress) -> None:
        self.settings = settings
        self.pool = pool
        self.spent = Spent(clock)
        pool.loading = partial(self.spent.on, LOAD)
        self.progress = progress
        self.regression: RegressionGate | None = None
        self.clock = clock
        self._workloads: dict[tuple[str, str], Workload] = {}
        self.alone_rounds: dict[tuple[str, str], Rounds] = {}
        self._references: dict[tuple[str, str], Reference] = {}
        self._rated_whole: set[tuple[str, str]] = set()
        self._accepted: dict[tuple[str, str], float] = {}
        self._verified: dict[tuple[tuple[str, str], int], Reference] = {}
        self._gates = 0
        self.passed: list[Record] = []

    def workload(self, spec: EngineSpec, scenario: Scenario) -> Workload:
        """The scenario as token ids of this target; encoded by the target-only engine.

        A server that runs somewhere is asked first: the target is neither loaded nor decodes for one that is not there.
        """
        if spec.server.get("url"):
            self.pool.awake(spec)
        key = (spec.target_only().key, f"{scenario.name} {scenario.digest}")
        if key not in self._workloads:
            with self.pool.using(spec.target_only()) as engine:
                about = engine.description
                by_template = partial(engine.encode_messages, **scenario.chat_template_kwargs)
                made = scenario.realise(about.vocabulary, about.context, engine.encode, by_template)
                for said in scenario.follow_ups:
                    answers = _answers(engine, made)[-scenario.prompt_count :]
                    made = scenario.add_turn(made, answers, said, Limits(about.vocabulary, about.context))
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
        """The target alone on this workload, timed now if no test has done so in as many rounds."""
        known = self.alone_rounds.get(arms.target_key)
        if known is None or (known.measured and len(known.runs) < plan.rounds):
            alone = Arms(arms.target, arms.workload)
            self.alone_rounds[arms.target_key] = self.time_rounds(alone, plan, " for reference")
        return self.alone_rounds[arms.target_key]

    def time_rounds(self, arms: Arms, plan: Plan, why: str = "") -> Rounds:
        """The engine on this workload, timed by the session's clock; kept by nobody. `why`: is told."""
        what = f"{arms.spec.label} decodes {arms.workload.name}"
        with self.pool.using(arms.spec) as engine:
            timed = self._timed(engine, arms)
            what += why or f", {len(arms.workload.requests)} requests"
            with self.progress.doing(what, lambda: timed.told), self.spent.on(DECODE):
                return time_rounds(timed, plan)

    def timed(self, arms: Arms) -> Timed:
        """The rounds of this engine, which is woken for its turn where another one runs meanwhile."""
        spec = arms.spec
        return self._timed(self.pool.awake(spec), arms, lambda: self.pool.wake(spec))

    def _timed(self, engine: Engine, arms: Arms, wake: Callable[[], bool] = lambda: False) -> Timed:
        timed = Timed(engine, arms.workload, self.clock, meter_for(engine), wake)
        timed.spent = self.spent
        return timed

    def reference(self, arms: Arms) -> Reference:
        """The calibration of the target on this workload, taken once; for speculation, with steps of its verification.

        The target's rounds are what it is taken from, or one pass where there are none.
        """
        key, workload = arms.target_key, arms.workload
        if key not in self._references:
            what = f"{arms.target.label} calibrates on {workload.name}"
            with self.spent.on(RATE), self.pool.using(arms.target) as engine, self.progress.doing(what):
                rounds = self.alone_rounds.get(key)
                together = rounds.runs[0] if rounds is not None else one_pass(engine, workload)
                sampled = self.settings.rate == "sample" and key not in self._rated_whole
                sample = Sample(self.settings.calibration, RATED if sampled else None)
                self._references[key] = calibrate(engine, workload, together, sample, self.clock)
        return self._with_verification(arms, arms.spec.gamma) if arms.spec.gamma else self._references[key]

    def rate_all(self, arms: Arms) -> bool:
        """Have the target's answers to this workload rated without exception from now on; whether any was not."""
        key = arms.target_key
        self._rated_whole.add(key)
        known = self._references.get(key)
        if known is None or all(each.rated for several in known.calibration.certified for each in several):
            return False
        del self._references[key]
        self._verified = {each: reference for each, reference in self._verified.items() if each[0] != key}
        return True

    def _with_verification(self, arms: Arms, gamma: int) -> Reference:
        key = arms.target_key, gamma
        if key not in self._verified:
            what = f"{arms.target.label} verifies its own output, γ = {gamma}"
            with self.spent.on(RATE), self.pool.using(arms.target) as engine, self.progress.doing(what):
                reference = self._references[arms.target_key]
                self._verified[key] = verify_itself(reference, engine, arms.workload, gamma)
        return self._verified[key]

    def spend_level(self) -> float:
        """The level of the next gate; pytest-xdist's workers, each with a session of its own, share one."""
        self._gates += 1
        return level_of_gate(self._gates) / int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

    def decode_once(self, arms: Arms) -> Run:
        """One untimed pass of the engine over this workload."""
        what = f"{arms.spec.label} decodes {arms.workload.name}"
        with self.spent.on(DECODE), self.pool.using(arms.spec) as engine, self.progress.doing(what):
            return one_pass(engine, arms.workload)

    def series_file(self, arms: Arms) -> Path:
        """Where the samples of this engine's GPUs on this workload are kept; the name sorts by time."""
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{arms.spec.key}-{arms.workload.digest}.json"
        return Path(self.settings.series) / name

    def acceptance_before(self, arms: Arms, rounds: Rounds) -> float | None:
        """This engine's acceptance when this was last measured of it, None if never; that of `rounds` is kept."""
        key, counted = (arms.spec.key, arms.workload.digest), rounds.speculation
        before = self._accepted.get(key)
        if counted is not None and counted.draft_tokens:
            self._accepted[key] = counted.accepted_tokens / counted.draft_tokens
        return before

    def alone(self, arms: Arms, request: int) -> Generation:
        """One request once more, by itself at batch 1: does what went wrong depend on its neighbours?"""
        what = f"{arms.spec.label} decodes request {request} of {arms.workload.name} alone"
        with self.pool.using(arms.spec) as engine, self.progress.during(what):
            return one_pass(engine, arms.workload.alone(request)).generations[0]

    def rescore(
        self, arms: Arms, requests: Sequence[Request], outputs: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[Score]]:
        """Rate outputs by the target alone; the speculative engine is parked meanwhile."""
        what = f"{arms.target.label} rescores {sum(map(len, outputs))} tokens"
        with self.spent.on(RATE), self.pool.using(arms.target) as engine, self.progress.doing(what):
            return engine.score(requests, outputs)

    def decode(self, arms: Arms, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Sequence[str | None]:
        """The text of outputs by the target's tokenizer; None where it tells none."""
        with self.pool.using(arms.target) as engine:
            return engine.decode(requests, outputs)

    def rank(
        self, arms: Arms, requests: Sequence[Request], outputs: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[Ranking]] | None:
        """The target's highest logits at each token of these outputs; None where its engine does not tell them."""
        what = f"{arms.target.label} rates {sum(map(len, outputs))} tokens"
        with self.spent.on(RATE), self.pool.using(arms.target) as engine, self.progress.doing(what):
            return engine.rank(requests, outputs, MOST)


def _answers(engine: Engine, workload: Workload) -> list[tuple[int, ...]]:
    answers = one_pass(engine, workload).generations
    for number, each in enumerate(answers):
        if each.failure:
            raise EngineError(f"no turn can follow request {number} of {workload.name}: {each.failure}")
    return [each.token_ids for each in answers]
