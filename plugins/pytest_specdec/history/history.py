"""Which saved record a new one may be held against, where it comes from, and whether what has changed fails the test.

Records compare where hardware, versions and options agree, and only with a record whose own gate is green. What fails:
a figure that is worse, one that more rounds would decide, a baseline run that was refused for more than its own
faults, and a record that has none and would be none; by choice (`--specdec-fail-on`) also one that is missing, or that
only more sessions would decide. All else is a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_specdec.engines.methods import method_named
from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.compare import FEWEST, Outcome, compare_figure, in_words, own_width, sample_of
from pytest_specdec.history.saved import (
    SavedRun,
    UnreadableRun,
    all_paths,
    paths_in,
    read_run,
    read_text,
    run_id,
    run_of,
    saved_paths,
)
from pytest_specdec.metrics.rounds import MOST_SESSIONS
from pytest_specdec.record import GREEN, UNJUDGED, Record
from pytest_specdec.record.parts import BaselinePart, ChangePart
from pytest_specdec.settings import LATEST
from pytest_specdec.thresholds import METRICS, SHOWN, Threshold

WIDEST = 0.10
NAMES = {
    "scenario_digest": "the scenario's content",
    "gamma": "γ",
    "engine_key": "engine configuration",
    "gpus": "GPUs",
}
MEASURED = ("scenario_digest", "engine", "target", "draft", "method", "gamma", "dtype")


def measurement(record: Record) -> dict[str, Any]:
    """What was measured: two records that agree in all of this answer the same question."""
    asked = {key: getattr(record.asked, key) for key in MEASURED}
    method = method_named(record.asked.method).name  # an alias is no other method
    return {**asked, "method": method, "concurrency": record.workload.concurrency, "load_asked": record.asked.load}


def place(record: Record) -> dict[str, Any]:
    """Where: names and number of the visible GPUs, or processor and cores where there are none; parallelism."""
    hardware = record.hardware
    gpus = [gpu.name for gpu in hardware.gpus]
    host = {} if gpus else {"processor": hardware.processor, "cores": hardware.cores}
    return {"gpus": gpus, **host, "parallelism": record.asked.parallelism}


def circumstances(record: Record) -> dict[str, Any]:
    """What an upgrade changes on purpose: versions, driver, engine options."""
    return {**record.engine.versions, "driver": record.hardware.driver, "engine_key": record.asked.engine_key}


def differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """In words, "vllm 0.26.0 → 0.32.0", for each key in which the two differ."""
    keys = [key for key in dict.fromkeys((*now, *then)) if now.get(key) != then.get(key)]
    return [f"{NAMES.get(key, key)} {_format(then.get(key))} → {_format(now.get(key))}" for key in keys]


def _format(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(f"{value.count(each)} × {each}" for each in dict.fromkeys(value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items()) or "none"
    return "none" if value is None else str(value)


def clashes(now: Record, then: Record) -> Iterator[str]:
    """What keeps two records of the same measurement apart, however good each is."""
    elsewhere = differences(place(now), place(then))
    if elsewhere:
        yield f"other hardware: {'; '.join(elsewhere)}"
    if now.workload.digest != then.workload.digest:
        yield "the same scenario gave other token ids: tokenizer or chat template have changed"
    if (now.asked.unjudged is None) != (then.asked.unjudged is None):
        here, there = ("judged" if each.asked.unjudged is None else "not judged" for each in (now, then))
        yield f"its tokens are {there}, and those of this run are {here}"


def faults(record: Record) -> Iterator[str]:
    """Why a record is no baseline run of any."""
    if not record.holds:
        yield f"its verdict is {record.verdict.outcome}"
    elif record.gate not in (GREEN, UNJUDGED):
        yield f"its gate is {record.gate}"
    if record.asked.speculates and not record.acceptance.drafts.value:
        yield "its drafter drafted nothing"
    if record.throughput.tokens_per_second.value is None:
        yield "nothing was timed in it"
    rate = sample_of(record, METRICS["tokens_per_second"])
    width = own_width(rate) if rate is not None else None
    if width is not None and width > WIDEST:
        yield f"its tokens/s is known to ±{width:.0%} only, and ±{WIDEST:.0%} is the most: measure it with more rounds"


WHOLE = "\n}"
REMEMBERED = 32


@dataclass(frozen=True)
class Found:
    """What the search gave: a baseline run with its record, or a problem in words.

    `refused`: whether there was something and it was refused, or there was nothing. `faulty`: whether that lies in the
    refused record alone. `latest`: whether the next session will look for a newer one. `passed_over`: newer runs that
    hold the measurement and were refused, by name. `earlier`: records of older runs with the same versions and options.
    """

    run: SavedRun | None = None
    record: Record | None = None
    problem: str = ""
    refused: bool = False
    faulty: bool = False
    latest: bool = False
    passed_over: tuple[str, ...] = ()
    earlier: tuple[Record, ...] = ()


Baselines = Callable[[Record, str], Found]
"""Finds the baseline run of a record of this test, or the reason why there is none."""


def baselines(named: str, storage: Path) -> Baselines:
    """`named`: "latest", a run's number in the storage, or a file. Raises ConfigurationError if that names no run."""
    if named == LATEST:
        return partial(find_in_latest, storage)
    return partial(find_in_run, read_run(run_path(named, storage)))


