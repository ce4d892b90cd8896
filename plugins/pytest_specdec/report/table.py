"""The table at the end of a session: every gate by scenario, target-only first, with its verdict before its speed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from pytest_specdec.engines.spec import model_label
from pytest_specdec.hardware import emulates_bfloat16
from pytest_specdec.history.compare import interval_in_words
from pytest_specdec.record import GREEN, REGRESSED, Figure, Record

DASH = "–"
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
EMULATED = "fp32: this processor only emulates bfloat16, so float32 is the default; --specdec-dtype decides"
Column = tuple[str, Callable[[Record], str]]
Value = Callable[[Record], float | None]


def _cell(value: Value, form: str) -> Callable[[Record], str]:
    return lambda record: DASH if (told := value(record)) is None else format(told, form)


def _speed(value: Value, form: str) -> Callable[[Record], str]:
    """A figure that a red gate does not have."""
    return _cell(lambda record: None if record.red else value(record), form)


def _median_itl_ms(record: Record) -> float | None:
    median = record.latency.itl_s.p50
    return None if median is None else 1000 * median


def _interval(record: Record) -> str:
    bounds = record.speedup.interval.value
    return DASH if bounds is None or record.red else f"{bounds[0]:.2f}–{bounds[1]:.2f}"


def _verdict(record: Record) -> str:
    outcome = record.verdict.outcome
    if record.gate == REGRESSED:
        return f"{outcome}, worse"
    return f"{outcome}, red" if record.red and record.passes else outcome


def _change(record: Record) -> str:
    """The first figure's change since the baseline run, tokens/s unless other thresholds were set."""
    changes = record.baseline.changes if record.baseline else ()
    rates = [change for change in changes if change.metric == "tokens_per_second" and change.change is not None]
    return interval_in_words(rates[0]) if rates else DASH


COLUMNS: tuple[Column, ...] = (
    ("scenario", lambda record: record.asked.scenario),
    (
        "target",
        lambda record: f"{model_label(record.asked.target)} {SHORT.get(record.asked.dtype, record.asked.dtype)}",
    ),
    ("engine", lambda record: record.asked.engine),
    ("method", lambda record: record.asked.method),
    ("γ", _cell(lambda record: record.asked.gamma, "d")),
    ("verdict", _verdict),
    ("tokens/s", _speed(lambda record: record.throughput.tokens_per_second.value, ".1f")),
    ("target tok/s", _speed(lambda record: record.target_alone.tokens_per_second.value, ".1f")),
    ("speed-up", _speed(lambda record: record.speedup.ratio.value, ".2f")),
    ("95 %", _interval),
    ("itl ms", _speed(_median_itl_ms, ".1f")),
    ("accepted", _cell(lambda record: record.acceptance.rate.value, ".1%")),
    ("length", _cell(lambda record: record.acceptance.mean_accepted_length.value, ".2f")),
    ("J/token", _cell(lambda record: record.energy.joules_per_token.value, ".3g")),
)
OVER_TARGET: Column = ("over target", _speed(lambda record: record.energy.over_target.value, ".2f"))
CHANGE: Column = ("since baseline", _change)
DROPPED_FIRST = (
    *("itl ms", "over target", "J/token", "95 %", "length", "target tok/s", "engine", "accepted", "target"),
)
LEFT_ALIGNED = ("scenario", "target", "engine", "method", "verdict")


def print_table(records: Sequence[Record], width: int, write: Callable[[str], None], colour: bool) -> None:
    """Write the table line by line; where it is too wide, columns that matter least are left out, and it is said."""
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), width=width, force_terminal=colour, color_system="standard" if colour else None)
    columns = columns_for(records, width)
    console.print(_table(records, columns))
    for line in console.file.getvalue().splitlines():  # type: ignore[attr-defined]
        write(line.rstrip())
    left_out = [title for title, _ in columns_for(records, sys.maxsize) if title not in dict(columns)]
    if left_out:
        write(f"left out for want of width: {', '.join(left_out)}")


