"""The story of one test: measure a scenario, judge every token, describe both in a record, and conclude.

A gate is green when the verdict passes, something was really drafted, and the scenario's own limits hold. A red gate
leaves no speed behind. One whose mark says that its tokens are not to be judged is never green.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError, SpecdecError, Unsupported
from pytest_specdec.history.compare import FEWEST
from pytest_specdec.metrics.base import ratio_over
from pytest_specdec.metrics.load import hold_goodput
from pytest_specdec.metrics.rounds import MOST_ROUNDS, Drift, Plan, Rounds, ratio_interval, rounds_to_decide
from pytest_specdec.metrics.speed import WITHHELD
from pytest_specdec.metrics.speedup import advice, best_for
from pytest_specdec.record import GREEN, RED, REGRESSED, UNJUDGED, Figure, Record
from pytest_specdec.run.describe import describe, engine_error, sketch, withhold_speed
from pytest_specdec.run.judge import judge_rounds
from pytest_specdec.run.judge_greedy import judge_target
from pytest_specdec.run.judgement import Judgement
from pytest_specdec.run.measure import measure, sweep_rates
from pytest_specdec.run.repro import write_bug_report
from pytest_specdec.run.resume import BATCH_INVARIANT, settings_digest
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.verdict.coverage import Drafting, unmet
from pytest_specdec.verdict.equivalence import Outcome
from pytest_specdec.workloads.scenario import Scenario

NOT_HELD = "not held, since tokens are not judged"
Bounds = tuple[float, float]


class GateFailed(SpecdecError):
    """The gate is red; the message says why."""


class Gate:
    """One test's gate, called with an engine and a scenario."""

    def __init__(self, session: Session, benchmark: Any, keep: Callable[[Record], None]) -> None:
        """`benchmark`: pytest-benchmark's fixture. `keep` is called with the record, whatever its verdict."""
        self._session = session
        self._benchmark = benchmark
        self._keep = keep

    def __call__(self, spec: EngineSpec, scenario: Scenario) -> Record:
        """Gate this engine on this scenario and return the record. Raises GateFailed, EngineError or Unsupported."""
        self._session.spent.begin()
        try:
            with self._session.progress.during(f"the gate of {spec.label} on {scenario.name}"):
                return self._run(spec, scenario)
        except Unsupported:
            raise
        except EngineError as error:
            self._keep(engine_error(spec, scenario, str(error)))
            raise

    def _run(self, spec: EngineSpec, scenario: Scenario) -> Record:
        session, plan = self._session, self._session.plan(scenario)
        sweep = sweep_rates(session, spec, scenario, plan, timed=not self._benchmark.disabled)
        arms = Arms(spec, session.workload(spec, sweep.main))
        asking = with_question(plan, session, arms, scenario, self._benchmark.fullname)
        trial = measure(session, self._benchmark, arms, asking)
        judgement = judge_rounds(session, arms, trial.rounds, trial.about, scenario)
        record = describe(trial, judgement, scenario, sweep, session.passed)
        asked = replace(record.asked, settings_digest=settings_digest(session.settings, scenario, spec))
        record = replace(record, asked=asked)
        _, doubts = hold_goodput(record.load.goodput, scenario.min_goodput, scenario.path)
        doubts += warn_of_not_held(spec, scenario)
        record = replace(record, warnings=(*record.warnings, *doubts, *trial.drafting.warnings, *judgement.warnings))
        record, undecided = _hold_demands(record, scenario)
        if record.passes and spec.speculates:
            session.passed.append(record)
        failures = undecided + sweep.words + failures_of(record, judgement, scenario, trial.drafting)
        failures += check_invariance(record, spec)
        of_target = (trial.first, trial.base.rounds if trial.base else None)
        failures += judge_target(session, arms, filter(None, of_target))
        failures += write_bug_report(session, arms, record.verdict, trial.about)
        return self._conclude(record, failures)

    def _conclude(self, record: Record, failures: list[str]) -> Record:
        seen = None if failures else record.detection
        good = GREEN if record.asked.unjudged is None else UNJUDGED
        record = replace(record, gate=RED if failures else good, failures=tuple(failures), detection=seen)
        record = replace(record, times=self._session.spent.part)
        if self._session.regression is not None and not failures:
            baseline = self._session.regression.part(record, self._benchmark.fullname)
            record = replace(record, baseline=baseline, gate=REGRESSED if baseline.failures else good)
        self._keep(record)
        if said := record.failures or (record.baseline.failures if record.baseline else ()):
            raise GateFailed("\n".join(said))
        return record


def _hold_demands(record: Record, scenario: Scenario) -> tuple[Record, list[str]]:
    missed = unmet(scenario.demand, record.coverage.exercised) if record.asked.speculates and record.holds else []
    if not missed:
        return record, []
    verdict = replace(record.verdict, outcome=Outcome.UNDECIDABLE.value)
    return withhold_speed(replace(record, verdict=verdict)), [f"undecidable on {scenario.path}: {'; '.join(missed)}"]


def failures_of(record: Record, judgement: Judgement, scenario: Scenario, drafting: Drafting) -> list[str]:
    """Everything that makes this gate red, in words."""
    words, _ = hold_goodput(record.load.goodput, scenario.min_goodput, scenario.path)
    words += judgement.words + drafting.failures + check_limits(record, scenario)
    most = scenario.max_tie_rate
    if most is None or judgement.tie_rate <= most:
        return words
    ties = f"{judgement.tie_rate:.1%} of the greedy answers are ties"
    return [*words, f"{ties}, more than max_tie_rate = {most:g} of {scenario.path}"]


