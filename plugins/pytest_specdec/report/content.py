"""All that a report says, gathered from runs: verdicts, figures, environments. How it looks is decided elsewhere.

The first table has every gate with its verdict before its speed, and what a red one says. The text of a figure that is
missing is a dash; the reasons stand under the table, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_specdec.history.saved import SavedRun
from pytest_specdec.record import Record
from pytest_specdec.record.parts import FindingPart
from pytest_specdec.report.curves import curves, history, power, where_it_pays
from pytest_specdec.report.decision import Decision, decide, headline, in_words
from pytest_specdec.report.drawing import Figure, readable
from pytest_specdec.report.gates import Gate, gates_of, group_by, newest, with_predictions
from pytest_specdec.report.rates import Rows, rate_tables
from pytest_specdec.report.table import DASH
from pytest_specdec.verdict.words import place_of

SIGN = {"green": "✓", "red": "✗", "slower": "▾", "unjudged": "?"}


@dataclass(frozen=True)
class Side:
    """A window of one side's tokens: those before the difference, the one at it, those after it."""

    name: str
    before: str
    at: str
    after: str


@dataclass(frozen=True)
class Divergence:
    """What a finding says: the request, the first difference, and both sides around it, if there is one."""

    heading: str
    place: str
    sides: tuple[Side, ...]
    hints: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One gate: `cells` are (column, text); the rest is what a red gate says. Those of a `place` are one table.

    `gate`: red, green, unjudged, or slower: right output, but surely slower than the target alone.
    """

    place: str
    group: str
    label: str
    gate: str
    outcome: str
    cells: tuple[tuple[str, str], ...]
    numbers: tuple[tuple[str, float], ...]
    divergences: tuple[Divergence, ...]
    words: tuple[str, ...]
    test: str

    @property
    def sign(self) -> str:
        """A sign that does without colour."""
        return SIGN[self.gate]


def rows(gates: Sequence[Gate]) -> list[Row]:
    """One row for each gate; what no gate has is no column, and rows of the same name are told apart by their tests."""
    made = [_row(gate) for gate in gates]
    wanted = {name for row in made for name, _ in row.numbers}
    named = Counter((row.group, row.label) for row in made)
    return [
        replace(
            row,
            label=row.label if named[row.group, row.label] == 1 else f"{row.label}, {row.test.rpartition('::')[2]}",
            cells=tuple(cell for cell in row.cells if cell[0] in wanted),
        )
        for row in made
    ]


def _row(gate: Gate) -> Row:
    record, verdict, figures = gate.record, gate.record.verdict, _figures(gate)
    findings = verdict.findings if gate.red else ()
    alike = group_by(findings, lambda finding: f"{finding.request} {finding.position} {finding.detail}")
    return Row(
        place=gate.place,
        group=gate.group,
        label=gate.label,
        gate=_gate(record),
        outcome=verdict.outcome,
        cells=tuple((name, DASH if value is None else format(value, form)) for name, (value, form) in figures.items()),
        numbers=tuple((name, float(value)) for name, (value, _) in figures.items() if value is not None),
        divergences=tuple(_divergence(each[0], len(each) - 1) for each in alike.values()),
        words=_words(record) if gate.red else (),
        test=record.place.test,
    )


def _gate(record: Record) -> str:
    if record.red or record.asked.unjudged is not None:
        return "red" if record.red else "unjudged"
    return "slower" if record.speedup.standing == "slower" else "green"


def _figures(gate: Gate) -> dict[str, tuple[float | None, str]]:
    """What the table shows: column → (value, its format). A red gate has no speed, unless it misses a limit."""
    acceptance, record = gate.record.acceptance, gate.record if gate.record.shows_speed else Record()
    inter, interval = record.latency.itl_s.p50, record.speedup.interval.value or (None, None)
    return {
        "requests": (gate.concurrency if gate.swept else None, ".0f"),
        "tokens/s": (record.throughput.tokens_per_second.value, ".1f"),
        "target tokens/s": (record.target_alone.tokens_per_second.value, ".1f"),
        "speed-up": (record.speedup.ratio.value, ".2f"),
        "at least": (interval[0], ".2f"),
        "at most": (interval[1], ".2f"),
        "predicted": (record.speedup.model.predicted_with_verify_cost.value, ".2f"),
        "ITL p50 (ms)": (None if inter is None else 1000 * inter, ".2f"),
        "acceptance": (acceptance.rate.value, ".1%"),
        "tok/step": (acceptance.mean_accepted_length.value, ".2f"),
        "J/token": (record.energy.joules_per_token.value, ".3g"),
        "J/prompt token": (record.energy.prefill_joules_per_prompt_token.value, ".3g"),
        "J/output token": (record.energy.decode_joules_per_output_token.value, ".3g"),
        "over target": (record.energy.over_target.value, ".2f"),
    }


def _divergence(finding: FindingPart, more: int) -> Divergence:
    """`more`: in how many other rounds it is the same."""
    heading = f"{place_of(finding.request, finding.round, more)}: {finding.outcome}: {finding.detail}"
    if finding.position is None:
        return Divergence(heading, "", (), finding.hints)
    at = finding.position - finding.window_start
    sides = []
    for name, window in zip(finding.sides, (finding.expected, finding.seen), strict=True):
        tokens = list(map(str, window))
        there = tokens[at] if at < len(tokens) else "end"
        sides.append(Side(name, " ".join(tokens[:at]), there, " ".join(tokens[at + 1 :])))
    return Divergence(heading, f"first difference at token {finding.position}", tuple(sides), finding.hints)


def _words(record: Record) -> tuple[str, ...]:
    detail = record.verdict.detail
    said = (*record.failures, *((detail,) if detail else ()))
    return said or ("the test failed after its gate was green: its own assertions say why",)


def notes(gates: Sequence[Gate], decided: str) -> list[str]:
    """Why figures are missing and what else a reader must know, each once; not what the decisions say."""
    return sorted({note for gate in gates for note in (*_reasons(gate), *_cautions(gate, decided))})


def _reasons(gate: Gate) -> set[str]:
    """Why a figure of the table is missing; that the target alone has no speed-up needs no reason."""
    record = gate.record
    told = {"tokens/s": record.throughput.tokens_per_second, "J/token": record.energy.joules_per_token}
    if gate.gamma > 0:
        told |= {
            "speed-up": record.speedup.ratio,
            "predicted": record.speedup.model.predicted_with_verify_cost,
            "over target": record.energy.over_target,
        }
    return {f"{name}: {figure.reason}" for name, figure in told.items() if figure.reason and not gate.red}


def _cautions(gate: Gate, decided: str) -> set[str]:
    record, limits, caution = gate.record, gate.record.verdict.limits, gate.record.target_alone.caution
    flags = "; ".join(record.energy.flags)
    told = (
        ("energy flagged ", flags and f"“{flags}”"),
        ("", "" if caution in decided else caution),
        ("tie, ", record.verdict.tie_in_words),
        ("", record.unjudged_in_words),
        ("drafting: ", record.drafting_in_words),
        ("accepted by category: ", record.acceptance.categories_in_words),
        ("", limits.statement if limits is not None and not gate.red else ""),
    )
    detection = record.detection if not gate.red else None
    seen = set() if detection is None else {detection.statement}
    return seen | {f"{gate.label}: {kind}{words}" for kind, words in told if words}


Facts = tuple[tuple[str, str], ...]


def environments(gates: Sequence[Gate]) -> dict[Facts, tuple[str, ...]]:
    """The distinct environments of these gates: (name, value) pairs, and which runs had them."""
    found: dict[Facts, dict[str, None]] = {}
    for gate in gates:
        found.setdefault(_facts(gate.run, gate.record), {})[gate.run.id] = None
    return {facts: tuple(ids) for facts, ids in found.items()}


def _facts(run: SavedRun, record: Record) -> Facts:
    hardware, machine = record.hardware, run.machine
    facts = {
        "engine": record.asked.engine,
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(record.engine.versions.items())),
        "device": record.engine.device,
        "vLLM's core": record.engine.details.get("core_in_own_process") and "in a process of its own",
        "GPUs": ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in hardware.gpus),
        "driver": hardware.driver,
        "processor": hardware.processor,
        "cores": hardware.cores,
        "Python": machine.get("python_version"),
        "system": " ".join(str(machine[key]) for key in ("system", "release") if machine.get(key)),
    }
    return tuple((name, str(value)) for name, value in facts.items() if value)


@dataclass(frozen=True)
class Content:
    """`runs`: in words, oldest first. `rows`: the newest gates. `decisions`, `rates`, `environments` …: theirs."""

    runs: tuple[str, ...]
    headline: str
    decisions: tuple[Decision, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    rates: tuple[tuple[str, Rows], ...]
    figures: tuple[Figure, ...]
    environments: tuple[tuple[Facts, tuple[str, ...]], ...]

    @property
    def reds(self) -> int:
        """How many gates are red."""
        return sum(row.gate == "red" for row in self.rows)

    @property
    def rows_by_place(self) -> dict[str, list[Row]]:
        """The rows of each table."""
        return group_by(self.rows, lambda row: row.place)

    @property
    def figures_by_group(self) -> dict[str, list[Figure]]:
        """The figures of what may be compared, together."""
        return group_by(self.figures, lambda figure: figure.group)

    @property
    def summary(self) -> str:
        """The first sentence."""
        if not self.rows:
            return "No gate was recorded."
        over = f"{len(self.runs)} runs, of each configuration the newest" if len(self.runs) > 1 else "1 run"
        return f"{self.headline}; {over}"


def gather(runs: Sequence[SavedRun]) -> Content:
    """The content of a report over these runs, in any order. Raises ConfigurationError for an unreadable series."""
    ordered = sorted(runs, key=lambda run: (run.datetime, run.id))
    every = gates_of(ordered)
    shown = with_predictions(newest(every))
    over_runs = history(ordered, every)
    figures: list[Figure] = []
    for place, members in group_by((gate for gate in shown if gate.swept), lambda gate: gate.place).items():
        figures += where_it_pays(place, members)
    for group, members in group_by(shown, lambda gate: gate.group).items():
        figures += [*curves(group, members), power(group, members)]
        figures += [figure for figure in over_runs if figure.group == group]
    decisions = tuple(decide(shown))
    return Content(
        runs=tuple(map(_name_run, ordered)),
        headline=headline([gate.record for gate in shown]),
        decisions=decisions,
        rows=tuple(rows(shown)),
        notes=tuple(notes(shown, in_words(decisions))),
        rates=tuple(rate_tables([gate.record for gate in shown])),
        figures=tuple(part for figure in figures for part in readable(figure)),
        environments=tuple(environments(shown).items()),
    )


def _name_run(run: SavedRun) -> str:
    commit = str(run.commit.get("id") or "")[:12]
    when = run.datetime[:16].replace("T", " ")
    known = f", commit {commit}" if commit and commit != "unknown" else ""
    return f"{run.id}, {when}{known}" + (f", partial: {run.partial}" if run.partial else "")
