"""What the records of one group say as figures: speed-up, acceptance, latency, rates, energy, history.

A red gate has no speed, so it is in none of the figures of speed. Runs of the history are numbered from the oldest, 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.compare import figure_of
from pytest_specdec.history.saved import SavedRun
from pytest_specdec.metrics.speedup import Gain, break_even_concurrency
from pytest_specdec.record import Figure as Known
from pytest_specdec.record import Record
from pytest_specdec.record.parts import PointPart
from pytest_specdec.report.decision import BY
from pytest_specdec.report.drawing import Figure, Line
from pytest_specdec.report.gates import TARGET_ONLY, Gate, group_by
from pytest_specdec.report.table import milliseconds
from pytest_specdec.thresholds import METRICS as KNOWN

MOST_POINTS = 400


def power(group: str, gates: Sequence[Gate]) -> Figure:
    """Watts of each GPU over the seconds of each gate's rounds. Raises ConfigurationError for a series not in JSON."""
    lines = [line for gate in gates for line in _power_lines(gate)]
    note = "Sampled power: read energy from the energy figures, which use the counter where there is one."
    return Figure("Power over time", group, "time (s)", "power (W)", tuple(lines), x_whole=False, note=note)


def _power_lines(gate: Gate) -> Iterator[Line]:
    """Every n-th sample, so that an hour's series is no heavier than a minute's."""
    path = series_file(gate)
    gpus = _read(path) if path is not None else {}
    for uuid, columns in gpus.items():
        if columns.get("watts"):
            name, step = gate.label, max(1, len(columns["seconds"]) // MOST_POINTS)
            name = f"{name}, {uuid[:12]}" if len(gpus) > 1 else name
            yield Line(name, tuple(columns["seconds"][::step]), tuple(columns["watts"][::step]))


def series_file(gate: Gate) -> Path | None:
    """Where the gate's series lies: beside its run, or one folder above. None if none is named or none is there."""
    name = gate.record.energy.series.value
    if not name or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        return None
    folder = Path(gate.run.path).parent
    found = [place / name for place in (folder, folder.parent) if (place / name).is_file()]
    return found[0] if found else None


def _read(path: Path) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    try:
        told = json.loads(path.read_text("utf-8"))["gpus"]
        return {gpu: dict(columns) for gpu, columns in told.items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: not a power series ({error!r}); delete the file, or measure again") from None


Both = Callable[[Record], tuple[Known[float], Known[float]]]
OfPoint = Callable[[PointPart], float | None]
PERCENTILES = ("p50", "p90", "p95", "p99")
LATENCIES = {"ttft_s": "Time to first token", "itl_s": "Time from token to token", "e2e_s": "Time of a whole request"}
GAMMA = "γ (draft tokens a step)"
ASKED = "asked rate (requests/s)"
ENERGY = "J/token over the target's (×)"


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
    lines = _against_gamma(
        gates, "predicted", lambda of: (of.speedup.ratio, of.speedup.model.predicted_with_verify_cost)
    )
    note = "Dashed: what the model predicts. Dotted: as fast as the target alone."
    return Figure("Speed-up against γ", group, GAMMA, "speed-up (×)", lines, level=1.0, note=note)


def energy(group: str, gates: Sequence[Gate]) -> Figure:
    """Energy a token against γ, the target alone at γ = 0 and as a level; net is above the idle device."""
    lines = _against_gamma(
        gates, "net of idle", lambda of: (of.energy.joules_per_token, of.energy.net_joules_per_token)
    )
    joules = [gate.record.energy.joules_per_token.value for gate in gates if gate.gamma == 0]
    note = "γ = 0 and the dotted level: the target alone. Dashed: the draw of the idle device is taken off."
    level = next((value for value in reversed(joules) if value is not None), None)
    return Figure("Energy against γ", group, GAMMA, "energy (J/token)", lines, level=level, note=note)


def _against_gamma(gates: Sequence[Gate], derived: str, both: Both) -> tuple[Line, ...]:
    lines: list[Line] = []
    for family, members in group_by(sorted(gates, key=lambda gate: gate.gamma), lambda gate: gate.family).items():
        x = tuple(float(gate.gamma) for gate in members)
        measured, modelled = (
            tuple(each.value for each in y) for y in zip(*(both(gate.record) for gate in members), strict=True)
        )
        lines += [Line(family, x, measured), Line(f"{family}, {derived}", x, modelled, modelled=True, beside=family)]
    return tuple(lines)


def where_it_pays(place: str, gates: Sequence[Gate]) -> list[Figure]:
    """Speed-up, and J/token over the target's, over concurrency: a line for each γ, and where it breaks even."""
    ordered = sorted((gate for gate in gates if not gate.red), key=lambda gate: gate.concurrency)
    by_label = group_by(ordered, lambda gate: gate.label)
    return [
        _over_concurrency("Speed-up over concurrency", place, "speed-up (×)", _gains(by_label, "throughput")),
        _over_concurrency("J/token over concurrency", place, ENERGY, _gains(by_label, "energy")),
    ]


def _gains(by_label: Mapping[str, Sequence[Gate]], by: str) -> dict[str, dict[int, Gain]]:
    told = {
        label: {gate.concurrency: gain for gate in members if (gain := BY[by](gate, None)) is not None}
        for label, members in by_label.items()
    }
    return {label: gains for label, gains in told.items() if gains}


def _over_concurrency(kind: str, place: str, y_label: str, gains: Mapping[str, Mapping[int, Gain]]) -> Figure:
    lines = [
        Line(
            label,
            tuple(map(float, at)),
            tuple(1 / each.ratio if y_label == ENERGY else each.ratio for each in at.values()),
        )
        for label, at in gains.items()
    ]
    found = {label: break_even_concurrency(at) for label, at in gains.items()}
    marks = sorted(
        (round(each.concurrency.value, 1), f"{label}: {each.in_words()}")
        for label, each in found.items()
        if each.concurrency.value is not None
    )
    note = "Dotted: as the target alone. Upright: where a γ breaks even."
    shown: dict[str, Any] = {"marks": tuple(marks), "marked": "", "level": 1.0, "note": note}
    return Figure(kind, place, "requests at once", y_label, tuple(lines), x_log=True, **shown)


def acceptance(group: str, gates: Sequence[Gate]) -> Figure:
    """Share of the drafts with a token at this position in which it was accepted; the first position is 1."""
    lines = []
    for gate in gates:
        part, name = gate.record.acceptance, f"{gate.label}, red" if gate.red else gate.label
        counts, drafts = part.accepted_per_position.value or (), part.drafts.value
        shares = part.marginal.value or tuple(count / drafts for count in counts if drafts)
        lines.append(Line(name, tuple(float(at) for at in range(1, len(shares) + 1)), tuple(shares)))
    return Figure(
        "Acceptance by position", group, "position in the draft", "accepted (share of its drafts)", tuple(lines)
    )


def latency(group: str, gates: Sequence[Gate], key: str) -> Figure:
    """Percentiles of one latency, in milliseconds."""
    at = tuple(float(index) for index in range(len(PERCENTILES)))
    told = ((gate.label, getattr(gate.record.latency, key)) for gate in gates)
    lines = tuple(Line(label, at, tuple(milliseconds(each.at(name)) for name in PERCENTILES)) for label, each in told)
    return Figure(LATENCIES[key], group, "percentile", "latency (ms)", lines, x_names=PERCENTILES)


def rates(group: str, gates: Sequence[Gate]) -> list[Figure]:
    """What was delivered, and how late, at each rate that was asked for; the target alone beside the others."""
    swept = _sweeps(gates)
    figures = []
    for kind, y_label, values in OVER_RATES:
        lines = (
            Line(f"{name}{which}", tuple(point.asked for point in points), tuple(map(value, points)))
            for name, points in swept.items()
            for which, value in values.items()
        )
        figures.append(Figure(kind, group, ASKED, y_label, tuple(lines), x_whole=False))
    return figures


def _sweeps(gates: Sequence[Gate]) -> dict[str, list[PointPart]]:
    found: dict[str, tuple[PointPart, ...]] = {}
    for gate in gates:
        sweep = gate.record.load.sweep
        if sweep.target_points:
            found.setdefault(TARGET_ONLY, sweep.target_points)
        if sweep.points:
            found[gate.label] = sweep.points
    return {name: sorted(points, key=lambda point: point.asked) for name, points in found.items()}


TTFT: dict[str, OfPoint] = {
    ", p50": lambda point: milliseconds(point.ttft_p50_s),
    ", p99": lambda point: milliseconds(point.ttft_p99_s),
}
OVER_RATES: tuple[tuple[str, str, dict[str, OfPoint]], ...] = (
    ("Throughput against rate", "delivered (tokens/s)", {"": lambda point: point.tokens_per_second}),
    ("Completed against asked rate", "completed (requests/s)", {"": lambda point: point.completed}),
    ("Time to first token against rate", "latency (ms)", TTFT),
)


METRICS = {
    "tokens_per_second": ("History of throughput", "throughput (tokens/s)"),
    "speedup": ("History of speed-up", "speed-up (×)"),
    "acceptance_rate": ("History of acceptance", "accepted over drafted tokens"),
    "joules_per_token": ("History of energy", "energy (J/token)"),
}


def history(runs: Sequence[SavedRun], gates: Sequence[Gate]) -> list[Figure]:
    """One figure for each metric and group that two runs or more have. `runs`: the oldest first."""
    numbers = {run.path: float(number) for number, run in enumerate(runs, 1)}
    green = [gate for gate in gates if not gate.red]
    groups = group_by(green, lambda gate: gate.group)
    return [
        Figure(kind, group, "run (1 is the oldest)", label, _over_runs(metric, members, numbers), marks=marks)
        for group, members in groups.items()
        if len({gate.run.path for gate in members}) > 1
        for marks in [changes(members, numbers)]
        for metric, (kind, label) in METRICS.items()
    ]


def _over_runs(metric: str, gates: Sequence[Gate], numbers: Mapping[Path, float]) -> tuple[Line, ...]:
    values: dict[tuple[str, ...], dict[float, float | None]] = {}
    names: dict[tuple[str, ...], str] = {}
    for gate in sorted(gates, key=lambda gate: (gate.order, numbers[gate.run.path])):
        values.setdefault(gate.configuration, {})[numbers[gate.run.path]] = figure_of(gate.record, KNOWN[metric]).value
        names[gate.configuration] = gate.label
    lines = (Line(names[key], tuple(series), tuple(series.values())) for key, series in values.items())
    return tuple(line for line in lines if line.measured_points > 1)


def changes(gates: Sequence[Gate], numbers: Mapping[Path, float]) -> tuple[tuple[float, str], ...]:
    """(number of the run, "vllm 0.25 → 0.26") wherever versions or driver differ from the run before."""
    found: list[tuple[float, str]] = []
    before: dict[str, str] = {}
    first: dict[float, Record] = {}
    for gate in gates:
        first.setdefault(numbers[gate.run.path], gate.record)
    for number, record in sorted(first.items(), key=lambda each: each[0]):
        now = {**record.engine.versions, **({"driver": record.hardware.driver} if record.hardware.driver else {})}
        differ = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        told = [f"{name} {before.get(name, 'none')} → {now.get(name, 'none')}" for name in differ]
        found += [(number, ", ".join(told))] if told and before else []
        before = now
    return tuple(found)
