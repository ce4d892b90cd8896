"""Rates from low to high as a table: what both arms completed of each, how long it took, and whether they kept up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_specdec.record import Figure, Record
from pytest_specdec.record.parts import PointPart
from pytest_specdec.report.table import DASH, gate_name, milliseconds

TITLES = ("asked/s", "arm", "done/s", "tokens/s", "TTFT p50", "p99", "TPOT p50", "p99", "goodput", "sustained")
UNITS = "requests/s asked for and completed, times in ms"
SUSTAINED = {True: "yes", False: "no", None: "inconclusive"}


Rows = list[tuple[str, ...]]


def rate_tables(records: Sequence[Record]) -> list[tuple[str, Rows]]:
    """Of each gate that swept rates: what saturates it; TITLES, and both arms at each rate, of a red one no rows."""
    swept = [record for record in records if record.load.sweep.points]
    several = len({record.engine.device for record in swept}) > 1
    named = [gate_name(each) + (f", {each.engine.device}" if several else "") for each in swept]
    rows = ([TITLES, *_rows(each)] if each.shows_speed else [] for each in swept)
    return [(f"{name}: {saturations(each)}", told) for name, each, told in zip(named, swept, rows, strict=True)]


def rate_lines(records: Sequence[Record]) -> Iterator[str]:
    """The same as lines of text."""
    for name, rows in rate_tables(records):
        yield f"saturation: {name}"
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield from [UNITS] if rows else []


def saturations(record: Record) -> str:
    """Up to which rate each arm keeps up."""
    sweep = record.load.sweep
    ours, theirs = map(_rate, (sweep.saturation_per_second, sweep.target_saturation_per_second))
    return ours + (f"; target only: {theirs}" if record.asked.speculates else "")


def _rate(rate: Figure[float]) -> str:
    return f"{rate.value:g} requests/s" if rate.value is not None else str(rate.reason)


def _rows(record: Record) -> Iterator[tuple[str, ...]]:
    sweep, asked = record.load.sweep, record.asked
    arms = {"target": sweep.target_points if asked.speculates else (), asked.method: sweep.points}
    points = [(point, arm) for arm, told in arms.items() for point in told]
    for point, arm in sorted(points, key=lambda each: each[0].asked):
        yield f"{point.asked:g}", arm, *_cells(point), SUSTAINED[point.sustained]


def _cells(point: PointPart) -> Iterator[str]:
    first, each = (point.ttft_p50_s, point.ttft_p99_s), (point.tpot_p50_s, point.tpot_p99_s)
    times = [*((milliseconds(told), ",.0f") for told in first), *((milliseconds(told), ",.1f") for told in each)]
    for value, form in ((point.completed, ".1f"), (point.tokens_per_second, ",.0f"), *times, (point.goodput, ".0%")):
        yield DASH if value is None else format(value, form)
