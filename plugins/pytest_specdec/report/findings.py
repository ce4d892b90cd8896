"""What a session found, in words: on the terminal, in GitHub Actions, and as plain properties for JUnit XML.

For GitHub's commands and their escapes see "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from pytest_specdec.engines.spec import model_label
from pytest_specdec.history.compare import Outcome, in_percent, in_words, remedy
from pytest_specdec.history.saved import SavedRun
from pytest_specdec.metrics.rounds import LEVEL
from pytest_specdec.record import GREEN, UNJUDGED, Record
from pytest_specdec.record.parts import BaselinePart, ChangePart
from pytest_specdec.report.decision import Decision, decide, headline
from pytest_specdec.report.gates import gates_of, newest, with_predictions
from pytest_specdec.report.notes import join_alike
from pytest_specdec.report.table import DASH, rows
from pytest_specdec.thresholds import METRICS, Metric, Threshold


def present_run(records: Sequence[Record], storage: Path, partial: str = "") -> SavedRun:
    """These records as a run of now. `storage`: pytest-benchmark's folder, beside which power series lie."""
    machine = {"python_version": platform.python_version(), "system": platform.system(), "release": platform.release()}
    return SavedRun(
        id="of this session",
        path=storage / "this session",
        datetime=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit={},
        machine=machine,
        records=tuple(records),
        partial=partial,
    )


def decisions_on(runs: Sequence[SavedRun], by: str = "throughput", limits: Sequence[Threshold] = ()) -> list[Decision]:
    """What these runs, oldest first, decide: the newest records of each configuration."""
    return decide(with_predictions(newest(gates_of(runs))), by, limits)


MOST = 3


def name_of(record: Record) -> str:
    """A record in a few words: target, method, γ, scenario."""
    asked = record.asked
    gamma = f" γ={asked.gamma}" if asked.gamma else ""
    return f"{model_label(asked.target)} {asked.engine} {asked.method}{gamma} on {asked.scenario}"


def worst(records: Sequence[Record]) -> list[str]:
    """The worst findings, at most MOST: wrong output, then what got worse, then what loses to the target alone."""
    found = sorted((finding for record in records for finding in _findings(record)), key=lambda each: each[:2])
    more = [f"… and {len(found) - MOST} more"] if len(found) > MOST else []
    return [f"worst: {words}" for _, _, words in found[:MOST]] + more


def _findings(record: Record) -> Iterator[tuple[int, float, str]]:
    """(rank, order within the rank, words), the worst lowest."""
    name, outcome, ratio = name_of(record), record.verdict.outcome, record.speedup.ratio.value
    if not record.holds:
        yield 0, 0.0, f"{name}: {outcome}"
    elif record.red:
        yield 1, 0.0, f"{name}: red, though its output is {outcome}"
    for failure in record.baseline.failures if record.baseline else ():
        changes = record.baseline.changes if record.baseline else ()
        yield 2, -max((abs(each.change or 0.0) for each in changes), default=0.0), f"{name}: {failure}"
    if not record.red and ratio is not None and record.speedup.standing == "slower":
        yield 3, ratio, f"{name}: slower than the target alone, {ratio:.2f} of its tokens/s"


def change_notes(records: Sequence[Record], verbose: bool) -> list[str]:
    """What has changed since the baseline runs: versions, then what is not good or has none, else a count."""
    held = [(record, record.baseline) for record in records if record.baseline is not None]
    around = []
    for record, baseline in held:
        around += [f"{name_of(record)}: not compared: {baseline.reason}"] if baseline.reason else []
        around += [f"passed over: {refused}" for refused in baseline.passed_over]
        if baseline.circumstances:
            around.append(f"changed since run {baseline.run}: {'; '.join(baseline.circumstances)}")
    notes = list(dict.fromkeys(around))
    changes = [(record, baseline, change) for record, baseline in held for change in baseline.changes]
    told = [each for each in changes if verbose or each[2].outcome != Outcome.GOOD]
    notes += [f"{name_of(record)} since run {then.run}: {in_words(change)}" for record, then, change in told]
    if len(told) < len(changes):
        notes.append(f"within their thresholds: {len(changes) - len(told)} of {len(changes)} changes")
    return notes


TITLE = "## Speculative decoding: is it exact, is it faster"


def markdown(records: Sequence[Record], decisions: Sequence[Decision] = (), partial: str = "") -> str:
    """The summary: the table of all gates, decisions, the worst findings, and the changes since the baseline runs."""
    header, *body = rows(records)
    lines = [TITLE, "", headline(records), "", _line(header), _line(["---"] * len(header)), *map(_line, body), ""]
    for each in decisions:
        lines += [f"- **{_cell(each.place)}**: {_cell(each.words)}", *(f"  - {_cell(line)}" for line in each.at_each)]
    missing = [f"partial: {partial}"] if partial else []
    lines += [f"- {_cell(note)}" for note in (*missing, *worst(records), *change_notes(records, verbose=False))]
    return "\n".join(lines) + "\n\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def error_lines(records: Sequence[Record], named: Callable[[str], str] = str) -> list[str]:
    """One `::error` line for each gate that is red or worse than its baseline, at the test's file and line.

    `named`: a file from pytest's rootdir as GitHub names it.
    """
    lines = []
    for record in (each for each in records if each.gate not in (GREEN, UNJUDGED)):
        outcome, place = record.verdict.outcome, record.place
        failures = record.failures or (record.baseline.failures if record.baseline else ())
        reasons = [each.partition("\n")[0] for each in failures or filter(None, (record.verdict.detail,))]
        said = "; ".join(reasons) or (f"red, though its output is {outcome}" if record.holds else outcome)
        file, title = (text.translate(PROPERTY) for text in (named(place.file), name_of(record)))
        lines.append(f"::error file={file},line={place.line},title={title}::{said.translate(DATA)}")
    return lines


DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
PROPERTY = {**DATA, **str.maketrans({":": "%3A", ",": "%2C"})}


ASKED = ("scenario", "engine", "target", "draft", "method", "gamma", "dtype")


def flat(record: Record) -> Iterator[tuple[str, str]]:
    """("specdec.tokens_per_second", "123.4") and so on; what was not measured is left out."""
    for name, value in _places(record).items():
        if value is not None:
            yield f"specdec.{name}", str(value)
    for change in record.baseline.changes if record.baseline else ():
        yield f"specdec.change.{change.metric}", change.outcome


def _places(record: Record) -> dict[str, object]:
    latency, acceptance = record.latency, record.acceptance
    return {
        **{name: getattr(record.asked, name) for name in ASKED},
        "concurrency": record.workload.concurrency,
        "gate": record.gate,
        "verdict": record.verdict.outcome,
        "tokens_per_second": record.throughput.tokens_per_second.value,
        "target_tokens_per_second": record.target_alone.tokens_per_second.value,
        "speedup": record.speedup.ratio.value,
        "acceptance_rate": acceptance.rate.value,
        "mean_accepted_length": acceptance.mean_accepted_length.value,
        "ttft_p50_s": latency.ttft_s.p50,
        "ttft_p99_s": latency.ttft_s.p99,
        "itl_p50_s": latency.itl_s.p50,
        "joules_per_token": record.energy.joules_per_token.value,
        "energy_over_target": record.energy.over_target.value,
        "baseline": record.baseline.run if record.baseline else None,
    }


TITLES = ("", "better", "baseline", "run", "", "change", f"{100 * LEVEL:.0f} % interval", "verdict")
LEFT = (0, 1, 4, 7)
Compared = Sequence[tuple[Record, BaselinePart]]


def comparison(parts: Compared, every: bool) -> Iterator[str]:
    """The lines; what differs around the figures, and why some gates do not compare, once. `every`: also what did not
    change."""
    rows, count, differ = [], 0, 0.0
    for record, part in parts:
        changed = (bool(each.threshold) or verdict_of(each) not in ("same", "missing") for each in part.changes)
        shown = [each for each, told in zip(part.changes, changed, strict=True) if every or told]
        rows += [(f"{name_of(record)} ({record.place.test})",), *map(_row, shown)] if shown else []
        count += len(part.changes) - len(shown)
        differ = max([differ, *(each.sessions_differ or 0.0 for each in shown if each.sessions == 1)])
    yield from _align(rows)
    if differ:
        yield SESSIONS.format(100 * differ)
    if count:
        yield f"not changed: {count} figures (--all shows them)"
    around = [("changed", name_of(record), word) for record, part in parts for word in part.circumstances]
    refused = [("not compared", name_of(record), part.reason) for record, part in parts if part.reason]
    unmeasured = [
        ("without a figure", name_of(record), change.why)
        for record, part in parts
        for change in part.changes
        if change.outcome == Outcome.SHOWN and change.change is None
    ]
    yield from join_alike([*around, *refused, *unmeasured])


SESSIONS = (
    "one session against one other: the same code may differ by ±{:.1f} % (99 of 100 sessions, docs/history.md), which "
    "the intervals, of the rounds alone, leave out and a threshold (--fail) allows for"
)
ROUNDING = 1e-9
SAME = 0.05
"""Rounds go on until tokens/s is known to 5 % from end to end, so a change of two such figures to about ±3.5 %."""


def verdict_of(change: ChangePart) -> str:
    """That of its threshold; without one by its interval, which is the same where it lies within ±SAME of 0.

    Better and worse are more than what sessions of the same code differ by.
    """
    if change.outcome != Outcome.SHOWN:
        return change.outcome + remedy(change)
    if change.change is None:
        return "missing"
    if change.low is None or change.high is None:
        return "undecided" if change.change else "same"
    if change.low <= ROUNDING and change.high >= -ROUNDING:
        return "same" if max(-change.low, change.high) <= SAME else "undecided"
    half = abs(change.change - (change.low if change.change > 0 else change.high))
    if abs(change.change) <= math.hypot(half, change.sessions_differ or 0.0):
        return "undecided"
    return "better" if (change.low > 0) == METRICS[change.metric].more_is_better else "worse"


def _row(change: ChangePart) -> tuple[str, ...]:
    metric = METRICS[change.metric]
    bounds = [in_percent(each) for each in (change.low, change.high) if each is not None]
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
