"""The first table of a report: every gate with its verdict before its speed, and what a red one says.

The text of a figure that is missing is a dash; the reasons stand under the table, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_specdec.results.report.gates import Gate, Record

DASH = "–"
SIGN = {"green": "✓", "red": "✗"}
REASONS = {
    "tokens_per_second_reason": "tokens/s",
    "speedup_reason": "speed-up",
    "predicted_speedup_reason": "predicted",
}


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
    suspects: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One gate: `cells` are (column, text); the rest is what a red gate says."""

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
    """One row for each gate."""
    return [_row(gate) for gate in gates]


def _row(gate: Gate) -> Row:
    record, verdict = gate.record, gate.record["verdict"]
    figures = _figures(gate)
    return Row(
        group=gate.group,
        label=gate.label,
        gate="red" if gate.red else "green",
        outcome=str(verdict["outcome"]),
        cells=tuple((name, DASH if value is None else form(value)) for name, (value, form) in figures.items()),
        numbers=tuple((name, float(value)) for name, (value, _) in figures.items() if value is not None),
        divergences=tuple(map(_divergence, verdict.get("findings") or ())) if gate.red else (),
        words=_words(record) if gate.red else (),
        test=str(record.get("test") or ""),
    )


def _figures(gate: Gate) -> dict[str, tuple[float | None, Callable[[float], str]]]:
    """What the table shows: column → (value, how it is written). A red gate has no speed."""
    record = {} if gate.red else gate.record
    always, energy = gate.record, record.get("energy") or {}
    inter = (record.get("itl_s") or {}).get("p50")
    return {
        "tokens/s": (record.get("tokens_per_second"), "{:.1f}".format),
        "speed-up": (record.get("speedup"), "{:.2f}".format),
        "predicted": (record.get("predicted_speedup"), "{:.2f}".format),
        "ITL p50 (ms)": (None if inter is None else 1000 * inter, "{:.2f}".format),
        "accepted": (always.get("acceptance_rate"), "{:.1%}".format),
        "length": (always.get("mean_accepted_length"), "{:.2f}".format),
        "J/token": (energy.get("joules_per_token"), "{:.3g}".format),
    }


def _divergence(finding: dict[str, Any]) -> Divergence:
    heading = f"request {finding['request']}, round {finding['round']}: {finding['outcome']}: {finding['detail']}"
    position = finding.get("position")
    if position is None:
        return Divergence(heading, "", (), tuple(finding.get("suspects") or ()))
    sides = (_side("target only", finding, "expected"), _side("this engine", finding, "seen"))
    return Divergence(heading, f"first difference at token {position}", sides, tuple(finding.get("suspects") or ()))


def _side(name: str, finding: dict[str, Any], key: str) -> Side:
    """Tokens of the window, which begins at token `window_start` of the output."""
    tokens, at = list(map(str, finding[key])), finding["position"] - finding["window_start"]
    there = tokens[at] if at < len(tokens) else "end"
    return Side(name, " ".join(tokens[:at]), there, " ".join(tokens[at + 1 :]))


def _words(record: Record) -> tuple[str, ...]:
    """What the failure said; an engine's own words where there was no verdict."""
    detail = record["verdict"].get("detail")
    said = [*(record.get("complaints") or ()), *([str(detail)] if detail else [])]
    return tuple(said) or ("the test failed after its gate was green: its own assertions say why",)


def notes(gates: Sequence[Gate]) -> list[str]:
    """Why figures are missing and what else a reader must know, each once."""
    found: set[str] = set()
    for gate in gates:
        found |= _reasons(gate) | _cautions(gate)
    return sorted(found)


def _reasons(gate: Gate) -> set[str]:
    """Why a figure of the table is missing; that the target alone has no speed-up needs no reason."""
    speculates = gate.gamma > 0
    told = {name: gate.record.get(key) for key, name in REASONS.items() if speculates or key.startswith("tokens")}
    told["J/token"] = (gate.record.get("energy") or {}).get("reason")
    return {f"{name}: {reason}" for name, reason in told.items() if reason and not gate.red}


def _cautions(gate: Gate) -> set[str]:
    """A tie with its gap, and the flags of an energy reading."""
    energy, verdict = gate.record.get("energy") or {}, gate.record["verdict"]
    flags = "; ".join(energy.get("flags") or ())
    told = {f"{gate.label}: energy flagged “{flags}”"} if flags else set()
    if verdict["outcome"] == "tie":
        floor = f"noise floor {verdict['noise_floor']:.4g} logits"
        told.add(f"{gate.label}: tie, largest gap {verdict['max_gap']:.4g} within the {floor}")
    return told
