"""A sweep of rates: both arms under the same open load from low to high, to find where each no longer keeps up.

Every rate is measured and judged. A rate is sustained if at least SUSTAINED_SHARE of the asked requests a second were
completed and, where the scenario gives objectives, enough requests met them. It is inconclusive if that fails and the
machine's own delays in sending may be why. The saturation rate is the highest one sustained, if the next one was not.
The record's other figures are then taken at this arm's highest sustained rate, or
at the lowest rate where none is: by pytest-benchmark, in rounds of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.judgement import Judgement, judged
from pytest_specdec.measure.goodput import NOT_TIMED, failed_part, goodput_part
from pytest_specdec.measure.interval import Plan
from pytest_specdec.measure.latency import WITHHELD, latency_part
from pytest_specdec.measure.load import SUSTAINED_SHARE, Flow
from pytest_specdec.measure.rounds import Rounds
from pytest_specdec.session import Session

if TYPE_CHECKING:
    from pytest_specdec.workloads.scenario import Scenario
    from pytest_specdec.workloads.workload import Workload

GOODPUT_HOLDS = 0.95
NO_RATES = "the scenario's load has no rates to sweep"
NOT_SATURATED = "not saturated at the highest rate asked"
NEVER_SUSTAINED = "not even the lowest rate asked was sustained"
Point = dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """`main`: the scenario at the rate of the record's other figures. `part`: of the record. `words`: complaints."""

    main: Scenario
    part: dict[str, Any]
    words: list[str]


@dataclass(frozen=True)
class Curve:
    """One arm over all rates: a point and a judgement for each, from low to high."""

    points: dict[float, Point]
    judgements: dict[float, Judgement]

    @property
    def sustained(self) -> list[float]:
        """The rates that were."""
        return [rate for rate, point in self.points.items() if point["sustained"]]

    @property
    def saturation(self) -> tuple[float | None, str | None]:
        """The highest rate sustained, or None and why. What lies above one that was not sustained decides nothing."""
        if not all(judgement.passes for judgement in self.judgements.values()):
            return None, WITHHELD
        highest = max(self.sustained, default=None)
        above = [point for rate, point in self.points.items() if highest is None or rate > highest]
        if not above:
            return None, NOT_SATURATED
        if above[0]["sustained"] is None:
            return None, above[0]["reason"]
        return (highest, None) if highest is not None else (None, NEVER_SUSTAINED)

    def complaints(self, who: str) -> list[str]:
        """What is wrong with the output at each rate."""
        return [
            f"{who} at {rate:g} requests/s: {words}" for rate, each in self.judgements.items() for words in each.words
        ]


def swept(session: Session, spec: EngineSpec, scenario: Scenario, plan: Plan, timed: bool) -> Sweep:
    """Sweep the scenario's rates, the target alone first. Without rates, or untimed, there is nothing to do.

    Raises EngineError.
    """
    steps = scenario.by_rate()
    if not steps:
        return Sweep(scenario, _nothing(NO_RATES), [])
    if not timed:
        return Sweep(steps[min(steps)], _nothing(NOT_TIMED), [])
    workloads = {rate: session.workload(spec, step) for rate, step in steps.items()}
    target = {rate: session.target_rounds(spec, workload, plan) for rate, workload in workloads.items()}
    ours = (
        {rate: session.clocked_rounds(spec, each, plan) for rate, each in workloads.items()} if spec.speculates else {}
    )
    base = _curve(session, spec.target_only(), scenario, workloads, target)
    curve = _curve(session, spec, scenario, workloads, ours) if ours else base
    words = curve.complaints(spec.label) + (base.complaints("target only") if ours else [])
    return Sweep(steps[max(curve.sustained, default=min(steps))], _part(curve, base if ours else None), words)


def _curve(
    session: Session,
    spec: EngineSpec,
    scenario: Scenario,
    workloads: Mapping[float, Workload],
    rounds: Mapping[float, Rounds],
) -> Curve:
    with session.pool.using(spec) as engine:
        about = engine.description
    judgements = {rate: judged(session, spec, workloads[rate], each, about) for rate, each in rounds.items()}
    points = {
        rate: _point(rate, scenario, each, workloads[rate].concurrency, judgements[rate])
        for rate, each in rounds.items()
    }
    return Curve(points, judgements)


def _point(rate: float, scenario: Scenario, rounds: Rounds, concurrency: int, judgement: Judgement) -> Point:
    """One arm at one rate; what speaks of speed is null where the verdict does not pass."""
    flow, passes = Flow.of(rounds), judgement.passes
    latency = latency_part(rounds, concurrency, passes)
    goodput = goodput_part(scenario.slo.asked, rounds, passes)
    sustained = _sustained(flow, goodput, scenario) if passes else False
    return {
        "asked": rate,
        "sent": flow.sent,
        "completed": flow.completed if passes else None,
        "tokens_per_second": rounds.tokens_per_second if passes else None,
        **{f"{name}_{at}_s": latency[f"{name}_s"][at] for name in ("ttft", "tpot") for at in ("p50", "p99")},
        "goodput": goodput["goodput"],
        "goodput_requests_per_second": goodput["goodput_requests_per_second"],
        "failed": failed_part(rounds)["failed_requests"]["count"],
        "verdict": judgement.part["outcome"],
        "sustained": sustained,
        "reason": WITHHELD if not passes else flow.doubt if sustained is None else None,
    }


def _sustained(flow: Flow, goodput: Mapping[str, Any], scenario: Scenario) -> bool | None:
    """Whether the engine kept up; None where only the machine's delays in sending may have kept it from that."""
    if flow.sustained and _goodput_holds(goodput["goodput"], scenario):
        return True
    return None if flow.sustained_at_best and _goodput_holds(goodput["goodput_at_best"], scenario) else False


def _goodput_holds(share: float | None, scenario: Scenario) -> bool:
    """Whether enough requests met the objectives; where none are given, nobody asks."""
    enough = GOODPUT_HOLDS if scenario.min_goodput is None else scenario.min_goodput
    return not scenario.slo.asked or (share is not None and share >= enough)


def _part(curve: Curve, base: Curve | None) -> dict[str, Any]:
    rate, reason = curve.saturation
    others = base.saturation if base is not None else (rate, reason)
    return {
        "rate_sweep": list(curve.points.values()),
        "target_rate_sweep": list((base or curve).points.values()),
        "sustained_share": SUSTAINED_SHARE,
        "saturation_rate": rate,
        "saturation_reason": reason,
        "target_saturation_rate": others[0],
        "target_saturation_reason": others[1],
    }


def _nothing(reason: str) -> dict[str, Any]:
    figures = ("rate_sweep", "target_rate_sweep", "sustained_share", "saturation_rate", "target_saturation_rate")
    return {**dict.fromkeys(figures), "saturation_reason": reason, "target_saturation_reason": reason}
