"""The story of one test: decode a scenario, judge every token, measure from the same generations, and keep the record.

A gate is green when the verdict passes, something was really drafted, and the scenario's own limits hold. A red gate
leaves no speed behind: its record carries the verdict, and its timings are withheld from pytest-benchmark's results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import NO_SPECULATION, EngineSpec
from pytest_specdec.errors import EngineError, SpecdecError, Unsupported
from pytest_specdec.hardware import hardware
from pytest_specdec.judgement import Judgement, judged
from pytest_specdec.measure.acceptance import acceptance_part
from pytest_specdec.measure.base import Base, base_of, base_part, warnings_of
from pytest_specdec.measure.energy import meter_for
from pytest_specdec.measure.goodput import failed_part, goodput_part, too_little_goodput
from pytest_specdec.measure.interval import Plan
from pytest_specdec.measure.latency import latency_part, median_chunk_gap_s
from pytest_specdec.measure.load import load_part
from pytest_specdec.measure.memory import peak_memory_of, told_memory
from pytest_specdec.measure.monitor import watched
from pytest_specdec.measure.roofline import roofline_part, step_of
from pytest_specdec.measure.rounds import Rounds, Timed, benchmarked
from pytest_specdec.measure.speedup import Arm, advice, speedup_part
from pytest_specdec.repro import handed_over
from pytest_specdec.results import record
from pytest_specdec.results.per_round import per_round_part
from pytest_specdec.session import Session
from pytest_specdec.sweep import swept
from pytest_specdec.workloads.workload import Workload

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
            return self._gated(spec, scenario)
        except Unsupported:
            raise
        except EngineError as error:
            self._keep(record.engine_error(spec, scenario.name, str(error)))
            raise

    def _gated(self, spec: EngineSpec, scenario: Scenario) -> Record:
        session = self._session
        plan = session.plan(scenario)
        sweep = swept(session, spec, scenario, plan, timed=not self._benchmark.disabled)
        asked, scenario = scenario, sweep.main
        workload = session.workload(spec, scenario)
        first = session.target_rounds(spec, workload, plan) if spec.speculates else None
        measured = self._measured(spec, workload, plan)
        rounds, about = measured.rounds, measured.about
        if first is None:
            session.keep_target_rounds(spec, workload, rounds)
        judgement = judged(session, spec, workload, rounds, about)
        base = self._base(spec, workload, first, measured) if first is not None else None
        speedup = self._speedup(spec, workload, rounds, base, judgement.passes)
        kept: Record = {
            **record.what_was_asked(spec, scenario.name),
            **record.scenario_part(asked),
            **record.engine_part(about),
            **record.workload_part(workload),
            "verdict": judgement.part,
            **record.throughput_part(rounds),
            **per_round_part(rounds, judgement.passes),
            **acceptance_part(rounds, spec.gamma),
            **latency_part(rounds, workload.concurrency, judgement.passes),
            **speedup,
            **base_part(rounds, base, speedup["speedup"]),
            "roofline": _roofline(spec, workload, measured, speedup),
            **load_part(scenario, rounds, first, judgement.passes),
            **goodput_part(scenario.slo.asked, rounds, judgement.passes),
            **failed_part(rounds),
            **sweep.part,
            "energy": record.energy_part(rounds),
            **measured.memory,
            **measured.series,
            "warnings": warnings_of(rounds, base),
            "hardware": hardware(),
        }
        complaints = sweep.words + too_little_goodput(kept, scenario.min_goodput, scenario.path)
        complaints += judgement.words + failures(kept, scenario) + too_many_ties(judgement, scenario)
        complaints += handed_over(session, spec, workload, judgement.part, about)
        kept |= {"gate": "red", "complaints": complaints} if complaints else {"gate": "green"}
        if not complaints:
            complaints = self._held_against_baseline(kept)
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

    def _base(self, spec: EngineSpec, workload: Workload, first: Rounds, measured: Measured) -> Base:
        """The target's rounds that these are held against: turn by turn with them, or else before and after."""
        beside = measured.beside.so_far if measured.beside is not None else None
        sleeps = beside is None and measured.rounds.measured
        return base_of(first, beside, self._session.target_again(spec, workload) if sleeps else None)

    def _speedup(self, spec: EngineSpec, workload: Workload, rounds: Rounds, base: Base | None, passes: bool) -> Record:
        """The speed-up over the target alone, explained by the sweep of γ measured so far."""
        arm = _arm(rounds, spec, passes)
        target = _arm(base.rounds, spec.target_only(), True) if base is not None else None
        return speedup_part(arm, target, self._session.sweep(spec, workload, arm))

    def _measured(self, spec: EngineSpec, workload: Workload, plan: Plan) -> Measured:
        session = self._session
        with session.pool.using(spec) as engine:
            told = f"{spec.label} decodes {workload.name}, {plan.rounds} rounds of {len(workload.requests)} requests"
            session.announce(told)
            memory, beside = peak_memory_of(engine), session.target_beside(spec, workload)
            timed = Timed(engine, workload, session.clock, meter_for(engine))
            memory.start()
            with watched(engine, session.settings.monitor, session.series_file(spec, workload)) as series:
                rounds = benchmarked(self._benchmark, timed, plan, beside)
            kept = {**memory.stop(), **told_memory(engine.description.details)}
            return Measured(rounds, engine.description, kept, series, beside)


@dataclass(frozen=True)
class Measured:
    """The rounds, what the engine said of itself, its memory, its GPUs' series, and the target's turns beside."""

    rounds: Rounds
    about: Description
    memory: Record
    series: Record
    beside: Timed | None


def _roofline(spec: EngineSpec, workload: Workload, measured: Measured, speedup: Record) -> Record:
    """For a step of the target: the plain one, or the one that verifies γ drafts."""
    details, rounds = measured.about.details, measured.rounds
    step_s = speedup["verify_step_s"] if spec.speculates else median_chunk_gap_s(rounds.runs)
    at_once = int(details.get("concurrency", workload.concurrency))
    step = step_of(rounds, str(details.get("dtype", spec.dtype)), at_once, spec.gamma or 0)
    return roofline_part(details.get("architecture"), step, measured.about.device, step_s)


def _arm(rounds: Rounds, spec: EngineSpec, passes: bool) -> Arm:
    energy = rounds.energy
    return Arm(
        rounds, spec.gamma or 0, spec.dtype, tuple(energy.get("scope") or ()), passes, energy.get("joules_per_token")
    )


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
