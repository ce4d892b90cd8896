"""A figure against its baseline run: three outcomes, by the interval of the change, and what that interval is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.saved_runs.made import figure, record, seconds, timed

from pytest_specdec.history.compare import (
    ALARM_LEVEL,
    FEWEST,
    Outcome,
    compare_figure,
    in_words,
    own_width,
    pooled_percentile,
    ratio_of_totals,
)
from pytest_specdec.record import Record
from pytest_specdec.record.parts import ChangePart
from pytest_specdec.report.findings import verdict_of
from pytest_specdec.thresholds import METRICS, SHOWN, Threshold

REPEATS = 400
SPREAD = 0.03
ROUNDS = 16


def change(now: Record, then: Record, written: str) -> ChangePart:
    """The change of the threshold's metric."""
    found = compare_figure(now, then, Threshold.parse(written))
    assert found is not None
    return found


def of_rates(
    now: float, then: float, written: str = "tokens_per_second:5%", rounds: int = ROUNDS, seed: int = 1
) -> ChangePart:
    """Of two runs whose rounds take these seconds on average."""
    return change(record(seconds(now, 0.01, rounds, seed)), record(seconds(then, 0.01, rounds, seed + 10_000)), written)


def test_a_slowdown_beyond_the_threshold_is_worse() -> None:
    """Ten per cent slower by sixteen rounds that scatter by one."""
    found = of_rates(now=1 / 0.9, then=1.0)
    assert found.outcome == Outcome.WORSE
    assert found.low is not None
    assert found.high is not None
    assert found.low < -0.10 < found.high < -0.05


def test_what_differs_by_rounding_alone_is_the_same() -> None:
    """Of the same run the bounds of an interval may be a hair above 0."""
    same, worse = (
        ChangePart(metric="ttft_p99", outcome=Outcome.SHOWN, change=low, low=low, high=high)
        for low, high in ((1e-16, 1e-16), (0.01, 0.02))
    )
    assert (verdict_of(same), verdict_of(worse)) == ("same", "worse")


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(-0.04, 0.049, "same"), (-0.06, 0.01, "undecided"), (-0.01, 0.06, "undecided"), (-0.02, -0.01, "better")],
)
def test_the_same_is_only_what_cannot_have_changed_by_much(low: float, high: float, told: str) -> None:
    """An interval that holds 0 and large changes says nothing."""
    change = ChangePart(metric="ttft_p99", outcome=Outcome.SHOWN, change=(low + high) / 2, low=low, high=high)
    assert verdict_of(change) == told


@pytest.mark.parametrize(("differ", "told"), [(0.02, "better"), (0.06, "undecided")])
def test_what_sessions_of_the_same_code_differ_by_is_neither_better_nor_worse(differ: float, told: str) -> None:
    change = ChangePart(metric="ttft_p99", outcome=Outcome.SHOWN, change=-0.05, low=-0.06, high=-0.04)
    assert verdict_of(replace(change, sessions_differ=differ)) == told


def test_no_bound_of_a_change_lies_below_nothing() -> None:
    """Rounds of which one took fifty times as long, on either side: nothing falls by more than all of it."""
    held_up, sound = record([1.0, 1.0, 1.0, 50.0]), record([1.0, 1.02, 0.98, 1.0])
    for now, then in ((held_up, sound), (sound, held_up)):
        for name in ("tokens_per_second", "joules_per_token", "ttft_p99"):
            found = change(now, then, f"{name}:5%")
            assert found.low is not None
            assert found.high is not None
            assert found.change is not None
            assert -1 < found.low < found.change < found.high
    known = own_width(ratio_of_totals([1.0] * 4, [1.0, 1.0, 1.0, 50.0]))  # type: ignore[arg-type]
    assert known is not None
    assert known > 0.5


@pytest.mark.parametrize(
    ("now", "outcome"),
    [((1.9, 1.5, 2.4), "better or same"), ((1.6, 1.2, 2.1), "inconclusive"), ((1.0, 0.95, 1.05), "worse")],
)
def test_a_speedup_is_held_against_the_threshold_by_both_intervals(now: tuple[float, ...], outcome: str) -> None:
    """No rounds of it are kept, and its interval is."""
    ours, theirs = (
        record(speedup={"ratio": figure(ratio), "interval": figure([low, high])})
        for ratio, low, high in (now, (1.9, 1.8, 2.0))
    )
    found = change(ours, theirs, "speedup:30%")
    assert found.outcome == outcome
    assert found.low is not None
    assert found.low < found.change < found.high
    assert change(record(speedup={"ratio": figure(1.0)}), theirs, "speedup:30%").why.startswith(
        "held against the plain"
    )


