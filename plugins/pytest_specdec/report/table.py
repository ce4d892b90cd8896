"""The table at the end of a session: every gate by scenario, target-only first, with its verdict before its speed.

Its width is that of the terminal or of COLUMNS, and PLAIN_WIDTH where there is neither. What no gate has is no column;
where width is wanting, columns that matter least are left out, but none without which two rows would be the same.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pytest_specdec.engines.spec import model_label
from pytest_specdec.history.compare import Outcome, interval_in_words
from pytest_specdec.metrics.rounds import bounds_in_words
from pytest_specdec.record import REGRESSED, Figure, Record

DASH = "–"
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
PLAIN_WIDTH = 100
Cell = Callable[[Record], str]
Column = tuple[str, Cell]
Value = Callable[[Record], float | None]


def screen_width() -> int:
    """COLUMNS, else the terminal's, else PLAIN_WIDTH."""
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns


def _cell(value: Value, form: str) -> Cell:
    return lambda record: DASH if (told := value(record)) is None else format(told, form)


def _speed(cell: Cell) -> Cell:
    return lambda record: cell(record) if record.shows_speed else DASH


def milliseconds(seconds: float | None) -> float | None:
    """Of seconds, as far as they are known."""
    return None if seconds is None else 1000 * seconds


def _ratio(ratio: Figure[float], interval: Figure[tuple[float, float]], unit: str = "") -> str:
    """E.g. "2.43 [2.39, 2.47]"."""
    bounds = "" if interval.value is None else f" {bounds_in_words(interval.value)}"
    return DASH if ratio.value is None else f"{ratio.value:.2f}{unit}{bounds}"


def _joules(record: Record) -> str:
    """E.g. "1.23 (0.43× [0.40, 0.46])"."""
    energy = record.energy
    ratio = _ratio(energy.over_target, energy.over_target_interval, "×")
    joules = energy.joules_per_token.value
    return DASH if joules is None else f"{joules:.3g}" + ("" if ratio == DASH else f" ({ratio})")


def _verdict(record: Record) -> str:
    outcome = record.verdict.outcome
    if record.gate == REGRESSED:
        failed_by = record.baseline.failed_by if record.baseline else None
        return f"{outcome}, {failed_by or Outcome.WORSE}"
    return f"{outcome}, red" if record.red and record.holds else outcome


def _change(record: Record) -> str:
    changes = record.baseline.changes if record.baseline else ()
    rates = [change for change in changes if change.metric == "tokens_per_second" and change.change is not None]
    return interval_in_words(rates[0]) if rates else DASH


def target_name(record: Record) -> str:
    """The target and its dtype in short, e.g. "qwen3-8b bf16"."""
    return f"{model_label(record.asked.target)} {SHORT.get(record.asked.dtype, record.asked.dtype)}"


def _gpus(record: Record) -> str:
    """E.g. "tensor 2" of tensor_parallel_size."""
    counts = sorted(record.asked.parallelism.items())
    return ", ".join(f"{name.partition('_')[0]} {number}" for name, number in counts) or DASH


COLUMNS: tuple[Column, ...] = (
    ("scenario", lambda record: record.asked.scenario),
    ("target", target_name),
    ("device", lambda record: record.engine.device or DASH),
    ("GPUs", _gpus),
    ("engine", lambda record: record.asked.engine),
    ("method", lambda record: record.asked.method),
    ("draft", lambda record: model_label(record.asked.draft) if record.asked.draft else DASH),
    ("γ", _cell(lambda record: record.asked.gamma, "d")),
    ("requests", _cell(lambda record: record.workload.concurrency, "d")),
    ("test", lambda record: record.place.test.rpartition("::")[2].partition("[")[0]),
    ("id", lambda record: record.place.test),
    ("verdict", _verdict),
    ("tokens/s", _speed(_cell(lambda record: record.throughput.tokens_per_second.value, ".1f"))),
    ("since baseline", _change),
    ("target tok/s", _speed(_cell(lambda record: record.target_alone.tokens_per_second.value, ".1f"))),
    ("speed-up", _speed(lambda record: _ratio(record.speedup.ratio, record.speedup.interval))),
    ("steady", _speed(lambda record: _ratio(record.speedup.steady_ratio, record.speedup.steady_interval))),
    ("J/token", _speed(_joules)),
    ("acceptance", _cell(lambda record: record.acceptance.rate.value, ".1%")),
    ("tok/step", _cell(lambda record: record.acceptance.mean_accepted_length.value, ".2f")),
    ("p95 ITL ms", _speed(_cell(lambda record: milliseconds(record.latency.itl_s.p95), ".1f"))),
    ("p95 TTFT ms", _speed(_cell(lambda record: milliseconds(record.latency.ttft_s.p95), ".1f"))),
)
IDENTITY = ("scenario", "target", "engine", "method", "γ")
WHERE_THEY_DIFFER: dict[str, tuple[str, ...]] = {
    "device": (),
    "draft": ("target", "method"),
    "GPUs": IDENTITY,
    "requests": IDENTITY,
    "test": (*IDENTITY, "device", "draft", "GPUs", "requests"),
    "id": (*IDENTITY, "device", "draft", "GPUs", "requests", "test"),
}
"""Column → those that must be equal in two rows for it to be needed to tell them apart."""
DROPPED_FIRST = (
    *("p95 TTFT ms", "steady", "p95 ITL ms", "tok/step", "acceptance", "engine", "target", "device", "draft"),
    *("J/token", "target tok/s", "since baseline", "test"),
)
FIGURES = dict(COLUMNS[-9:])
LEFT_ALIGNED = ("scenario", "target", "device", "GPUs", "engine", "method", "draft", "test", "id", "verdict")