def columns_for(records: Sequence[Record], width: int) -> list[Column]:
    """The columns that fit into `width` characters; one more for what has a baseline run, and one for energy."""
    columns = list(COLUMNS)
    if any(record.baseline for record in records):
        columns.insert([title for title, _ in columns].index("tokens/s") + 1, CHANGE)
    if any(record.energy.over_target.value is not None for record in records):
        columns.append(OVER_TARGET)
    for title in DROPPED_FIRST:
        if _width(records, columns) <= width:
            break
        columns = [column for column in columns if column[0] != title]
    return columns


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The whole table as text, titles first."""
    columns = columns_for(records, sys.maxsize)
    titles = [title for title, _ in columns]
    return [titles, *([cell(record) for _, cell in columns] for record in sorted(records, key=_order))]


def _width(records: Sequence[Record], columns: Sequence[Column]) -> int:
    return 1 + sum(1 + max(len(text) for text in (title, *map(cell, records))) for title, cell in columns)


def _table(records: Sequence[Record], columns: Sequence[Column]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for title, _ in columns:
        table.add_column(title, justify="left" if title in LEFT_ALIGNED else "right", overflow="fold")
    for record in sorted(records, key=_order):
        table.add_row(*(cell(record) for _, cell in columns), style=None if record.gate == GREEN else "red")
    return table


def _order(record: Record) -> tuple[Any, ...]:
    asked = record.asked
    where = (asked.scenario, asked.target, asked.dtype, asked.engine)
    return (*where, asked.speculates, asked.method, asked.gamma or 0)


def footnotes(records: Sequence[Record]) -> list[str]:
    """Why figures are missing, and what the columns mean, said once each."""
    notes = [MEANING]
    judged = [record for record in records if record.judged]
    reasons = {record.energy.joules_per_token.reason for record in judged}
    notes += sorted(f"J/token: {reason}" for reason in reasons if reason)
    notes += sorted({f"warning: {record.asked.scenario}: {word}" for record in records for word in record.warnings})
    notes += sorted({note for record in records if (note := _versions_note(record))})
    notes += [EMULATED] if _float32_for_want_of_bfloat16(judged) else []
    costs = [cost for record in records if (cost := _rescoring_cost(record)) is not None]
    notes += (
        [f"rescoring took {min(costs):.2f} to {max(costs):.2f} of the time of decoding what it certified"]
        if costs
        else []
    )
    notes += [note for record in sorted(records, key=_order) for note in _load_notes(record)]
    ties = [record for record in records if record.verdict.outcome == "tie"]
    notes += [_tie_note(record) for record in sorted(ties, key=_order)]
    notes += _truth_note(judged)
    notes += list(dict.fromkeys(_coverage_note(record) for record in records if record.coverage.low))
    return notes


MEANING = (
    "speed-up: tokens/s over target tok/s, those of target-only of the same engine beside these rounds, with its 95 % "
    "interval; length: mean accepted length, tokens a step, the bonus token included; itl: median time from token to "
    "token; over target: J/token over target-only's"
)


def _float32_for_want_of_bfloat16(records: Sequence[Record]) -> bool:
    return emulates_bfloat16() and any(
        record.asked.dtype == "float32" for record in records if not record.hardware.gpus
    )


def _rescoring_cost(record: Record) -> float | None:
    calibration = record.verdict.calibration
    return None if calibration is None else calibration.rescoring_over_decoding.value


def _versions_note(record: Record) -> str | None:
    """A word where the two arms are two versions of the engine."""
    ours, theirs = record.engine.versions, record.verdict.reference_versions
    if not theirs or ours == theirs:
        return None
    named = [", ".join(f"{name} {version}" for name, version in sorted(each.items())) for each in (ours, theirs)]
    return f"two versions: {record.asked.method} by {named[0] or 'one that tells none'}; target only by {named[1]}"


def _load_notes(record: Record) -> list[str]:
    """What is to be known of an open load: flags, goodput, failures, where the engine saturates."""
    who, load = f"{record.asked.scenario}, {_label(record)}", record.load
    notes = [f"load: {who}: {flag}" for flag in load.flags]
    if load.failed.count:
        told = ", ".join(f"{count} × {error}" for error, count in load.failed.by_error.items())
        notes.append(f"failed: {who}: {load.failed.count} of {load.failed.of} requests: {told}")
    good, per_second = load.goodput.share.value, load.goodput.requests_per_second.value
    if good is not None and per_second is not None:
        notes.append(f"goodput: {who}: {good:.1%}, {per_second:.3g} requests/s")
    if load.sweep.points:
        ours, theirs = load.sweep.saturation_per_second, load.sweep.target_saturation_per_second
        notes.append(f"saturation: {who}: {_saturation(ours)}; target only: {_saturation(theirs)}")
    return notes


def _saturation(rate: Figure[float]) -> str:
    return f"{rate.value:g} requests/s" if rate.value is not None else str(rate.reason)


def _label(record: Record) -> str:
    asked = record.asked
    return f"{model_label(asked.target)} {asked.dtype} {asked.engine} {asked.method}"


def _truth_note(records: Sequence[Record]) -> list[str]:
    """How much was held against what constructed pairs must emit and accept; nothing where nothing was."""
    known = [each.verdict.known_truth for each in records if each.verdict.known_truth.tokens.value is not None]
    if not known:
        return []
    tokens, wrong = (sum(getattr(each, name).value or 0 for each in known) for name in ("tokens", "wrong"))
    counted = sum(record.verdict.foretold.drafts.value is not None for record in records)
    gates = f"known truth: {len(known)} of {len(records)} gates, {tokens:,} tokens compared, {wrong:,} of them wrong"
    return [f"{gates}; accepted drafts compared with the foretold ones in {counted}"]


def _coverage_note(record: Record) -> str:
    asked = record.asked
    return f"coverage: {asked.scenario}, {model_label(asked.target)}: {record.coverage.low}"


def _tie_note(record: Record) -> str:
    return f"tie: {_label(record)}: {record.verdict.tie_in_words}"
