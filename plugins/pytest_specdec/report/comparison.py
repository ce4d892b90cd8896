"""What changed from one saved run to another: one table, aligned over all gates, with the units of its figures.

Only what changed is shown, or what was asked for; what does not compare, and why, is said once for all gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_specdec.history.compare import LEVEL, Outcome, in_percent, remedy
from pytest_specdec.record import Record
from pytest_specdec.record.parts import BaselinePart, ChangePart
from pytest_specdec.report.findings import name_of
from pytest_specdec.report.table import DASH, together
from pytest_specdec.thresholds import METRICS, Metric

TITLES = ("", "better", "baseline", "run", "", "change", f"{100 * LEVEL:.0f} % interval", "verdict")
LEFT = (0, 1, 4, 7)
Compared = Sequence[tuple[Record, BaselinePart]]


def comparison(parts: Compared, every: bool) -> Iterator[str]:
    """The lines. `every`: also figures that did not change."""
    rows, count = [], 0
    for record, part in parts:
        shown = [change for change in part.changes if every or _is_told(change)]
        rows += [(f"{name_of(record)} ({record.place.test})",), *map(_row, shown)] if shown else []
        count += len(part.changes) - len(shown)
    yield from _align(rows)
    if count:
        yield f"not changed: {count} figures (--all shows them)"
    yield from _notes(parts)


def _notes(parts: Compared) -> list[str]:
    """What differs around the figures and why some gates do not compare, each once."""
    around = [("changed", name_of(record), word) for record, part in parts for word in part.circumstances]
    refused = [("not compared", name_of(record), part.reason) for record, part in parts if part.reason]
    unmeasured = [
        ("without a figure", name_of(record), change.why)
        for record, part in parts
        for change in part.changes
        if change.outcome == Outcome.SHOWN.value and change.change is None
    ]
    return together([*around, *refused, *unmeasured])


def _is_told(change: ChangePart) -> bool:
    """Whether it changed, or a threshold was set for it."""
    return bool(change.threshold) or verdict_of(change) not in ("same", "missing")


def verdict_of(change: ChangePart) -> str:
    """That of its threshold; without one by its interval."""
    if change.outcome != Outcome.SHOWN.value:
        return change.outcome + remedy(change)
    if change.change is None:
        return "missing"
    if change.low is None or change.high is None:
        return "undecided" if change.change else "same"
    if change.low <= 0 <= change.high:
        return "same"
    return "better" if (change.low > 0) == METRICS[change.metric].more_is_better else "worse"


def _row(change: ChangePart) -> tuple[str, ...]:
    metric, bounds = (
        METRICS[change.metric],
        [in_percent(each) for each in (change.low, change.high) if each is not None],
    )
    return (
        f"  {change.metric}",
        "higher" if metric.more_is_better else "lower",
        _value(metric, change.then),
        _value(metric, change.now),
        metric.shown_in,
        DASH if change.change is None else f"{in_percent(change.change)} %",
        f"[{', '.join(bounds)}]" if bounds else "none",
        verdict_of(change) + (f" (threshold {change.threshold})" if change.threshold else ""),
    )


def _value(metric: Metric, value: float | None) -> str:
    return DASH if value is None else f"{value / metric.units.get(metric.shown_in, 1.0):.4g}"


def _align(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows of one cell are headings, over the whole width."""
    table = [TITLES, *(row for row in rows if len(row) > 1)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in [TITLES, *rows] if rows else []:
        cells = [text.ljust(widths[at]) if at in LEFT else text.rjust(widths[at]) for at, text in enumerate(row)]
        yield row[0] if len(row) == 1 else "  ".join(cells).rstrip()
