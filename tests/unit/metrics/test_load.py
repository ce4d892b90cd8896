"""An open load's rates and lags, to the digit; what is off is flagged, what does not compare is not compared."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pytest_specdec.generation import Chunk, Generation, Run
from pytest_specdec.metrics.load import NO_MOMENTS, RATE_BOUND, Flow, load_part, paces, rate_bound
from pytest_specdec.metrics.rounds import IS_BASELINE, Contradiction, Rounds
from pytest_specdec.metrics.speed import NO_TIMES, held_up_s, latency_part, queue_s, refuse_contradictions, ttft_s
from pytest_specdec.metrics.speedup import Arm, speedup_part
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import LoadPart, PointPart, VerdictPart
from pytest_specdec.run.judgement import Judgement
from pytest_specdec.run.measure import NEVER_SUSTAINED, NOT_SATURATED, Curve
from pytest_specdec.workloads.scenario import Scenario, load_scenario

OPEN = 'load = { kind = "open", rate = 2.0, arrivals = "constant", max_seconds = 1.5 }'


def answer(
    due: float | None, *chunks: tuple[float, int], sent: float | None = None, error: str | None = None
) -> Generation:
    """A request that was due, was sent then or at `sent`, and got these chunks."""
    tokens = tuple(range(sum(tokens for _, tokens in chunks)))
    started = due if sent is None else sent
    return Generation((7,), tokens, "length", tuple(Chunk(*each) for each in chunks), None, started, due, error)


def rounds(*answers: Generation, seconds: float = 10.0) -> Rounds:
    return Rounds((Run(answers, None, seconds),), (seconds,))


def evenly(took: float, grows: float = 0.0, count: int = 5, lag: float = 0.0) -> Rounds:
    """Two requests a second, each answered in `took` seconds, and each `grows` later than the one before."""
    return rounds(
        *(
            answer(at / 2, (at / 2 + took / 2, 1), (at / 2 + took + at * grows, 1), sent=at / 2 + lag)
            for at in range(count)
        )
    )


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """Five requests at 2/s, of which four are due within 1.5 s."""
    (tmp_path / "x.toml").write_text(f'source = {{ format = "random", length = 4 }}\ncount = 5\nmax_tokens = 2\n{OPEN}')
    return load_scenario(tmp_path / "x.toml")


def part(scenario: Scenario, mine: Rounds, base: Rounds | None = None) -> LoadPart:
    return load_part(scenario, mine, base)


def test_a_long_latency_lowers_no_rate() -> None:
    """All take 3 s: two a second are asked, sent and completed."""
    flow = Flow.of(evenly(3.0))
    assert (flow.asked, flow.sent, flow.completed, flow.sustained) == (2.0, 2.0, 2.0, True)


def test_a_latency_that_grows_does() -> None:
    """Each takes half a second longer than the one before: one a second is completed."""
    flow = Flow.of(evenly(1.0, grows=0.5))
    assert (flow.asked, flow.sent, flow.completed, flow.sustained) == (2.0, 2.0, 1.0, False)


def test_answers_that_end_together_are_completed_no_faster_than_asked() -> None:
    """All end at 4 s, whenever they came: by the time between their ends they would be infinitely fast."""
    flow = Flow.of(rounds(*(answer(at / 2, (4.0, 2)) for at in range(5))))
    assert (flow.asked, flow.completed) == (2.0, 2.0)
    slower_at_first = rounds(answer(0.0, (3.0, 1)), answer(0.5, (3.1, 1)), answer(1.0, (3.2, 1)), answer(1.5, (2.5, 1)))
    assert Flow.of(slower_at_first).completed == pytest.approx(3 / (3.2 - 1.0))


@pytest.mark.parametrize(("grows", "sustained"), [(0.026, True), (0.027, False)])
def test_a_rate_is_sustained_from_95_percent_on(grows: float, sustained: bool) -> None:
    """1.901 and 1.898 of 2 requests a second."""
    assert Flow.of(evenly(1.0, grows)).sustained is sustained


def test_a_load_is_too_short_where_the_latency_of_a_sustained_rate_would_look_like_falling_behind() -> None:
    """Answers that come in 0.1 s behind two seconds of load are 95 %; behind one second they would not be."""
    kept_up, shorter = Flow.of(evenly(1.0, grows=0.025)), Flow(4.0, 4.0, 3.0, load_s=1.0)
    assert (kept_up.load_s, kept_up.behind_s) == (2.0, pytest.approx(0.1))
    assert replace(shorter, load_s=1.91).too_short_beside(kept_up) is None
    assert replace(shorter, behind_s=1.01).too_short_beside(kept_up) is None
    assert shorter.too_short_beside(kept_up) == (
        "inconclusive: 4 requests/s for 1 s is too short a load: at 2 requests/s, which were sustained, answers came "
        "in 0.1 s behind; give at least 9 requests"
    )


def of_lengths(*took: float, grows: float = 0.0) -> Rounds:
    """Two requests a second, answered in these seconds, each `grows` later than the one before."""
    each = (
        answer(at / 2, (at / 2 + 0.1, 1), (at / 2 + seconds + at * grows, 1), sent=at / 2)
        for at, seconds in enumerate(took)
    )
    return rounds(*each)


def test_answers_of_many_lengths_are_no_sign_of_falling_behind() -> None:
    """The last one is long and nothing piles up; where each takes longer than the one before, something does."""
    lengths = (1.0, 0.2, 0.9, 0.3, 1.0, 0.4, 0.2, 0.8, 1.1)
    flow = Flow.of(of_lengths(*lengths))
    assert (flow.sustained, flow.behind_s) == (False, pytest.approx(0.9))
    assert flow.too_short_alone == (
        "inconclusive: 2 requests/s for 4 s is too short a load: answers came in 0.9 s behind, and later ones took 0 s "
        "longer than earlier ones, too little for an engine that falls behind; give at least 36 requests"
    )
    assert Flow.of(of_lengths(*lengths, grows=0.2)).too_short_alone is None
    assert Flow.of(evenly(1.0, grows=0.03)).too_short_alone is None
    assert Flow.of(evenly(1.0)).too_short_alone is None
    assert Flow.of(of_lengths(1.0, 1.2)).too_short_alone is None  # of two nothing is known to grow
    assert replace(flow, behind_s=4.01).too_short_alone is None


def test_of_several_rounds_it_is_asked_of_the_one_that_is_furthest_behind() -> None:
    """Three that keep up do not hide that one fell behind."""
    fell, kept = evenly(1.0, grows=0.5).runs, evenly(1.0).runs
    flow = Flow.of(Rounds((*kept, *fell, *kept, *kept), (10.0,) * 4))
    assert flow.behind_s == pytest.approx(2.0)
    assert flow.too_short_alone is None


def test_a_speed_up_is_not_told_of_a_load_that_is_too_short_to_know() -> None:
    """Either arm's rate is the load's, or nobody knows whether it is."""
    short = of_lengths(1.0, 0.2, 0.9, 0.3, 1.0, 0.4, 0.2, 0.8, 1.1)
    assert str(rate_bound(short, short)).startswith("inconclusive: 2 requests/s for 4 s is too short a load")
    assert rate_bound(evenly(1.0, grows=0.5), evenly(1.0, grows=0.5)) is None


def test_a_rate_is_a_ratio_of_totals_over_rounds() -> None:
    """Four gaps in 2 s, and one in 2 s."""
    two = Rounds((*evenly(1.0).runs, Run((answer(0.0, (1.0, 1)), answer(2.0, (3.0, 1))), None, 4.0)), (10.0, 4.0))
    assert Flow.of(two).asked == 5 / 4


def test_what_has_no_moments_has_no_rate() -> None:
    assert Flow.of(rounds(answer(0.0, (1.0, 1)))) == Flow(None, None, None)
    assert Flow.of(rounds(answer(None, (1.0, 1), sent=0.0), answer(None, (2.0, 1), sent=1.0))) == Flow(
        None, 1.0, 1.0, 1.0
    )


def test_a_failed_request_was_sent_and_not_completed() -> None:
    failing = (answer(1.5, error="503"), answer(2.0, error="503"))
    flow = Flow.of(rounds(*evenly(1.0).runs[0].generations[:3], *failing))
    assert (flow.asked, flow.sent, flow.completed) == (2.0, 2.0, 2.0)


def each_second(apart: bool, took: float = 0.5, count: int = 5) -> Rounds:
    """Two requests a second are due, one is sent; each is answered `took` seconds later, or when the one before is."""
    ends = [0.0]
    for at in range(count):
        ends.append(max(float(at), ends[-1]) + took)
    answers = tuple(answer(at / 2, (end, 2), sent=float(at)) for at, end in enumerate(ends[1:]))
    return Rounds((Run(answers, None, 10.0, sent_apart=apart),), (10.0,))


def test_a_rate_that_the_machine_did_not_send_is_inconclusive() -> None:
    """All that was sent was answered at once; the words give both rates, and by how much it was late."""
    flow = Flow.of(each_second(apart=True))
    assert (flow.asked, flow.sent, flow.completed, flow.at_best) == (2.0, 1.0, 1.0, 2.0)
    assert (flow.sustained, flow.sustained_at_best) == (False, True)
    assert flow.doubt == "inconclusive: asked 2 requests/s, this machine sent 1, up to 2 s late"


def test_an_engine_that_falls_behind_what_was_sent_is_not_excused_by_the_machine() -> None:
    """It takes 3 s for each: two seconds sooner it would still complete less than was asked."""
    flow = Flow.of(each_second(apart=True, took=3.0))
    assert (flow.completed, flow.at_best) == (pytest.approx(4 / 12), pytest.approx(4 / 10))
    assert (flow.sustained, flow.sustained_at_best) == (False, False)


@pytest.mark.parametrize(("took", "excused"), [(0.5, True), (1.0, False)])
def test_an_engine_that_sends_itself_is_excused_only_while_it_had_nothing_to_do(took: float, excused: bool) -> None:
    """Busy for half of each second, it could have been sent more; busy throughout, it is itself why no more was."""
    assert Flow.of(each_second(apart=False, took=took)).sustained_at_best is excused


def test_a_stall_while_the_engine_was_idle_is_told_to_the_moment() -> None:
    """Due at 2 s and sent at 5 s, with another request under way until 3 s: two seconds are the machine's."""
    (run,) = rounds(answer(0.0, (3.0, 1)), answer(2.0, (6.0, 1), sent=5.0)).runs
    assert held_up_s(run) == 2.0
    assert held_up_s(replace(run, sent_apart=True)) == 3.0


