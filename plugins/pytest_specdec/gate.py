"""The story of one test: decode a scenario, judge every token, measure from the same generations, and keep the record.

A gate is green when the verdict passes, something was really drafted, and the scenario's own limits hold. A red gate
leaves no speed behind: its record carries the verdict, and its timings are withheld from pytest-benchmark's results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_specdec.engines.spec import NO_SPECULATION, EngineSpec
from pytest_specdec.errors import EngineError, SpecdecError, Unsupported
from pytest_specdec.hardware import hardware
from pytest_specdec.judgement import Judgement, judged
from pytest_specdec.measure.goodput import doubtful_goodput, goodput_part, too_little_goodput
from pytest_specdec.measure.load import load_part
from pytest_specdec.measure.speedup import advice
from pytest_specdec.repro import handed_over
from pytest_specdec.results import record
from pytest_specdec.session import Session
from pytest_specdec.sweep import swept
from pytest_specdec.trial import figures, tried

if TYPE_CHECKING:
    from pytest_specdec.workloads.scenario import Scenario

Record = dict[str, Any]


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
                return self._gated(spec, scenario)
        except Unsupported:
            raise
        except EngineError as error:
            self._keep(record.engine_error(spec, scenario.name, str(error)))
            raise

    def _gated(self, spec: EngineSpec, scenario: Scenario) -> Record:
        session, plan = self._session, self._session.plan(scenario)
        sweep = swept(session, spec, scenario, plan, timed=not self._benchmark.disabled)
        workload = session.workload(spec, sweep.main)
        trial = tried(session, self._benchmark, spec, workload, plan)
        judgement = judged(session, spec, workload, trial.rounds, trial.about)
        kept: Record = {
            **record.what_was_asked(spec, scenario.name),
            **record.scenario_part(scenario),
            "verdict": judgement.part,
            **figures(session, trial, judgement.passes),
            **load_part(sweep.main, trial.rounds, trial.first, judgement.passes),
            **goodput_part(scenario.slo.asked, trial.rounds, judgement.passes),
            **sweep.part,
            "hardware": hardware(),
        }
        kept["warnings"] = kept["warnings"] + doubtful_goodput(kept, scenario.min_goodput, scenario.path)
        complaints = sweep.words + complaints_of(kept, judgement, scenario)
        complaints += handed_over(session, spec, workload, judgement.part, trial.about)
        return self._concluded(kept, complaints)

    def _concluded(self, kept: Record, complaints: list[str]) -> Record:
        """Green, red, or green in itself and worse than an earlier run; the record is kept in each case."""
        kept |= {"gate": "red", "complaints": complaints} if complaints else {"gate": "green"}
        complaints = complaints or self._held_against_baseline(kept)
        self._keep(kept)
        if complaints:
            raise GateFailed("\n".join(complaints))
        return kept

    def _held_against_baseline(self, kept: Record) -> list[str]:
        """Complaints about figures that are worse than in an earlier run; the record tells all that changed."""
        if self._session.regression is None:
            return []
        kept["baseline"] = self._session.regression.part(kept, self._benchmark.fullname)
        complaints: list[str] = kept["baseline"]["complaints"]
        kept["gate"] = "regressed" if complaints else "green"
        return complaints


def complaints_of(kept: Record, judgement: Judgement, scenario: Scenario) -> list[str]:
    """Everything that makes this gate red, in words."""
    words = too_little_goodput(kept, scenario.min_goodput, scenario.path) + judgement.words
    return words + failures(kept, scenario) + too_many_ties(judgement, scenario)


def failures(kept: Record, scenario: Scenario) -> list[str]:
    """What is wrong besides the verdict: nothing drafted, or a limit of the scenario missed."""
    if kept["method"] == NO_SPECULATION:
        return []
    if kept["drafts"]:
        return missed_limits(kept, scenario)
    return [
        f"nothing was drafted in {kept['tokens']} tokens: the engine decoded without speculation "
        f"(method {kept['method']}, γ = {kept['gamma']}); equal output proves nothing then"
    ]


def missed_limits(kept: Record, scenario: Scenario) -> list[str]:
    """The scenario's own limits that the figures miss; a figure that was not measured misses none."""
    limits = {
        "speedup": scenario.min_speedup,
        "acceptance_rate": scenario.min_acceptance_rate,
        "mean_accepted_length": scenario.min_mean_accepted_length,
    }
    return [
        f"{figure} {kept[figure]:.3g} is below min_{figure} = {limit:g} of {scenario.path}{_advice(figure, kept)}"
        for figure, limit in limits.items()
        if limit is not None and kept[figure] is not None and kept[figure] < limit
    ]


def _advice(figure: str, kept: Record) -> str:
    return f"; {advice(kept)}" if figure == "speedup" else ""


def too_many_ties(judgement: Judgement, scenario: Scenario) -> list[str]:
    """The complaint that more answers differ by ties than the scenario allows."""
    if scenario.max_tie_rate is None or judgement.tie_rate <= scenario.max_tie_rate:
        return []
    ties = f"{judgement.tie_rate:.1%} of the answers are ties"
    return [f"{ties}, more than max_tie_rate = {scenario.max_tie_rate:g} of {scenario.path}"]
