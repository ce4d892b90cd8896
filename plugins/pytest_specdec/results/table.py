"""The table at the end of a session: every gate by scenario, target-only first, with its verdict before its speed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from pytest_specdec.engines.spec import model_label
from pytest_specdec.hardware import emulates_bfloat16
from pytest_specdec.results.compare import interval_in_words

Record = dict[str, Any]
DASH = "–"
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
SPEED = ("tokens_per_second", "speedup")
EMULATED = "fp32: this processor only emulates bfloat16, so float32 is the default; --specdec-dtype decides"
PASSING = ("identical", "tie", "consistent")


def _number(key: str, form: str) -> Callable[[Record], str]:
    def shown(record: Record) -> str:
        withheld = record.get("gate") == "red" and key in SPEED
        value = None if withheld else record.get(key)
        return DASH if value is None else format(value, form)

    return shown


def _median_ms(key: str) -> Callable[[Record], str]:
    def shown(record: Record) -> str:
        median = None if record.get("gate") == "red" else (record.get(key) or {}).get("p50")
        return DASH if median is None else f"{1000 * median:.1f}"

    return shown


def _verdict(record: Record) -> str:
    outcome = str(record["verdict"]["outcome"])
    if record.get("gate") == "regressed":
        return f"{outcome}, worse"
    return outcome if record.get("gate") != "red" or outcome not in PASSING else f"{outcome}, red"


def _energy(record: Record) -> str:
    joules = record.get("energy", {}).get("joules_per_token")
    return DASH if joules is None else f"{joules:.3g}"


def _change(record: Record) -> str:
    """The first figure's change since the baseline, tokens/s unless other thresholds were set."""
    changes = (record.get("baseline") or {}).get("changes") or ()
    rates = [change for change in changes if change["metric"] == "tokens_per_second" and change["change"] is not None]
    return interval_in_words(rates[0]) if rates else DASH


Column = tuple[str, Callable[[Record], str]]
COLUMNS: tuple[tuple[str, Callable[[Record], str]], ...] = (
    ("scenario", lambda record: str(record["scenario"])),
    ("target", lambda record: f"{model_label(record['target'])} {SHORT.get(record['dtype'], record['dtype'])}"),
    ("engine", lambda record: str(record["engine"])),
    ("method", lambda record: str(record["method"])),
    ("γ", _number("gamma", "d")),
    ("verdict", _verdict),
    ("tokens/s", _number("tokens_per_second", ".1f")),
    ("speed-up", _number("speedup", ".2f")),
    ("itl ms", _median_ms("itl_s")),
    ("accepted", _number("acceptance_rate", ".1%")),
    ("length", _number("mean_accepted_length", ".2f")),
    ("J/token", _energy),
)
CHANGE: Column = ("since baseline", _change)
DROPPED_FIRST = ("itl ms", "J/token", "length", "engine", "accepted", "target")
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
    left_out = [title for title, _ in COLUMNS if title not in dict(columns)]
    if left_out:
        write(f"left out for want of width: {', '.join(left_out)}")


def columns_for(records: Sequence[Record], width: int) -> list[Column]:
    """The columns that fit into `width` characters; a change since a baseline stands beside the rate."""
    columns = list(COLUMNS)
    if any(record.get("baseline") for record in records):
        columns.insert([title for title, _ in columns].index("tokens/s") + 1, CHANGE)
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
        table.add_row(*(cell(record) for _, cell in columns), style=None if _verdict(record) in PASSING else "red")
    return table


def _order(record: Record) -> tuple[Any, ...]:
    speculates = record["method"] != "none"
    return (
        record["scenario"],
        record["target"],
        record["dtype"],
        record["engine"],
        speculates,
        record["method"],
        record["gamma"] or 0,
    )


def footnotes(records: Sequence[Record]) -> list[str]:
    """Why figures are missing, and what the columns mean, said once each."""
    notes = [
        "speed-up: tokens/s over target-only of the same engine; "
        "length: mean accepted length, tokens a round, the bonus token included; itl: median time from token to token"
    ]
    notes += sorted(
        {f"J/token: {record['energy']['reason']}" for record in records if record.get("energy", {}).get("reason")}
    )
    notes += sorted(
        {f"warning: {record['scenario']}: {word}" for record in records for word in record.get("warnings", ())}
    )
    notes += sorted({note for record in records if (note := _versions_note(record))})
    notes += [EMULATED] if _float32_for_want_of_bfloat16(records) else []
    costs = [cost for record in records if (cost := _rescoring_cost(record)) is not None]
    notes += (
        [f"rescoring took {min(costs):.2f} to {max(costs):.2f} of the time of decoding what it certified"]
        if costs
        else []
    )
    notes += [note for record in sorted(records, key=_order) for note in _load_notes(record)]
    ties = [record for record in records if record["verdict"]["outcome"] == "tie"]
    notes += [_tie_note(record) for record in sorted(ties, key=_order)]
    return notes


def _float32_for_want_of_bfloat16(records: Sequence[Record]) -> bool:
    here = [record for record in records if "hardware" in record and not record["hardware"]["gpus"]]
    return emulates_bfloat16() and any(record["dtype"] == "float32" for record in here)


def _rescoring_cost(record: Record) -> float | None:
    cost = record["verdict"].get("control", {}).get("rescoring_over_decoding")
    return None if cost is None else float(cost)


def _versions_note(record: Record) -> str | None:
    """A word where the two arms are two versions of the engine."""
    ours, theirs = record.get("versions", {}), record["verdict"].get("reference_versions", {})
    if not theirs or ours == theirs:
        return None
    named = [", ".join(f"{name} {version}" for name, version in sorted(each.items())) for each in (ours, theirs)]
    return f"two versions: {record['method']} by {named[0] or 'one that tells none'}; target only by {named[1]}"


def _load_notes(record: Record) -> list[str]:
    """What is to be known of an open load: flags, goodput, failures, where the engine saturates."""
    who = f"{record['scenario']}, {_label(record)}"
    notes = [f"load: {who}: {flag}" for flag in (record.get("load") or {}).get("flags", ())]
    failed, good = record.get("failed_requests") or {}, record.get("goodput")
    if failed.get("count"):
        told = ", ".join(f"{count} × {error}" for error, count in failed["by_error"].items())
        notes.append(f"failed: {who}: {failed['count']} of {failed['of']} requests: {told}")
    if good is not None:
        notes.append(f"goodput: {who}: {good:.1%}, {record['goodput_requests_per_second']:.3g} requests/s")
    if record.get("rate_sweep"):
        saturation = [_saturation(record, arm) for arm in ("", "target_")]
        notes.append(f"saturation: {who}: {saturation[0]}; target only: {saturation[1]}")
    return notes


def _saturation(record: Record, arm: str) -> str:
    rate = record[f"{arm}saturation_rate"]
    return f"{rate:g} requests/s" if rate is not None else str(record[f"{arm}saturation_reason"])


def _label(record: Record) -> str:
    return f"{model_label(record['target'])} {record['dtype']} {record['engine']} {record['method']}"


def _tie_note(record: Record) -> str:
    verdict = record["verdict"]
    label = _label(record)
    return (
        f"tie: {label}: largest gap {verdict['max_gap']:.4g} within the noise floor {verdict['noise_floor']:.4g} logits"
    )