UNKNOWN = "inconclusive: asked "


@pytest.mark.parametrize(
    ("sustained", "saturation"),
    [
        ([True, True], (None, NOT_SATURATED)),
        ([True, False], (1.0, None)),
        ([False, False], (None, NEVER_SUSTAINED)),
        ([True, None], (None, f"{UNKNOWN}2")),
        ([True, None, False], (None, f"{UNKNOWN}2")),
        ([None, None, False], (None, f"{UNKNOWN}1")),
        ([True, False, None], (1.0, None)),
        ([None, True, False], (2.0, None)),
        ([False, None], (None, NEVER_SUSTAINED)),
        ([False, True], (None, NOT_SATURATED)),
    ],
)
def test_an_inconclusive_rate_decides_only_next_to_the_highest_sustained_one(
    sustained: list[bool | None], saturation: tuple[float | None, str | None]
) -> None:
    """Below it the engine has kept up with more; above one that was not sustained nothing is asked."""
    rates = {float(rate): held for rate, held in enumerate(sustained, start=1)}
    points = {rate: PointPart(asked=rate, sustained=held, reason=f"{UNKNOWN}{rate:g}") for rate, held in rates.items()}
    sound = Judgement(VerdictPart(outcome="identical"))
    assert Curve(points, dict.fromkeys(rates, sound)).saturation == Figure(*saturation)


