"""The story of one test: decode a scenario, judge every token, measure from the same generations, and keep the record.

A gate is green when the verdict passes, something was really drafted, and the scenario's own limits hold. A red gate
leaves no speed behind: its record carries the verdict, and its timings are withheld from pytest-benchmark's results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import NO_SPECULATION, EngineSpec
from pytest_specdec.errors import EngineError, SpecdecError, Unsupported
from pytest_specdec.hardware import hardware
from pytest_specdec.judgement import Judgement, judged
from pytest_specdec.measure.acceptance import acceptance_part
from pytest_specdec.measure.energy import meter_for
from pytest_specdec.measure.latency import latency_part
from pytest_specdec.measure.memory import peak_memory_of, told_memory
from pytest_specdec.measure.rounds import Plan, Rounds, benchmarked
from pytest_specdec.measure.speedup import Arm, advice, speedup_part
from pytest_specdec.repro import handed_over
from pytest_specdec.results import record
from pytest_specdec.session import Session
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
        workload = session.workload(spec, scenario)
        plan = session.plan(scenario)
        base = session.target_rounds(spec, workload, plan) if spec.speculates else None
        rounds, about, memory = self._measured(spec, workload, plan)
        if base is None:
            session.keep_target_rounds(spec, workload, rounds)
        judgement = judged(session, spec, workload, rounds, about)
        kept: Record = {
            **record.what_was_asked(spec, scenario.name),
            **record.engine_part(about),
            **record.workload_part(workload),
            "verdict": judgement.part,
            **record.throughput_part(rounds),
            **acceptance_part(rounds, spec.gamma),
            **latency_part(rounds, workload.concurrency, judgement.passes),
            **self._speedup(spec, workload, rounds, base, judgement.passes),
            "energy": record.energy_part(rounds),
            **memory,
            "hardware": hardware(),
        }
        complaints = judgement.words + failures(kept, scenario) + too_many_ties(judgement, scenario)
        complaints += handed_over(session, spec, workload, judgement.part, about)
        kept |= {"gate": "red", "complaints": complaints} if complaints else {"gate": "green"}
        self._keep(kept)
        if complaints:
            raise GateFailed("\n".join(complaints))
        return kept

    def _speedup(
        self, spec: EngineSpec, workload: Workload, rounds: Rounds, base: Rounds | None, passes: bool
    ) -> Record:
        """The speed-up over the target alone, explained by the sweep of γ measured so far."""
        arm = _arm(rounds, spec, passes)
        target = _arm(base, spec.target_only(), True) if base is not None else None
        return speedup_part(arm, target, self._session.sweep(spec, workload, arm))

    def _measured(self, spec: EngineSpec, workload: Workload, plan: Plan) -> tuple[Rounds, Description, Record]:
        """The rounds, what the engine said of itself, and the peaks of its memory."""
        with self._session.pool.using(spec) as engine:
            told = f"{spec.label} decodes {workload.name}, {plan.rounds} rounds of {len(workload.requests)} requests"
            self._session.announce(told)
            memory = peak_memory_of(engine)
            memory.start()
            rounds = benchmarked(self._benchmark, engine, workload, plan, meter_for(engine))
            return rounds, engine.description, {**memory.stop(), **told_memory(engine.description.details)}


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
