"""The lines under the table: what its columns mean, why figures are missing, and what else was seen, each said once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from pytest_specdec.engines.spec import model_label
from pytest_specdec.hardware import emulates_bfloat16
from pytest_specdec.metrics.rounds import LEVEL
from pytest_specdec.progress import count
from pytest_specdec.record import Record
from pytest_specdec.report.rates import rate_lines
from pytest_specdec.report.table import gate_name, in_table_order, scenario_and_target

EMULATED = "fp32: this processor only emulates bfloat16, so float32 is the default; --specdec-dtype decides"
MOST_NAMED = 3
WAITED = "waited for a core {:.0%} of the time that it wanted one"
MUCH_WAITED = 0.25
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
    judged, ordered = [record for record in records if record.judged], sorted(records, key=in_table_order)
    reasons = {record.energy.joules_per_token.reason for record in judged}
    warned = [("warning", record.asked.scenario, word) for record in records for word in record.warnings]
    older = ((record, record.target_alone.caution) for record in records)
    warned += [("older run", scenario_and_target(record), word) for record, word in older if word not in decided]
    waited = ((record, waited_long(record)) for record in judged)
    warned += [("busy machine", gate_name(record), word) for record, word in waited if word not in decided]
    coverage = ((f"{each.asked.scenario}, {model_label(each.asked.target)}", each.coverage.low) for each in records)
    by_category = ((record, record.acceptance) for record in ordered if record.acceptance.by_category)
    return [
        *_meanings(records, shown),
        *join_alike(("measured, not judged", scenario_and_target(each), each.unjudged_in_words) for each in ordered),
        *sorted(f"J/token: {reason}" for reason in reasons if reason),
        *join_alike(warned),
        *sorted({note for record in records if (note := _versions_note(record))}),
        *_cost_notes(records, judged),
        *join_alike(note for record in ordered for note in _load_notes(record)),
        *rate_lines(ordered),
        *(
            f"accepted by category: {scenario_and_target(record)}: {part.categories_in_words}"
            for record, part in by_category
        ),
        *join_alike(("tie", gate_name(each), each.verdict.tie_in_words) for each in ordered),
        *join_alike(("drafting", scenario_and_target(each), each.drafting_in_words) for each in ordered),
        *join_alike(("sampled", gate_name(each), _would_have_seen(each)) for each in judged),
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
    who, load = scenario_and_target(record), record.load
    notes = [("load", who, flag) for flag in load.flags]
    if load.failed.count:
        told = ", ".join(f"{count} × {error}" for error, count in load.failed.by_error.items())
        notes.append(("failed", who, f"{load.failed.count} of {load.failed.of} requests: {told}"))
    good, per_second = load.goodput.share.value, load.goodput.requests_per_second.value
    if good is not None and per_second is not None:
        notes.append(("goodput", who, f"{good:.1%}, {per_second:.3g} requests/s"))
    return notes


def gate_notes(records: Iterable[Record]) -> list[str]:
    """What each gate's time was spent on, what its answers went through, and what a token cost in either phase.

    Of older records nothing is known.
    """
    ordered = sorted(records, key=in_table_order)
    told = (("time", record, _times(record)) for record in ordered)
    met = (("exercised", record, _exercised(record)) for record in ordered)
    cost = (
        ("J/token", record, record.energy.phases_in_words(record.target_alone)) for record in ordered if record.judged
    )
    return [f"{kind}: {gate_name(record)}: {', '.join(words)}" for kind, record, words in (*told, *met, *cost) if words]


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