def run_path(named: str, storage: Path) -> Path:
    """The file of a run that is named by its id, "machine/id", "latest" or path; of a folder, that of the newest."""
    if named == LATEST:
        return paths_in(storage)[-1]
    if Path(named).is_file():
        return Path(named)
    if Path(named).is_dir():
        return paths_in(Path(named))[-1]
    machine, _, number = named.rpartition("/")
    known = all_paths(storage)
    same = (path for path in known if run_id(path) == number.zfill(4))
    numbered = [path for path in same if machine in ("", path.parent.name)]
    if len(numbered) == 1:
        return numbered[0]
    if not numbered:
        none = ", which holds no run: measure with --benchmark-autosave"
        latest = f"; the latest is {run_id(known[-1])}" if known else none
        raise ConfigurationError(f"{named!r} is neither a file nor the number of a run in {storage}{latest}")
    several = ", ".join(f"{path.parent.name}/{number}" for path in numbered)
    raise ConfigurationError(f"{named!r} names several runs in {storage}: say one of {several}")


def find_in_latest(storage: Path, now: Record, test: str) -> Found:
    """The newest run in a storage that holds the measurement and may be its baseline run, and those before it.

    What was refused on the way is told. Where that is all there is, and faulty, it is as if nothing had been saved: the
    new record is not to fail for the fault of an old one, which it could then never replace.
    """
    met: list[Found] = []  # what does not serve, the newest first
    runs = runs_that_may_hold(now, test, storage)
    try:
        for run in runs:
            found = replace(find_in_run(run, now, test), latest=True, passed_over=_refused(met))
            if found.record is not None and not _too_few_rounds(found, now):
                return replace(found, earlier=_sessions_before(found.record, runs, now, test))
            met.append(found)
    except UnreadableRun as error:
        return Found(problem=str(error), refused=True, passed_over=_refused(met))
    short = next((each for each in met if each.record is not None), None)
    return short or _none_serves(met, storage)  # figures without rounds are held against a short run all the same


def _refused(met: Sequence[Found]) -> tuple[str, ...]:
    return tuple(each.problem for each in met if each.refused)


def _sessions_before(then: Record, older: Iterator[SavedRun], now: Record, test: str) -> tuple[Record, ...]:
    """Records of the measurement in older runs that differ from this one in no version or option."""
    found = (find_in_run(run, now, test).record for run in older)
    like = (each for each in found if each and circumstances(each) == circumstances(then))
    return tuple(islice(like, MOST_SESSIONS - 1))


def _none_serves(met: Sequence[Found], storage: Path) -> Found:
    """Nothing is refused but what does not compare; the newest is named, and beside it why the test fails."""
    refused = [each for each in met if each.refused]
    if not refused:
        nothing = f"no run in {storage} has this measurement: save one with --benchmark-autosave"
        return Found(problem=met[0].problem if met else nothing, latest=True)
    clashing = [each for each in refused if not each.faulty]
    told = list(dict.fromkeys(each.problem for each in (refused[0], *clashing[:1])))
    more = f" (and {len(refused) - len(told)} more)" if len(refused) > len(told) else ""
    another = "" if clashing else "; save another with --benchmark-autosave"
    return Found(problem="; ".join(told) + more + another, refused=bool(clashing), latest=True)


def find_in_run(run: SavedRun, now: Record, test: str) -> Found:
    """The record of the measurement in this run, or why it has none that serves.

    Of several it is the one with the same engine options, then name.
    """
    wanted, key = measurement(now), now.asked.engine_key
    same = [record for record in run.records if measurement(record) == wanted]
    then = max(same, key=lambda each: (each.asked.engine_key == key, each.place.test == test), default=None)
    if then is None:
        return Found(run, problem=f"run {run.id} ({run.path}): {_what_it_has(run, wanted, test)}")
    apart, own = list(clashes(now, then)), list(faults(then))
    if apart or own:
        problem = f"run {run.id} ({run.path}) is no baseline run: {'; '.join([*apart, *own])}"
        return Found(run, problem=problem, refused=True, faulty=not apart)
    return Found(run, then)


def _what_it_has(run: SavedRun, wanted: Mapping[str, Any], test: str) -> str:
    """What a run has instead of this measurement."""
    then = {record.place.test: measurement(record) for record in run.records}
    partial = f", and is partial: {run.partial}" if run.partial else ""
    if test in then:
        return f"{test} measured something else then: {'; '.join(differences(wanted, then[test]))}"
    now = wanted["gamma"]
    if gammas := sorted({each["gamma"] or 0 for each in then.values() if {**each, "gamma": now} == wanted}):
        had = ", ".join(map(str, gammas))
        return f"it has γ = {had} of it, and not {now}{partial}; γ side by side: pytest-specdec decide {run.id} RUN"
    return f"it has no record of this measurement{partial}{_nearest(then, wanted, test)}"