def test_what_fell_to_nothing_fell_by_all_of_it() -> None:
    """No logarithm is asked for then, and the gate still finds it; nor where some rounds had nothing."""
    counts = ([0] * 6, [720, 0, 720, 0, 720, 0])
    none, half = (record(throughput={"per_round": {"accepted_tokens": each}}) for each in counts)
    found = change(none, record(), "acceptance_rate:5%")
    assert (found.change, found.low, found.high, found.outcome) == (-1.0, -1.0, -1.0, Outcome.WORSE)
    found = change(half, record(), "acceptance_rate:5%")
    assert found.low is not None
    assert found.low >= -1


def test_the_same_is_good_and_so_is_better() -> None:
    """Which way is better is the metric's own: more tokens/s, fewer seconds, fewer joules."""
    assert of_rates(now=1.0, then=1.0).outcome == Outcome.GOOD
    assert of_rates(now=0.8, then=1.0).outcome == Outcome.GOOD
    assert of_rates(now=1.2, then=1.0, written="joules_per_token:5%").outcome == Outcome.WORSE
    assert of_rates(now=0.8, then=1.0, written="joules_per_token:5%").outcome == Outcome.GOOD
    assert of_rates(now=1.2, then=1.0, written="ttft_p99:1ms").outcome == Outcome.WORSE
    assert of_rates(now=1.2, then=1.0, written="ttft_p99:10ms").outcome == Outcome.GOOD


@pytest.mark.parametrize(("waited", "told"), [((0.2, 0.0), True), ((0.2, 0.19), False), ((0.0, 0.2), False)])
def test_a_slowdown_tells_that_the_engine_waited_for_a_core(waited: tuple[float, float], told: bool) -> None:
    """It is worse all the same: whether other work or threads of its own had the core is not known."""
    now, then = (
        record(seconds(mean, 0.01, ROUNDS, seed), throughput={"waited_for_cores": figure(share)})
        for mean, seed, share in zip((1 / 0.85, 1.0), (1, 10_001), waited, strict=True)
    )
    found = change(now, then, "tokens_per_second:5%")
    words = "worse; the engine waited for a core in 20% of the time that it wanted one, 0% then: was the machine busy?"
    assert (words in in_words(found), found.outcome) == (told, Outcome.WORSE)
    assert change(now, record(seconds(1.0, 0.01, ROUNDS, 10_001)), "tokens_per_second:5%").why == ""


def test_near_the_threshold_the_rounds_do_not_decide_and_it_is_said_how_many_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That many rounds then do, where sessions of the same code do not differ."""
    monkeypatch.setattr("pytest_specdec.history.compare.sessions_differ", lambda earlier: 0.0)
    base, now = seconds(1.0, 0.10, 5, 3), seconds(1.03, 0.10, 5, 4)
    found = change(record(now), record(base), "tokens_per_second:5%")
    assert found.outcome == Outcome.INCONCLUSIVE
    assert found.wanted is not None
    assert found.wanted > 5
    assert "rounds on each side would decide, there were 5" in in_words(found)
    more = found.wanted * 2
    decided = change(record(seconds(1.03, 0.10, more, 5)), record(seconds(1.0, 0.10, more, 6)), "tokens_per_second:5%")
    assert decided.outcome == Outcome.GOOD


def test_too_few_rounds_are_inconclusive_whatever_they_say() -> None:
    """Three against three lie apart by chance in one case of 20."""
    found = change(record([2.0] * 3), record([1.0] * 3), "tokens_per_second:5%")
    assert (found.outcome, found.low, found.wanted) == (Outcome.INCONCLUSIVE, None, FEWEST)
    assert "at least 4 are needed on each side" in in_words(found)


def test_a_figure_without_values_for_each_round_is_held_against_the_plain_threshold_and_that_is_said() -> None:
    """The ITL's percentiles are over too many tokens to be kept."""
    now = record(latency={"itl_s": {"p50": 0.002, "p99": 0.006}})
    found = change(now, record(), "itl_p99:10%")
    assert (found.outcome, found.low) == (Outcome.WORSE, None)
    assert "no value of it for each round, so it has no interval" in in_words(found)


def test_a_figure_that_one_side_lacks_is_missing_with_its_reason() -> None:
    """Never a pass, and never zero."""
    now = record(energy={"joules_per_token": figure(None, "no RAPL"), "joules_each_round": None})
    found = change(now, record(), "joules_per_token:5%")
    assert (found.outcome, found.why) == (Outcome.MISSING, "this run has no joules_per_token: no RAPL")
    found = change(record(), now, "joules_per_token:5%")
    assert found.why == "the baseline run has no joules_per_token: no RAPL"


def test_the_target_alone_has_no_acceptance_to_compare() -> None:
    """There is nothing to say, rather than something missing."""
    alone = record(asked={"method": "none"}, acceptance={"mean_accepted_length": figure(None), "drafts": figure(None)})
    assert compare_figure(alone, alone, Threshold.parse("mean_accepted_length:5%")) is None