def print_table(records: Sequence[Record], width: int, write: Callable[[str], None], colour: bool) -> list[str]:
    """Write the table line by line, and what was left out for want of width; return the titles of its columns."""
    from io import StringIO

    from rich.console import Console

    console = Console(
        file=StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        emoji=False,  # their names are a module of their own, and no title has one
    )
    columns = columns_for(records, width)
    console.print(_table(records, columns))
    for line in console.file.getvalue().splitlines():  # type: ignore[attr-defined]
        write(line.rstrip())
    left_out = [title for title, _ in columns_for(records, sys.maxsize) if title not in dict(columns)]
    if left_out:
        write(f"left out for want of width: {', '.join(left_out)}")
    return [title for title, _ in columns]


def columns_for(records: Sequence[Record], width: int) -> list[Column]:
    """The columns that fit into `width` characters; some are only there where rows differ in them."""
    columns = [column for column in COLUMNS if _is_wanted(column[0], records)]
    for title in DROPPED_FIRST:
        if 1 + sum(1 + max(map(len, (name, *map(cell, records)))) for name, cell in columns) <= width:
            break
        rest = [column for column in columns if column[0] != title]
        columns = rest if _distinct(records, rest) == _distinct(records, columns) else columns
    return columns


def _is_wanted(title: str, records: Sequence[Record]) -> bool:
    if title in FIGURES:
        return any(FIGURES[title](record) != DASH for record in records)
    alike = WHERE_THEY_DIFFER.get(title)
    (cell,) = (cell for _, cell in _pick(title))
    known = [record for record in records if title == "GPUs" or cell(record) != DASH]
    return alike is None or _distinct(known, _pick(*alike, title)) > _distinct(known, _pick(*alike))


def _pick(*titles: str) -> list[Column]:
    return [column for column in COLUMNS if column[0] in titles]


def _distinct(records: Sequence[Record], columns: Sequence[Column]) -> int:
    naming = [cell for title, cell in columns if title in (*IDENTITY, *WHERE_THEY_DIFFER)]
    return len({tuple(cell(record) for cell in naming) for record in records})


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The whole table as text, titles first."""
    columns = columns_for(records, sys.maxsize)
    titles = [title for title, _ in columns]
    return [titles, *([cell(record) for _, cell in columns] for record in sorted(records, key=in_table_order))]


def _table(records: Sequence[Record], columns: Sequence[Column]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for title, _ in columns:
        table.add_column(title, justify="left" if title in LEFT_ALIGNED else "right", overflow="fold")
    for record in sorted(records, key=in_table_order):
        standing, worse = record.speedup.standing, record.red or record.gate == REGRESSED
        unsure = {"speed-up"} if standing == "undecided" else set()
        cells = (Text(cell(record), "dim" if title in unsure else "") for title, cell in columns)
        doubtful = standing == "slower" or record.asked.unjudged is not None
        table.add_row(*cells, style="red" if worse else "yellow" if doubtful else None)
    return table


def in_table_order(record: Record) -> tuple[Any, ...]:
    asked = record.asked
    where = (asked.scenario, asked.target, asked.dtype, asked.engine, record.workload.concurrency or 0)
    return (*where, asked.speculates, asked.method, asked.draft or "", asked.gamma or 0)


def _label(record: Record) -> str:
    asked = record.asked
    return f"{model_label(asked.target)} {asked.dtype} {asked.engine} {asked.method}"


def scenario_and_target(record: Record) -> str:
    return f"{record.asked.scenario}, {_label(record)}"


def gate_name(record: Record) -> str:
    """All that tells it from the others of a session; an open load has no concurrency of its own."""
    asked = record.asked
    at = "" if asked.load.get("kind") == "open" else f", {record.workload.concurrency} at once"
    draft = f" {model_label(asked.draft)}" if asked.draft else ""
    return f"{asked.scenario}{at}, {_label(record)}{draft}{f' γ={asked.gamma}' if asked.gamma else ''}"
