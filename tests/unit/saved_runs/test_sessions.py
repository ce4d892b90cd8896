"""How far sessions of the same code differ, and what is held against what under an open load."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from tests.unit.saved_runs.made import figure, record, seconds, timed

from pytest_specdec.history.compare import LOAD_SETS, Outcome, compare_figure, in_words
from pytest_specdec.metrics.rounds import sessions_differ
from pytest_specdec.record.parts import ChangePart
from pytest_specdec.thresholds import Threshold

THRESHOLD = Threshold.parse("tokens_per_second:5%")
SCATTER = 0.025
REPEATS = 400


def test_one_earlier_session_is_worth_what_others_showed() -> None:
    """2.5 % with 19 degrees of freedom: 2.539 · 2.5 % · √2, from a table of t."""
    assert sessions_differ([100.0]) == pytest.approx(2.5395 * 0.025 * math.sqrt(2), abs=1e-5)


def test_many_earlier_sessions_tell_how_far_they_differ_here() -> None:
    """Equal ones make it smaller; ones that scatter by a tenth make it as large as that asks for: four and more by
    themselves, with t of their own number."""
    assert sessions_differ([100.0] * 8) < 0.06
    assert sessions_differ([100.0, 110.0] * 4) > 0.10
    scatter = math.log(1.1) / math.sqrt(3) * math.sqrt(5 / 4)  # of four, and of the mean of them
    assert sessions_differ([100.0, 110.0] * 2) == pytest.approx(4.5407 * scatter, abs=1e-4)


def alarms(slowdown: float, earlier: int, scatter: float = SCATTER) -> int:
    """How many of REPEATS sessions of the same code, slower by so much, are said to be worse than the earlier ones."""
    draw = random.Random(7)

    def session(mean: float = 1.0) -> list[float]:
        return seconds(mean * math.exp(scatter * draw.gauss(0, 1)), 0.01, 6, draw.randrange(10**9))

    def told() -> str:
        then, *before = (timed(session()) for _ in range(earlier))
        found = compare_figure(timed(session(1 / (1 - slowdown))), then, THRESHOLD, before)
        assert found is not None
        return "worse" if found.outcome == Outcome.WORSE or found.wanted is not None else found.outcome

    return [told() for _ in range(REPEATS)].count("worse")


@pytest.mark.parametrize("earlier", [1, 5])
def test_fewer_than_one_in_a_hundred_sessions_of_the_same_code_alarms(
    earlier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that scatter by 2.5 %, rounds by 1 %, at a threshold of 5 %: no failure, for want of rounds either."""
    monkeypatch.setattr("pytest_specdec.history.compare.RESAMPLES", 500)
    assert alarms(0.0, earlier) <= REPEATS // 100
    assert alarms(0.2, earlier) >= 0.95 * REPEATS


@pytest.mark.parametrize(
    ("scatter", "earlier", "told"), [(0.05, 1, 1 / 13), (0.05, 3, 1 / 40), (0.1, 1, 1 / 4), (0.1, 3, 1 / 20)]
)
def test_where_sessions_scatter_by_more_few_earlier_ones_alarm_more_often(
    scatter: float, earlier: int, told: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is why a line says that it is assumed how far they differ; docs/history.md tells these shares."""
    monkeypatch.setattr("pytest_specdec.history.compare.RESAMPLES", 500)
    assert alarms(0.0, earlier, scatter) / REPEATS == pytest.approx(told, rel=0.5)


def test_many_earlier_sessions_that_scatter_widely_alarm_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_specdec.history.compare.RESAMPLES", 500)
    assert alarms(0.0, 8, 0.1) <= 0.02 * REPEATS


def test_by_rounds_alone_it_would_alarm_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sessions' part is for."""
    monkeypatch.setattr("pytest_specdec.history.compare.RESAMPLES", 500)
    monkeypatch.setattr("pytest_specdec.history.compare.sessions_differ", lambda earlier: 0.0)
    assert alarms(0.0, 1) > REPEATS // 20


def under_load(slower: float, **load: Any) -> ChangePart:
    """A run whose rounds take as long, since the load sets them, and whose answers take so much longer."""
    asked = {"asked_per_second": figure(10.0), "completed_per_second": figure(9.9), **load}
    lines = ["1000 1010 1020 1030"] * 6
    longer = [" ".join(str(round(float(each) * slower)) for each in line.split()) for line in lines]
    now, then = (
        record(
            load=asked,
            throughput={"per_round": {**_rounds(), "e2e_us": e2e}},
            latency={"e2e_s": {"p50": float(e2e[0].split()[1]) / 1e6, "n": 24}},
        )
        for e2e in (longer, lines)
    )
    found = compare_figure(now, then, THRESHOLD)
    assert found is not None
    return found


def _rounds() -> dict[str, Any]:
    return {"tokens": [1024] * 6, "seconds": [1.0] * 6}


def test_under_an_open_load_latency_is_held_against_the_threshold_of_tokens_per_second() -> None:
    """Answers that take 26 % longer at the same tokens/s are worse, and it is said what was compared."""
    found = under_load(1.26)
    assert (found.metric, found.outcome) == ("e2e_p50", "worse")
    assert LOAD_SETS in in_words(found)
    assert under_load(1.0).outcome == "better or same"


def test_an_open_load_that_the_engine_does_not_keep_up_with_has_tokens_per_second_of_its_own() -> None:
    """Past saturation the engine sets them."""
    assert under_load(1.26, completed_per_second=figure(5.0)).metric == "tokens_per_second"