def test_without_thresholds_changes_are_shown_and_nothing_fails() -> None:
    """However large they are."""
    slow, base = record([2.0] * 6), record()
    assert {compare_figure(slow, base, each).outcome for each in SHOWN} == {Outcome.SHOWN}  # type: ignore[union-attr]


def test_the_same_rounds_give_the_same_interval() -> None:
    """The resampling is seeded."""
    assert of_rates(1.1, 1.0) == of_rates(1.1, 1.0)


def test_the_pooled_percentile_is_numpy_s() -> None:
    """Also where a round is drawn twice."""
    import numpy

    rounds = [[0.3, 0.1, 0.2], [0.5, 0.4], [0.9, 0.8, 0.7, 0.6]]
    sample = pooled_percentile(rounds, 99)
    assert sample is not None
    assert sample.figure == pytest.approx(numpy.quantile(numpy.concatenate(rounds), 0.99))
    drawn = sample.drawn(numpy.array([[2, 0, 1], [1, 1, 1]]))
    twice = numpy.quantile(rounds[0] * 2 + rounds[2], 0.99)
    assert list(drawn) == pytest.approx([twice, sample.figure])


def test_a_figure_is_a_ratio_of_totals() -> None:
    """Not a mean of the rounds' ratios."""
    sample = ratio_of_totals([1, 3], [1, 1])
    assert sample is not None
    assert sample.figure == 2.0
    assert ratio_of_totals([1, 2], [1, 0]) is None
    assert ratio_of_totals([1, 2], [1]) is None


def alarms(slowdown: float, threshold: str, rounds: int) -> tuple[int, int]:
    """How many of REPEATS comparisons say worse, and how many good."""
    told = [of_spread(seed, slowdown, threshold, rounds).outcome for seed in range(REPEATS)]
    return told.count(Outcome.WORSE), told.count(Outcome.GOOD)


def of_spread(seed: int, slowdown: float, threshold: str, rounds: int) -> ChangePart:
    """Of two runs with the scatter of a real machine, 3 % a round."""
    now = seconds(1 / (1 - slowdown), SPREAD, rounds, 2 * seed)
    return change(timed(now), timed(seconds(1.0, SPREAD, rounds, 2 * seed + 1)), threshold)


@pytest.mark.parametrize("rounds", [4, 8])
def test_false_alarms_are_as_rare_as_stated(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run exactly at the threshold, the hardest that is not worse, alarms no more often than ALARM_LEVEL; an
    unchanged one never did. Three standard errors of the repeats are granted; by the rounds alone."""
    monkeypatch.setattr("pytest_specdec.history.compare.RESAMPLES", 2000)
    monkeypatch.setattr("pytest_specdec.history.compare.sessions_differ", lambda earlier: 0.0)
    allowed = REPEATS * ALARM_LEVEL + 3 * (REPEATS * ALARM_LEVEL * (1 - ALARM_LEVEL)) ** 0.5
    at_the_threshold, _ = alarms(0.05, "tokens_per_second:5%", rounds)
    unchanged, _ = alarms(0.0, "tokens_per_second:5%", rounds)
    assert at_the_threshold <= allowed
    assert unchanged == 0


def test_a_plain_percentile_interval_would_alarm_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """With four rounds: what the expanded tails are for, and what the test above would find."""
    monkeypatch.setattr("pytest_specdec.history.compare.RESAMPLES", 2000)
    monkeypatch.setattr("pytest_specdec.history.compare.stretch", lambda *series: 1.0)
    monkeypatch.setattr("pytest_specdec.history.compare.sessions_differ", lambda earlier: 0.0)
    expanded, _ = alarms(0.05, "tokens_per_second:5%", 4)
    monkeypatch.setattr("pytest_specdec.history.compare.expanded_tail", lambda rounds: ALARM_LEVEL)
    at_the_threshold, _ = alarms(0.05, "tokens_per_second:5%", 4)
    assert at_the_threshold > 2 * REPEATS * ALARM_LEVEL > expanded


def test_a_slowdown_beyond_what_sessions_differ_by_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """15 % by sixteen rounds that scatter by 3 %, against a threshold of 5 %, in 95 % of the cases; never passed."""
    monkeypatch.setattr("pytest_specdec.history.compare.RESAMPLES", 2000)
    found, passed = alarms(0.15, "tokens_per_second:5%", ROUNDS)
    assert found >= 0.95 * REPEATS
    assert passed == 0


def test_every_metric_has_a_direction_and_is_in_the_record_or_missing() -> None:
    """No metric is passed over."""
    for name in METRICS:
        assert compare_figure(record(), record(), Threshold.parse(f"{name}:5%")) is not None
