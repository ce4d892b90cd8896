"""The story of one test: measure a scenario, judge every token, describe both in a record, and conclude.

A gate is green when the verdict passes, something was really drafted, and the scenario's own limits hold. A red gate
leaves no speed behind: its record carries the verdict, and its timings are withheld from pytest-benchmark's results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError, SpecdecError, Unsupported
from pytest_specdec.metrics.goodput import doubtful_goodput, too_little_goodput
from pytest_specdec.metrics.speedup import advice, best_for
from pytest_specdec.record import GREEN, RED, REGRESSED, Record
from pytest_specdec.run.describe import describe, engine_error
from pytest_specdec.run.judge import Judgement, judge_rounds
from pytest_specdec.run.measure import measure
from pytest_specdec.run.question import undecided_limits, with_question
from pytest_specdec.run.repro import write_bug_report
from pytest_specdec.run.session import Arms, Session
from pytest_specdec.run.sweep import sweep_rates

if TYPE_CHECKING:
    from pytest_specdec.workloads.scenario import Scenario


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
        judgement = judge_rounds(session, arms, trial.rounds, trial.about, scenario.detects)
        judgement = judgement.that_detects(scenario.detects.shares, scenario.path)
        record = describe(trial, judgement, scenario, sweep, session.sweep(arms))
        doubts = doubtful_goodput(record.load.goodput, scenario.min_goodput, scenario.path)
        record = replace(record, warnings=(*record.warnings, *doubts))
        if judgement.passes and spec.speculates:
            session.keep_arm(arms, trial.rounds)
        failures = sweep.words + failures_of(record, judgement, scenario)
        failures += write_bug_report(session, arms, record.verdict, trial.about)
        return self._conclude(record, failures)

    def _conclude(self, record: Record, failures: list[str]) -> Record:
        """Green, red, or green in itself and worse than an earlier run; the record is kept in each case."""
        record = replace(record, gate=RED if failures else GREEN, failures=tuple(failures))
        record = record if failures else self._compare_with_baseline(record)
        self._keep(record)
        if said := record.failures or (record.baseline.failures if record.baseline else ()):
            raise GateFailed("\n".join(said))
        return record

    def _compare_with_baseline(self, record: Record) -> Record:
        """What has changed since an earlier run, and whether a figure is worse."""
        if self._session.regression is None:
            return record
        baseline = self._session.regression.part(record, self._benchmark.fullname)
        return replace(record, baseline=baseline, gate=REGRESSED if baseline.failures else GREEN)


def failures_of(record: Record, judgement: Judgement, scenario: Scenario) -> list[str]:
    """Everything that makes this gate red, in words."""
    words = too_little_goodput(record.load.goodput, scenario.min_goodput, scenario.path) + judgement.words
    words += check_drafting(record) + check_limits(record, scenario) + undecided_limits(record, scenario)
    return words + too_many_ties(judgement, scenario)


def check_drafting(record: Record) -> list[str]:
    """The failure that an engine which should speculate did not."""
    asked = record.asked
    if not asked.speculates or record.acceptance.drafts.value:
        return []
    return [
        f"nothing was drafted in {record.throughput.tokens} tokens: the engine decoded without speculation "
        f"(method {asked.method}, γ = {asked.gamma}); equal output proves nothing then"
    ]


def check_limits(record: Record, scenario: Scenario) -> list[str]:
    """The scenario's own limits that the figures miss; a figure that was not measured misses none."""
    if not record.acceptance.drafts.value:
        return []
    acceptance, energy, path = record.acceptance, record.energy.over_target.value, scenario.path
    length = acceptance.mean_accepted_length.value
    least = {
        "speedup": (record.speedup.ratio.value, "×", scenario.min_speedup, f"; {advice(record.speedup.model)}"),
        "acceptance_rate": (acceptance.rate.value, "", scenario.min_acceptance_rate, ""),
        "mean_accepted_length": (length, " tokens", scenario.min_mean_accepted_length, ""),
    }
    words = [
        f"{name} {value:.3g}{unit} is below min_{name} = {limit:g} of {path}{more}"
        for name, (value, unit, limit, more) in least.items()
        if limit is not None and value is not None and value < limit
    ]
    most = scenario.max_energy_ratio
    if most is not None and energy is not None and energy > most:
        words.append(f"energy_ratio {energy:.3g} is above max_energy_ratio = {most:g} of {path}; {_in_joules(record)}")
    return words


def _in_joules(record: Record) -> str:
    """Both sides of the ratio, what would be better, and what speaks against the figures."""
    best, flags = (
        record.speedup.model.best_gamma_energy.value,
        (*record.energy.flags, *record.target_alone.energy_flags),
    )
    sides = (record.energy.joules_per_token.value or 0.0, record.target_alone.joules_per_token.value or 0.0)
    told = [f"{sides[0]:.3g} J/token, {sides[1]:.3g} for target-only"]
    told += [] if best is None else [best_for("energy", best)]
    return "; ".join([*told, *(f"flagged: {flag}" for flag in dict.fromkeys(flags))])


def too_many_ties(judgement: Judgement, scenario: Scenario) -> list[str]:
    """The failure that more answers differ by ties than the scenario allows."""
    if scenario.max_tie_rate is None or judgement.tie_rate <= scenario.max_tie_rate:
        return []
    ties = f"{judgement.tie_rate:.1%} of the answers are ties"
    return [f"{ties}, more than max_tie_rate = {scenario.max_tie_rate:g} of {scenario.path}"]
