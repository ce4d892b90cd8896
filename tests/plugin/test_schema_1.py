"""A run says the same in both schemas: its gates as schema 1 left them, converted, beside those of now, key by key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.plugin.conftest import Project
from tests.plugin.every_record import every_record

from pytest_specdec.record import from_json, to_json

THEN = Path(__file__).with_name("schema_1.json")
NEW = (
    "asked.load",
    "asked.sweep_key",
    "asked.scenario_digest",
    "asked.settings_digest",
    "engine.details.counting",
    "engine.details.keeps_ends",
    "engine.details.dtype",
    "load.goodput.at_best",
    "target_alone.tokens_per_second",
    "coverage.exercised",
    "acceptance.rate_per_request",
    "answers.",
    "target_alone.drift",
    "target_alone.latency.",
    "throughput.steady_",
    "speedup.steady_",
    "hardware",
    "times",
    "workload.concurrency",
    "failures",
    "verdict.calibration",
    "verdict.limits",
    "verdict.near_ties",
    "verdict.noise_floor",
    "verdict.sampling.",
)
"""What schema 1 did not tell of a gate that an engine's fault ended, or whose speed-up was null; another machine; how
far and how often a sound engine strays, and the words of it, which count ULPs since; what is sampled anew, which was
more when nothing else was judged; a drift that was between other rounds."""

REWORDED = (
    ("suspect: ", "hint: "),
    (" of 4 in round 0: ", " of 4 in step 0: "),
    (" in the control ", " in the calibration "),
    ("target-only is the base line", "this is the target-only baseline"),
    (" γ and for the target alone", " γ and for the target beside them"),
)
"""What schema 1 said in other words."""


MORE_ROUNDS: dict[str, Callable[[Any], Any]] = {
    "verdict.counts": lambda told: set(told or ()),
    "verdict.findings": lambda told: {(each["request"], each["outcome"], each.get("position")) for each in told or ()},
    "warnings": lambda told: [each for each in told or () if "go in circles" not in each],
}
"""What has warm-up rounds, or loops, in it since: each is compared in what these do not change."""


def differences(then: Any, now: Any, place: str = "") -> Iterator[str]:
    """Every place where the two differ. A reason may be said where none was; where one was, it is the same."""
    if place == "load.sweep":
        then = with_doubts_of(now, then)
    if place in MORE_ROUNDS:
        if MORE_ROUNDS[place](then) != MORE_ROUNDS[place](now):
            yield f"{place}: {then} → {now}"
    elif isinstance(then, dict) and isinstance(now, dict):
        for key in {*then, *now}:
            yield from differences(then.get(key), now.get(key), f"{place}.{key}" if place else key)
    elif reword(then) != now and not (place.endswith(".reason") and unsaid(then)) and not place.startswith(NEW):
        yield f"{place}: {then} → {now}"


def with_doubts_of(now: Any, then: Any) -> Any:
    """A sweep in which what was not sustained is inconclusive where the load is too short to tell, which none was."""
    points = [
        was | {name: told.get(name) for name in ("sustained", "reason")}
        if doubted(told) and not was["sustained"]
        else was
        for was, told in zip(then["points"], now["points"], strict=True)
    ]
    same = "saturation_per_second"
    return {**then, "points": points, same: now[same] if doubted(now[same]) else then[same]}


def doubted(told: Any) -> bool:
    """Whether a rate, or the saturation, is inconclusive for that."""
    return "is too short a load" in str(told.get("reason"))


def reword(then: Any) -> Any:
    """A text, or what holds texts, in today's words."""
    if isinstance(then, list):
        return [reword(each) for each in then]
    if isinstance(then, dict):
        return {key: reword(value) for key, value in then.items()}
    for old, new in REWORDED if isinstance(then, str) else ():
        then = then.replace(old, new)
    return then


def unsaid(reason: Any) -> bool:
    """Whether schema 1 gave no reason of its own."""
    return reason in (None, "not measured", "schema 1 does not tell it", "there is no speed-up")


def test_a_run_says_the_same_in_both_schemas(project: Project) -> None:
    """Green, red, undrafted, dead, sampled, under open loads and swept, by a clock that is the same everywhere."""
    then, now = json.loads(THEN.read_text("utf-8")), every_record(project)
    found = {name: sorted(differences(to_json(from_json(then[name])), now[name])) for name in then}
    assert found == {name: [] for name in now}
