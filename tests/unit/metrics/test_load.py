"""An open load's rates and lags, to the digit; what is off is flagged, what does not compare is not compared."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from pytest_specdec.generation import Chunk, Generation, Run
from pytest_specdec.metrics.contradiction import Contradiction
from pytest_specdec.metrics.latency import NO_TIMES, latency_part, queue_s, refuse_contradictions, ttft_s
from pytest_specdec.metrics.load import NO_MOMENTS, NO_TARGET, RATE_BOUND, Flow, load_part
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.metrics.speedup import Arm, speedup_part
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import LoadPart
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


def test_a_rate_is_a_ratio_of_totals_over_rounds() -> None:
    """Four gaps in 2 s, and one in 2 s."""
    two = Rounds((*evenly(1.0).runs, Run((answer(0.0, (1.0, 1)), answer(2.0, (3.0, 1))), None, 4.0)), (10.0, 4.0))
    assert Flow.of(two).asked == 5 / 4


def test_what_has_no_moments_has_no_rate() -> None:
    assert Flow.of(rounds(answer(0.0, (1.0, 1)))) == Flow(None, None, None)
    assert Flow.of(rounds(answer(None, (1.0, 1), sent=0.0), answer(None, (2.0, 1), sent=1.0))) == Flow(None, 1.0, 1.0)


def test_a_failed_request_was_sent_and_not_completed() -> None:
    failing = (answer(1.5, error="503"), answer(2.0, error="503"))
    flow = Flow.of(rounds(*evenly(1.0).runs[0].generations[:3], *failing))
    assert (flow.asked, flow.sent, flow.completed) == (2.0, 2.0, 2.0)


def test_the_record_of_an_open_load(scenario: Scenario) -> None:
    """What was asked, what became of it, and how many requests were not due in time."""
    load = part(scenario, evenly(3.0, count=4, lag=0.001))
    lags = dict.fromkeys(("p50", "p90", "p99", "max"), pytest.approx(0.001))
    rates = (load.asked_per_second, load.sent_per_second, load.completed_per_second)
    assert (load.played["kind"], load.played["rate"], load.played["arrivals"]) == ("open", 2.0, "constant")
    assert load.requests_left_out == 1
    assert [rate.value for rate in rates] == pytest.approx([2.0, 2.0, 2.0])
    assert (asdict(load.send_lag_s.value), load.flags) == (lags, ())
    assert load.latency_over_target == Figure(None, NO_TARGET)


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
    with pytest.raises(Contradiction, match=r"latencies need 5\.5 requests at once"):
        refuse_contradictions(rounds(*answers), 1)


def test_below_saturation_there_is_no_speedup() -> None:
    """Both arms complete what is asked: tokens/s is the load's, whatever the engine could do."""
    told = speedup_part(Arm(evenly(1.0), 3, "bfloat16"), Arm(evenly(3.0), 0, "bfloat16"))
    assert told.ratio == Figure(None, RATE_BOUND)


def test_one_arm_that_keeps_up_is_enough_to_bind() -> None:
    told = speedup_part(Arm(evenly(1.0), 3, "bfloat16"), Arm(evenly(3.0, grows=0.5), 0, "bfloat16"))
    assert told.ratio == Figure(None, RATE_BOUND)


def test_past_saturation_both_run_at_their_own_speed() -> None:
    """Then tokens/s compare as under a closed load."""
    ours, base = evenly(1.0, grows=0.5), evenly(3.0, grows=1.0)
    base = Rounds(base.runs, (20.0,))
    assert speedup_part(Arm(ours, 3, "bfloat16"), Arm(base, 0, "bfloat16")).ratio.value == 2.0