def _nearest(then: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Any], test: str) -> str:
    """A test of the same function, by other parameters, that differs in one thing."""
    for name, measured in then.items():
        words = differences(wanted, measured)
        if len(words) == 1 and name.partition("[")[0] == test.partition("[")[0]:
            return f"; nearest is {name}: {words[0]}"
    return ""


def runs_that_may_hold(now: Record, test: str, storage: Path) -> Iterator[SavedRun]:
    """Saved runs whose text names the scenario's digest or the test, newest first. Raises UnreadableRun."""
    names = [json.dumps(name)[1:-1] for name in (now.asked.scenario_digest, test) if name]
    for path in reversed(saved_paths(storage)):
        run = _run_with(path, path.stat().st_mtime_ns, tuple(names))
        if run is not None:
            yield run


@lru_cache(maxsize=REMEMBERED)
def _run_with(path: Path, _written: int, names: tuple[str, ...]) -> SavedRun | None:
    """The run, or None where its text, whole to the closing brace, has none of the names."""
    text = read_text(path)
    if text.rstrip().endswith(WHOLE) and not any(name in text for name in names):
        return None
    return run_of(path, text)


WORST_FIRST = (Outcome.WORSE, Outcome.INCONCLUSIVE, Outcome.MISSING)
NO_BASELINE = "no baseline"


@dataclass(frozen=True)
class RegressionGate:
    """`thresholds`: none means that changes are only shown. `fail_on`: "missing", "inconclusive", or both."""

    baselines: Baselines
    thresholds: Sequence[Threshold] = ()
    fail_on: Collection[str] = ()

    def part(self, now: Record, test: str) -> BaselinePart:
        """The record's baseline: the run, what has changed around it, each figure's change, and failures."""
        found = self.baselines(now, test)
        changes = self._changes(now, found)
        fail = {Outcome.WORSE, *self.fail_on}
        uncompared = self._uncompared(now, found)
        failing = [each for each in changes if each.outcome in fail or _wants_rounds(each)]
        failed_by = min((each.outcome for each in failing), key=WORST_FIRST.index, default=None)
        told = BaselinePart(
            passed_over=found.passed_over,
            failures=(*uncompared, *(_words(each, found) for each in failing)),
            failed_by=failed_by or (NO_BASELINE if uncompared else None),
        )
        if found.record is None or found.run is None:
            return replace(told, reason=found.problem or None)
        return replace(
            told,
            run=found.run.id,
            path=str(found.run.path),
            test=found.record.place.test or None,
            circumstances=tuple(differences(circumstances(now), circumstances(found.record))),
            changes=changes,
        )

    def _uncompared(self, now: Record, found: Found) -> list[str]:
        """Why a test fails that was held against nothing: the run was refused, or the next would find none either."""
        why = found.problem if found.record is None else _too_few_rounds(found, now)
        gates = any(each.gates for each in self.thresholds)
        own = "; ".join(faults(now)) if why and gates and found.latest and not found.refused else ""
        missing = found.record is None and Outcome.MISSING in self.fail_on
        if not (own or (gates and found.refused) or missing):
            return []
        return [f"no baseline run: {why}" + (f"; nor is this run one for the next: {own}" if own else "")]

    def wants_rounds(self, now: Record, test: str) -> bool:
        """Whether more rounds would decide a figure that these do not."""
        return any(map(_wants_rounds, self._changes(now, self.baselines(now, test))))

    def _changes(self, now: Record, found: Found) -> tuple[ChangePart, ...]:
        if found.record is None:
            return ()
        each = (compare_figure(now, found.record, threshold, found.earlier) for threshold in self.thresholds or SHOWN)
        changes = [change for change in each if change is not None]
        if why := _too_few_rounds(found, now):  # it would be inconclusive for ever
            changes = [replace(it, outcome=Outcome.MISSING, why=why) if _wants_rounds(it) else it for it in changes]
        return tuple(changes)


def _too_few_rounds(found: Found, now: Record) -> str:
    """That the newest run's rounds give no interval and this record's would; empty where they do, or neither's."""
    rounds = found.record.throughput.rounds if found.record is not None and found.latest else FEWEST
    few = rounds < FEWEST <= now.throughput.rounds
    return f"the baseline run has {rounds} of the {FEWEST} rounds that an interval needs" if few else ""


def _wants_rounds(change: ChangePart) -> bool:
    return change.outcome == Outcome.INCONCLUSIVE and change.wanted is not None


def _words(change: ChangePart, found: Found) -> str:
    run = found.run.id if found.run else ""
    before = f" and {len(found.earlier)} before it" if found.earlier else ""
    return f"{in_words(change)}, against run {run}{before}"