def check_limits(record: Record, scenario: Scenario) -> list[str]:
    """The scenario's own limits that figures miss, that their intervals do not keep, or whose figures are not known."""
    if not record.asked.speculates:
        return []
    speedup, energy, acceptance, words = record.speedup, record.energy, record.acceptance, []
    limits: dict[str, tuple[Figure[float], Figure[Bounds] | None, str, str]] = {
        "min_speedup": (speedup.ratio, speedup.interval, "×", f"; {advice(speedup.model)}"),
        "min_acceptance_rate": (acceptance.rate, None, "", ""),
        "min_mean_accepted_length": (acceptance.mean_accepted_length, None, " tokens", ""),
        "max_energy_ratio": (energy.over_target, energy.over_target_interval, "", f"; {_in_joules(record)}"),
    }
    for key, (figure, known, unit, more) in limits.items():
        value, limit, (side, _, name) = figure.value, getattr(scenario, key), key.partition("_")
        asked, at_least = f"{key} = {limit or 0:g} of {scenario.path}", side == "min"
        if limit is None or (value is None and (record.throughput.seconds.value is None or figure.reason == WITHHELD)):
            continue
        if value is None:
            words.append(f"{asked} cannot be shown to be kept: {figure.reason}")
        elif value < limit if at_least else value > limit:
            words.append(f"{name} {value:.3g}{unit} is {'below' if at_least else 'above'} {asked}{more}")
        elif known and (told := _say_undecided(value, known.value, limit, at_least, record.throughput.rounds)):
            words.append(f"inconclusive: {name} {value:.3g} {told} {asked}")
    return words


def _say_undecided(value: float, known: Bounds | None, limit: float, at_least: bool, rounds: int) -> str:
    if known is None:
        return f"has no interval, and at least {FEWEST} rounds are needed to decide"
    low, high = known
    if low >= limit if at_least else high <= limit:
        return ""
    wanted = rounds_to_decide(math.log(high / low) / 2, abs(math.log(value / limit)), rounds)
    would = f"about {wanted} rounds" if wanted is not None else f"no {MOST_ROUNDS} rounds"
    return f"[{low:.3g}, {high:.3g}], {rounds} rounds; {would} would decide"


def _in_joules(record: Record) -> str:
    best = record.speedup.model.best_gamma_energy.value
    flags = (*record.energy.flags, *record.target_alone.energy_flags)
    sides = (record.energy.joules_per_token.value or 0.0, record.target_alone.joules_per_token.value or 0.0)
    told = [f"{sides[0]:.3g} J/token, {sides[1]:.3g} for target-only"]
    told += [] if best is None else [best_for("energy", best)]
    return "; ".join([*told, *(f"flagged: {flag}" for flag in dict.fromkeys(flags))])


def check_invariance(record: Record, spec: EngineSpec) -> list[str]:
    """The failures that a mode in which batches change nothing was asked for, and does not hold."""
    mode, calibration = _invariant_mode(spec), record.verdict.calibration
    if mode is None or calibration is None:
        return []
    tied = record.verdict.outcome == Outcome.TIE.value or record.verdict.counts.get(Outcome.TIE.value)
    words = [f"{mode} was asked for, and a tie is none then"] if tied else []
    if calibration.disagreements:
        told = f"{calibration.disagreements} of {calibration.compared} prompts"
        words.append(f"{mode} does not hold: {told} differ between batch 1 and the workload's concurrency")
    return words


def _invariant_mode(spec: EngineSpec) -> str | None:
    """The variable by which a mode is asked for in which batches change nothing."""
    return next((name for name in BATCH_INVARIANT if {**os.environ, **spec.environment}.get(name) == "1"), None)


def warn_of_not_held(spec: EngineSpec, scenario: Scenario) -> list[str]:
    """What is asked of the verdict, by name, where there is none: it cannot fail then."""
    if spec.unjudged is None:
        return []
    asked = [f"detects.{name}" for name, least in scenario.detects if least is not None]
    asked += ["max_tie_rate"] if scenario.max_tie_rate is not None else []
    asked += filter(None, [_invariant_mode(spec)])
    return [f"{NOT_HELD}: {', '.join(asked)}"] if asked else []


def with_question(plan: Plan, session: Session, arms: Arms, scenario: Scenario, test: str) -> Plan:
    """The plan, with at least the rounds that an answer needs, and on until they decide; as it is for exact rounds."""
    regression = session.regression
    limits = (scenario.min_speedup, scenario.max_energy_ratio) if arms.spec.speculates else (None, None)
    if plan.interval is None or (limits == (None, None) and not (regression and regression.thresholds)):
        return plan

    def decided(rounds: Rounds, beside: Rounds | None) -> bool:
        """By the intervals that the record will have: a drift of the target makes them wider."""
        if beside is not None:
            rates = ratio_interval(rounds.rates, beside.rates, Drift.of(beside.rates))
            for known, limit in zip((rates, ratio_over(rounds, beside)), limits, strict=True):
                if known is not None and limit is not None and known.low < limit < known.high:
                    return False
        return regression is None or not regression.wants_rounds(sketch(arms, scenario, rounds), test)

    return replace(plan, rounds=max(plan.rounds, FEWEST), decided=decided)