def test_a_rate_that_is_sustained_needs_no_excuse() -> None:
    """However late a request was sent."""
    late = Flow.of(rounds(*(answer(at / 2, (at / 2 + 1, 1), sent=at / 2 + 0.4) for at in range(5))))
    assert (late.sustained, late.completed) == (True, 2.0)


def test_the_record_of_an_open_load(scenario: Scenario) -> None:
    """What was asked, what became of it, and how many requests were not due in time."""
    load = part(scenario, evenly(3.0, count=4, lag=0.001))
    lags = dict.fromkeys(("p50", "p90", "p99", "max"), pytest.approx(0.001))
    rates = (load.asked_per_second, load.sent_per_second, load.completed_per_second)
    assert (load.played["kind"], load.played["rate"], load.played["arrivals"]) == ("open", 2.0, "constant")
    assert load.requests_left_out == 1
    assert [rate.value for rate in rates] == pytest.approx([2.0, 2.0, 2.0])
    assert (asdict(load.send_lag_s.value), load.flags) == (lags, ())
    assert load.latency_over_target == Figure(None, IS_BASELINE)


def test_latencies_stand_beside_the_targets(scenario: Scenario) -> None:
    """A third of the time, by percentile."""
    load = part(scenario, evenly(1.0), evenly(3.0))
    assert load.latency_over_target.value == {
        name: {"p50": pytest.approx(1 / 3), "p99": pytest.approx(1 / 3)} for name in ("ttft_s", "tpot_s", "e2e_s")
    }


