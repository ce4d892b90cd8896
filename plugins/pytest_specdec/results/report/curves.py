"""What the records of one group say as figures: speed-up, acceptance, latency, throughput against rate, energy.

A red gate has no speed, so it is in none of the figures of speed; nor is what was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pytest_specdec.results.report.figure import Figure, Line
from pytest_specdec.results.report.gates import TARGET_ONLY, Gate, Record, by_family

Value = Callable[[Record], float | None]
PERCENTILES = ("p50", "p90", "p95", "p99")
LATENCIES = {
    "ttft_s": "Time to first token",
    "itl_s": "Time from token to token",
    "e2e_s": "Time of a whole request",
}
GAMMA = "γ (draft tokens a round)"
ASKED = "asked rate (requests/s)"


def curves(group: str, gates: Sequence[Gate]) -> list[Figure]:
    """Every figure of this group, empty ones included."""
    green = [gate for gate in gates if not gate.red]
    return [
        speedup(group, green),
        acceptance(group, gates),
        *(latency(group, green, key) for key in LATENCIES),
        *rates(group, green),
        energy(group, green),
    ]


def speedup(group: str, gates: Sequence[Gate]) -> Figure:
    """Measured speed-up over the target alone against γ, beside the model's prediction."""
    lines = _against_gamma(gates, _key("speedup"), "predicted", _key("predicted_speedup"))
    note = "Dashed: what the model predicts. Dotted: as fast as the target alone."
    return Figure("Speed-up against γ", group, GAMMA, "speed-up (×)", lines, level=1.0, note=note)


def energy(group: str, gates: Sequence[Gate]) -> Figure:
    """Energy a token against γ, the target alone at γ = 0 and as a level; net is above the idle device."""
    gross = partial(_energy, "joules_per_token")
    lines = _against_gamma(gates, gross, "net of idle", partial(_energy, "net_joules_per_token"))
    alone = [value for gate in gates if gate.gamma == 0 and (value := gross(gate.record)) is not None]
    note = "γ = 0 and the dotted level: the target alone. Dashed: the draw of the idle device is taken off."
    level = alone[-1] if alone else None
    return Figure("Energy against γ", group, GAMMA, "energy (J/token)", lines, level=level, note=note)


def _against_gamma(gates: Sequence[Gate], value: Value, derived: str, derive: Value) -> tuple[Line, ...]:
    """For each method its measured line, and beside it the derived one."""
    lines: list[Line] = []
    for family, members in by_family(gates).items():
        x = tuple(float(gate.gamma) for gate in members)
        lines.append(Line(family, x, tuple(value(gate.record) for gate in members)))
        modelled = tuple(derive(gate.record) for gate in members)
        lines.append(Line(f"{family}, {derived}", x, modelled, modelled=True, beside=family))
    return tuple(lines)


def _key(name: str) -> Value:
    return lambda record: record.get(name)


def _energy(name: str, record: Record) -> float | None:
    value = (record.get("energy") or {}).get(name)
    return None if value is None else float(value)


def acceptance(group: str, gates: Sequence[Gate]) -> Figure:
    """Share of the rounds in which the draft at this position was accepted; the first position is 1."""
    lines = []
    for gate in gates:
        shares = _marginal(gate.record)
        name = f"{gate.label}, red" if gate.red else gate.label
        lines.append(Line(name, tuple(float(at) for at in range(1, len(shares) + 1)), tuple(shares)))
    return Figure("Acceptance by position", group, "position in the draft", "accepted (share of rounds)", tuple(lines))


def _marginal(record: Record) -> list[float | None]:
    told = record.get("marginal_acceptance")
    counts, drafts = record.get("accepted_per_position"), record.get("drafts")
    return list(told or ([count / drafts for count in counts] if counts and drafts else []))


def latency(group: str, gates: Sequence[Gate], key: str) -> Figure:
    """Percentiles of one latency, in milliseconds."""
    at = tuple(float(index) for index in range(len(PERCENTILES)))
    lines = [Line(gate.label, at, _milliseconds(gate.record.get(key) or {})) for gate in gates]
    return Figure(LATENCIES[key], group, "percentile", "latency (ms)", tuple(lines), x_names=PERCENTILES)


def _milliseconds(told: dict[str, Any]) -> tuple[float | None, ...]:
    values = [told.get(name) for name in PERCENTILES]
    return tuple(None if value is None else 1000 * float(value) for value in values)


def rates(group: str, gates: Sequence[Gate]) -> list[Figure]:
    """What was delivered, and how late, at each rate that was asked for; the target alone beside the others."""
    swept = _sweeps(gates)
    first = [
        _over_rate(f"{name}, {percentile}", points, partial(_milli, f"ttft_{percentile}_s"))
        for name, points in swept.items()
        for percentile in ("p50", "p99")
    ]
    tokens = [_over_rate(name, points, _key("tokens_per_second")) for name, points in swept.items()]
    served = [_over_rate(name, points, _key("completed")) for name, points in swept.items()]
    return [
        _rated("Throughput against rate", group, "delivered (tokens/s)", tokens),
        _rated("Completed against asked rate", group, "completed (requests/s)", served),
        _rated("Time to first token against rate", group, "latency (ms)", first),
    ]


def _sweeps(gates: Sequence[Gate]) -> dict[str, list[Record]]:
    """The points of each engine that was swept, by rising rate; the target's own, or those that another arm kept."""
    found: dict[str, list[Record]] = {}
    for gate in gates:
        if base := gate.record.get("target_rate_sweep"):
            found.setdefault(TARGET_ONLY, base)
        if points := gate.record.get("rate_sweep"):
            found[gate.label] = points
    return {name: sorted(points, key=lambda point: float(point["asked"])) for name, points in found.items()}


def _rated(kind: str, group: str, y_label: str, lines: Sequence[Line]) -> Figure:
    return Figure(kind, group, ASKED, y_label, tuple(lines), x_whole=False)


def _over_rate(name: str, points: Sequence[Record], value: Value) -> Line:
    return Line(name, tuple(float(point["asked"]) for point in points), tuple(map(value, points)))


def _milli(key: str, point: Record) -> float | None:
    value = point.get(key)
    return None if value is None else 1000 * float(value)
