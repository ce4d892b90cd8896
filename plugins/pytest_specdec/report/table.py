"""The table at the end of a session: every gate by scenario, target-only first, with its verdict before its speed.

Its width is that of the terminal or of COLUMNS, and PLAIN_WIDTH where there is neither. What no gate has is no column;
where width is wanting, columns that matter least are left out, but none without which two rows would be the same.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from pytest_specdec.engines.spec import model_label
from pytest_specdec.hardware import emulates_bfloat16
from pytest_specdec.history.compare import Outcome, interval_in_words
from pytest_specdec.metrics.rounds import LEVEL, bounds_in_words
from pytest_specdec.progress import count
from pytest_specdec.record import REGRESSED, Figure, Record

DASH = "–"
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
EMULATED = "fp32: this processor only emulates bfloat16, so float32 is the default; --specdec-dtype decides"
PLAIN_WIDTH = 100
MOST_NAMED = 3
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
    return [titles, *([cell(record) for _, cell in columns] for record in sorted(records, key=_order))]


def _table(records: Sequence[Record], columns: Sequence[Column]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for title, _ in columns:
        table.add_column(title, justify="left" if title in LEFT_ALIGNED else "right", overflow="fold")
    for record in sorted(records, key=_order):
        standing, worse = record.speedup.standing, record.red or record.gate == REGRESSED
        unsure = {"speed-up"} if standing == "undecided" else set()
        cells = (Text(cell(record), "dim" if title in unsure else "") for title, cell in columns)
        doubtful = standing == "slower" or record.asked.unjudged is not None
        table.add_row(*cells, style="red" if worse else "yellow" if doubtful else None)
    return table


def _order(record: Record) -> tuple[Any, ...]:
    asked = record.asked
    where = (asked.scenario, asked.target, asked.dtype, asked.engine, record.workload.concurrency or 0)
    return (*where, asked.speculates, asked.method, asked.draft or "", asked.gamma or 0)


INTERVAL = f"{100 * LEVEL:.0f} % interval"
MEANINGS = {
    "speed-up": "speed-up: tokens/s over target tok/s, those of target-only in rounds beside these, "
    f"with its {INTERVAL}",
    "steady": "steady: the same while every place of the load was taken",
    "tok/step": "tok/step: mean accepted length, tokens a step, the bonus token included",
    "p95 ITL ms": "ITL, TTFT: from token to token and to the first one; the target's stand in its own row",
}
OVER_TARGET = f"J/token: in brackets over target-only's, with its {INTERVAL} where there is one"


def footnotes(records: Sequence[Record], shown: Sequence[str], decided: str = "") -> list[str]:
    """Why figures are missing, and what the columns that are `shown` mean, said once each.

    `decided`: what the decisions say; what stands there is not said again.
    """
    judged, ordered = [record for record in records if record.judged], sorted(records, key=_order)
    reasons = {record.energy.joules_per_token.reason for record in judged}
    warned = [("warning", record.asked.scenario, word) for record in records for word in record.warnings]
    older = ((record, record.target_alone.caution) for record in records)
    warned += [("older run", _on(record), word) for record, word in older if word not in decided]
    waited = ((record, waited_long(record)) for record in judged)
    warned += [("busy machine", _gate(record), word) for record, word in waited if word not in decided]
    coverage = ((f"{each.asked.scenario}, {model_label(each.asked.target)}", each.coverage.low) for each in records)
    by_category = ((record, record.acceptance) for record in ordered if record.acceptance.by_category)
    return [
        *_meanings(records, shown),
        *join_alike(("measured, not judged", _on(each), each.unjudged_in_words) for each in ordered),
        *sorted(f"J/token: {reason}" for reason in reasons if reason),
        *join_alike(warned),
        *sorted({note for record in records if (note := _versions_note(record))}),
        *_cost_notes(records, judged),
        *join_alike(note for record in ordered for note in _load_notes(record)),
        *(f"accepted by category: {_on(record)}: {part.categories_in_words}" for record, part in by_category),
        *join_alike(("tie", _gate(each), each.verdict.tie_in_words) for each in ordered),
        *join_alike(("drafting", _on(each), each.drafting_in_words) for each in ordered),
        *join_alike(("sampled", _gate(each), _would_have_seen(each)) for each in judged),
        *_truth_note(judged),
        *join_alike(("coverage", who, words or "") for who, words in coverage),
    ]


def _meanings(records: Sequence[Record], shown: Sequence[str]) -> list[str]:
    meanings = [words for title, words in MEANINGS.items() if title in shown]
    over_target = any(record.shows_speed and record.energy.over_target.value is not None for record in records)
    meanings += [OVER_TARGET] if over_target and "J/token" in shown else []
    return ["; ".join(meanings)] if meanings else []


def _cost_notes(records: Sequence[Record], judged: Sequence[Record]) -> list[str]:
    on_cpu = any(record.asked.dtype == "float32" and not record.hardware.gpus for record in judged)
    notes = [EMULATED] if emulates_bfloat16() and on_cpu else []
    calibrations = (record.verdict.calibration for record in records)
    costs = [told for each in calibrations if each and (told := each.rescoring_over_decoding.value) is not None]
    span = " to ".join(dict.fromkeys(f"{each:.2f}" for each in (min(costs), max(costs)))) if costs else ""
    return [*notes, f"rescoring took {span} of the time of decoding"] if costs else notes


def join_alike(notes: Iterable[tuple[str, str, str]]) -> list[str]:
    """(kind, of what, words): what several gates say in the same words is one line that names them."""
    told: dict[tuple[str, str], dict[str, None]] = {}
    for kind, who, words in (note for note in notes if note[2]):
        told.setdefault((kind, words), {})[who] = None
    return [f"{kind}: {name_few(list(names))}: {words}" for (kind, words), names in told.items()]


def name_few(names: Sequence[str]) -> str:
    """MOST_NAMED of them, and how many more there are."""
    more = [f"and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return "; ".join([*names[:MOST_NAMED], *more])


def _versions_note(record: Record) -> str | None:
    ours, theirs = record.engine.versions, record.verdict.reference_versions
    if not theirs or (ours and all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())):
        return None
    named = [", ".join(f"{name} {version}" for name, version in sorted(each.items())) for each in (ours, theirs)]
    return f"two versions: {record.asked.method} by {named[0] or 'one that tells none'}; target only by {named[1]}"


def _load_notes(record: Record) -> list[tuple[str, str, str]]:
    who, load = _on(record), record.load
    notes = [("load", who, flag) for flag in load.flags]
    if load.failed.count:
        told = ", ".join(f"{count} × {error}" for error, count in load.failed.by_error.items())
        notes.append(("failed", who, f"{load.failed.count} of {load.failed.of} requests: {told}"))
    good, per_second = load.goodput.share.value, load.goodput.requests_per_second.value
    if good is not None and per_second is not None:
        notes.append(("goodput", who, f"{good:.1%}, {per_second:.3g} requests/s"))
    if load.sweep.points:
        ours, theirs = load.sweep.saturation_per_second, load.sweep.target_saturation_per_second
        notes.append(("saturation", who, f"{_saturation(ours)}; target only: {_saturation(theirs)}"))
    return notes


def _saturation(rate: Figure[float]) -> str:
    return f"{rate.value:g} requests/s" if rate.value is not None else str(rate.reason)


def _label(record: Record) -> str:
    asked = record.asked
    return f"{model_label(asked.target)} {asked.dtype} {asked.engine} {asked.method}"


def _on(record: Record) -> str:
    return f"{record.asked.scenario}, {_label(record)}"


def gate_notes(records: Iterable[Record]) -> list[str]:
    """What each gate's time was spent on, what its answers went through, and what a token cost in either phase.

    Of older records nothing is known.
    """
    ordered = sorted(records, key=_order)
    told = (("time", record, _times(record)) for record in ordered)
    met = (("exercised", record, _exercised(record)) for record in ordered)
    cost = (
        ("J/token", record, record.energy.phases_in_words(record.target_alone)) for record in ordered if record.judged
    )
    return [f"{kind}: {_gate(record)}: {', '.join(words)}" for kind, record, words in (*told, *met, *cost) if words]


def _gate(record: Record) -> str:
    """All that tells it from the others of a session; an open load has no concurrency of its own."""
    asked = record.asked
    at = "" if asked.load.get("kind") == "open" else f", {record.workload.concurrency} at once"
    draft = f" {model_label(asked.draft)}" if asked.draft else ""
    return f"{asked.scenario}{at}, {_label(record)}{draft}{f' γ={asked.gamma}' if asked.gamma else ''}"


WAITED = "waited for a core {:.0%} of the time that it wanted one"
MUCH_WAITED = 0.25


def waited_long(record: Record) -> str:
    """That its engine or the target beside it often wanted a core and had none; empty where neither did."""
    waited = {"its engine": record.throughput.waited_for_cores, "the target": record.target_alone.waited_for_cores}
    who = max(waited, key=lambda each: waited[each].value or 0.0)
    share = waited[who].value or 0.0
    return f"{who} {WAITED.format(share)}" if share >= MUCH_WAITED else ""


def _times(record: Record) -> list[str]:
    told = asdict(record.times).items()
    spent = ((name.removesuffix("_s").replace("_", " "), each["value"]) for name, each in told)
    waits = {"": record.throughput.waited_for_cores.value, "the target ": record.target_alone.waited_for_cores.value}
    return [
        *(f"{name} {seconds:.1f} s" for name, seconds in spent if seconds is not None),
        *(f"{who}{WAITED.format(share)}" for who, share in waits.items() if share is not None),
    ]


def _exercised(record: Record) -> list[str]:
    told = asdict(record.coverage.exercised).items()
    met = [(name.replace("_", " "), each["value"] if isinstance(each, dict) else each) for name, each in told]
    forms = {tuple: " ".join, int: "{:,}".format, float: "{:.0%}".format}
    return [f"{name} {forms[type(value)](value)}" for name, value in met if value]


def _would_have_seen(record: Record) -> str:
    """What a gate at a temperature, which claims no token, would have found; of another one its message tells it."""
    sampling = record.verdict.sampling
    if sampling is None or not record.passes:
        return ""
    rated = sampling.rated
    return rated.statement if rated and rated.detects_total_variation.value is not None else sampling.power_statement


def _truth_note(records: Sequence[Record]) -> list[str]:
    known = [each.verdict.known_truth for each in records if each.verdict.known_truth.tokens.value is not None]
    if not known:
        return []
    tokens, wrong = (sum(getattr(each, name).value or 0 for each in known) for name in ("tokens", "wrong"))
    counted = sum(record.verdict.foretold.drafts.value is not None for record in records)
    gates, compared = f"{len(known)} of {count(len(records), 'gate')}", f"{tokens:,} tokens of all rounds compared"
    told = f"known truth: {gates}, {compared}, {wrong:,} of them wrong"
    return [f"{told}; accepted drafts compared with the foretold ones in {counted}"]