def test_an_engine_that_does_not_stream_has_no_completed_rate(scenario: Scenario) -> None:
    load = part(scenario, rounds(answer(0.0), answer(1.0)))
    assert load.completed_per_second == Figure(None, NO_TIMES)


def test_a_load_without_moments_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('source = { format = "random", length = 4 }\ncount = 5\nmax_tokens = 2')
    load = part(load_scenario(tmp_path / "x.toml"), rounds(answer(None, (1.0, 1), sent=0.0)))
    assert (load.played["kind"], load.flags) == ("closed", ())
    assert load.asked_per_second == load.sent_per_second == load.send_lag_s == Figure(None, NO_MOMENTS)
    assert load.latency_over_target == Figure(None, NO_MOMENTS)


@pytest.mark.parametrize(("lag", "flagged"), [(0.0049, 0), (0.0051, 1)])
def test_a_lag_is_flagged_past_5_ms(scenario: Scenario, lag: float, flagged: int) -> None:
    told = part(scenario, evenly(1.0, lag=lag)).flags
    assert len(told) == flagged
    assert all("p99 of the send lag 5.1 ms, more than 5 ms" in each for each in told)


@pytest.mark.parametrize(("last", "flagged"), [(2.019, 0), (2.021, 1)])
def test_a_rate_is_flagged_past_1_percent(scenario: Scenario, last: float, flagged: int) -> None:
    """Four gaps in 2.019 or 2.021 s instead of 2 s."""
    answers = [*evenly(1.0).runs[0].generations[:-1], answer(2.0, (4.0, 1), sent=last)]
    told = [each for each in part(scenario, rounds(*answers)).flags if each.startswith("asked")]
    assert told == ["asked 2 requests/s, sent 1.979: off by -1.0%, more than 1%"] * flagged


def test_time_counts_from_the_moment_a_request_was_due() -> None:
    """Sent 4 s late, it waited 4 s longer; the queue is that lag, not the time since the run began."""
    late = answer(1.0, (6.0, 1), sent=5.0)
    assert (ttft_s(late), queue_s(late)) == (5.0, 4.0)
    assert latency_part(rounds(late)).queue_s.p50 == 4.0


def test_a_failed_request_has_no_latency_and_moves_no_percentile() -> None:
    """Even if it got a token first."""
    whole, failed = answer(0.0, (1.0, 1)), answer(0.0, (9.0, 1), error="the connection was closed")
    assert latency_part(rounds(whole, failed)) == latency_part(rounds(whole, seconds=1.0))


def test_a_request_cannot_be_sent_before_it_is_due() -> None:
    """Or the schedule was not kept, and every latency would be wrong."""
    with pytest.raises(Contradiction, match=r"round 1, request 0: sent at 0\.5 s, but due at 1 s only"):
        refuse_contradictions(rounds(answer(1.0, (2.0, 1), sent=0.5)), 1)
    refuse_contradictions(rounds(answer(1.0, (2.0, 1), sent=0.9995), seconds=2.0), 1)


def test_littles_law_holds_for_what_waits_from_the_moment_it_was_due() -> None:
    """Ten that are due together and answered one a second wait 5.5 s each; of one alone that would be refused."""
    answers = [answer(0.0, (at + 1.0, 1), sent=float(at)) for at in range(10)]
    refuse_contradictions(rounds(*answers), 10)
    assert latency_part(rounds(*answers)).e2e_s.p50 == 5.5
    with pytest.raises(Contradiction, match=r"latencies need a concurrency of 5\.5"):
        refuse_contradictions(rounds(*answers), 1)


def test_below_saturation_there_is_no_speedup() -> None:
    """Both arms complete what is asked: tokens/s is the load's, whatever the engine could do."""
    told = speedup_part(Arm(evenly(1.0), 3, "bfloat16"), Arm(evenly(3.0), 0, "bfloat16"))
    assert told.ratio == Figure(None, RATE_BOUND)


def test_one_arm_that_keeps_up_is_enough_to_bind() -> None:
    told = speedup_part(Arm(evenly(1.0), 3, "bfloat16"), Arm(evenly(3.0, grows=0.5), 0, "bfloat16"))
    assert told.ratio == Figure(None, RATE_BOUND)


def test_speeds_do_not_compare_where_the_machine_did_not_send_the_load() -> None:
    """Then tokens/s is the machine's, whatever the engine could do."""
    told = speedup_part(Arm(each_second(apart=True), 3, "bfloat16"), Arm(evenly(3.0, grows=1.0), 0, "bfloat16"))
    assert told.ratio == Figure(None, "inconclusive: asked 2 requests/s, this machine sent 1, up to 2 s late")


def test_past_saturation_both_run_at_their_own_speed() -> None:
    """Then tokens/s compare as under a closed load."""
    ours, base = evenly(1.0, grows=0.5), evenly(3.0, grows=1.0)
    base = Rounds(base.runs, (20.0,))
    assert speedup_part(Arm(ours, 3, "bfloat16"), Arm(base, 0, "bfloat16")).ratio.value == 2.0


def test_rounds_of_an_open_load_are_told_apart_by_how_long_answers_take() -> None:
    """The load sets tokens/s: two rounds alike in those may differ twofold in latency, and rounds go on until that is
    known; a closed load's rounds are told apart by tokens/s."""
    runs = (*evenly(1.0).runs, *evenly(2.0).runs)
    assert paces(Rounds(runs, (10.0, 10.0))) == (1.0, 0.5)
    closed = Rounds(tuple(replace(run, generations=tuple(map(at_once, run.generations))) for run in runs), (10.0, 5.0))
    assert paces(closed) == closed.rates


def at_once(answer: Generation) -> Generation:
    """The same answer to a request that no schedule holds back."""
    return replace(answer, scheduled_s=None)
