"""Open loads from end to end: moments are kept, goodput is gated, a sweep finds where each arm saturates.

The fake engine serves one request after the other. Eight tokens take 8 s by the target alone, and with γ = 3 and every
draft accepted two rounds of 1.75 s: so it keeps up with 0.125 requests a second, and with 0.2857.
"""

from __future__ import annotations

import json
import re

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import WRONG_TOKEN, both_arms, gate, own_engine

from pytest_specdec.record import Figure, Record

TARGET_ONLY, SPECULATIVE = "test_target_only[t-target-short]", "test_speculative[t-draft_model-g3-short]"
TWELVE = """
source = { format = "random", length = 4 }
count = 12
max_tokens = 8
rounds = 1
"""
CONSTANT = 'load = { kind = "open", arrivals = "constant", rate = '
SWEEP = 'load = { kind = "open", arrivals = "constant", rates = [0.1, 0.2, 0.4] }\n'
FAILS = """
def collect(self):
    run = super().collect()
    if not self.spec.speculates:
        return run
    failed = replace(run.generations[0], token_ids=(), chunks=(), finish_reason=None, error="503 busy")
    return replace(run, generations=(failed, *run.generations[1:]))
"""


def both(project: Project, lines: str) -> tuple[Record, Record]:
    """The records of both arms on twelve requests."""
    project.scenario(TWELVE + lines)
    project.tests(both_arms())
    records = project.records()
    return records[TARGET_ONLY], records[SPECULATIVE]


def test_latencies_under_an_open_load_are_exact(project: Project) -> None:
    """A request each 10 s: the engine is idle in between, so each is served at once; latency shows the speed."""
    target, speculative = both(project, CONSTANT + "0.1 }")
    for record, first, whole in ((target, 1.0, 8.0), (speculative, 1.75, 3.5)):
        assert (record.latency.ttft_s.p50, record.latency.ttft_s.p99) == pytest.approx((first, first))
        assert record.latency.e2e_s.p99 == pytest.approx(whole)
        assert record.load.completed_per_second.value == pytest.approx(0.1)
        assert record.load.send_lag_s.value.max == pytest.approx(0.0, abs=1e-9)
        assert record.load.flags == ()
        assert record.throughput.seconds.value == pytest.approx(110 + whole)
    assert speculative.load.latency_over_target.value["e2e_s"]["p50"] == pytest.approx(3.5 / 8)


def test_below_saturation_there_is_no_speedup(project: Project) -> None:
    """Null with the reason, though tokens/s differ a little by the last request."""
    _, speculative = both(project, CONSTANT + "0.1 }")
    assert (speculative.speedup.ratio.value, speculative.gate) == (None, "green")
    assert "the load's rate, not the engine, sets tokens/s" in speculative.speedup.ratio.reason


def test_past_saturation_the_load_is_flagged_and_speeds_compare(project: Project) -> None:
    """A request each second: both arms fall behind, each at its own speed; the footnotes say that sending was late."""
    target, speculative = both(project, CONSTANT + "1.0 }")
    assert target.load.completed_per_second.value == pytest.approx(0.125)
    assert speculative.load.completed_per_second.value == pytest.approx(2 / 7)
    assert speculative.speedup.ratio.value == pytest.approx(8 / 3.5)
    assert len(target.load.flags) == 2
    result = project.run()
    result.stdout.fnmatch_lines(["load: short, t bfloat16 fake none: asked 1 requests/s, sent 0.125: off by -87.5%*"])
    result.stdout.fnmatch_lines(["load: short, * fake draft_model: requests were sent late: p99 of the send lag *"])


def test_an_offline_load_has_all_requests_at_once(project: Project) -> None:
    target, _ = both(project, 'load = { kind = "offline" }')
    assert (target.workload.concurrency, target.workload.requests, target.load.played["kind"]) == (12, 12, "offline")


def test_requests_that_are_not_due_in_time_are_left_out_and_counted(project: Project) -> None:
    target, _ = both(project, CONSTANT + "0.1, max_seconds = 40 }")
    assert (target.workload.requests, target.load.requests_left_out) == (5, 7)


def test_goodput_is_gated_for_both_kinds_of_arm(project: Project) -> None:
    """A time to the last token of 5 s is met by the speculative engine alone."""
    project.scenario(TWELVE + CONSTANT + "0.1 }\nslo = { e2e_ms = 5000 }\nmin_goodput = 0.9\n")
    project.tests(both_arms())
    result = project.run("--benchmark-json=out.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*goodput 0 is below min_goodput = 0.9 of *short.toml; requests that missed each objective: e2e_ms = 5000: *"]
    )
    result.stdout.fnmatch_lines(["goodput: short, t bfloat16 fake draft_model: 100.0%, 0.106 requests/s"])


def test_goodput_is_the_share_that_met_every_objective(project: Project) -> None:
    """Of requests that come each 2 s and take 3.5 s, the n-th waits 1.5·n s: within 10 s are the first five."""
    _, speculative = both(project, CONSTANT + "0.5 }\nslo = { e2e_ms = 10000, ttft_ms = 9000 }\n")
    assert speculative.load.goodput.share.value == pytest.approx(5 / 12)
    assert speculative.load.goodput.requests_per_second.value == pytest.approx(5 / (12 * 3.5))
    assert speculative.load.goodput.missed.value["e2e_ms"] == 7


def test_without_objectives_there_is_no_goodput(project: Project) -> None:
    target, _ = both(project, CONSTANT + "0.1 }")
    assert target.load.goodput.share == Figure(None, "the scenario gives no objectives (slo)")


def test_a_failed_request_makes_the_gate_red_and_is_counted(project: Project) -> None:
    """Under its own name, with the engine's words; it leaves no latency."""
    project.conftest(own_engine(FAILS))
    project.scenario(TWELVE + CONSTANT + "0.1 }\nslo = { e2e_ms = 5000 }\nmin_goodput = 0.1\n")
    project.tests(
        """
        @pytest.mark.specdec(gamma=3, speculative_options={"alpha": 1.0})
        def test_speculative(specdec, spec_engine, scenario):
            specdec(spec_engine, scenario)
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*engine error: 2 engine error, 22 identical of 24 generations on short*"])
    result.stdout.fnmatch_lines(
        ["*request 0, warm-up round -1 and 1 more: engine error: the request failed: 503 busy*"]
    )
    result.stdout.fnmatch_lines(["failed: short, t bfloat16 fake draft_model: 1 of 12 requests: 1 × 503 busy"])
    assert "goodput 0" not in result.stdout.str()


def test_a_sweep_finds_the_saturation_point_of_both_arms(project: Project) -> None:
    """0.1/s is sustained by both, 0.2/s by the speculative engine alone, 0.4/s by neither."""
    target, speculative = both(project, SWEEP)
    ours, theirs = speculative.load.sweep, target.load.sweep
    assert (ours.saturation_per_second, ours.target_saturation_per_second) == (Figure(0.2), Figure(0.1))
    assert (theirs.saturation_per_second, theirs.target_saturation_per_second) == (Figure(0.1), Figure(0.1))
    assert [point.sustained for point in speculative.load.sweep.points] == [True, True, False]
    assert [point.sustained for point in speculative.load.sweep.target_points] == [True, False, False]
    assert speculative.load.sweep.target_points == target.load.sweep.points


def test_a_rate_is_inconclusive_where_the_load_is_too_short_for_its_latency(project: Project) -> None:
    """Twelve requests at moments of their own: that the last of them waits says nothing of what the engine can do. Of
    40 a second all are sent after a third of a second, and answered 40 s later."""
    sweep = SWEEP.replace("constant", "poisson").replace("0.1, 0.2, 0.4", "0.1, 0.2, 40")
    _, speculative = both(project, f"seed = 8\n{sweep}")
    told = speculative.load.sweep
    assert [point.sustained for point in told.points] == [True, None, False]
    assert re.search("0.2 requests/s for 55 s is too short a load: .* at least 14 requests", told.points[1].reason)
    assert told.saturation_per_second == Figure(None, told.points[1].reason)


def test_a_rate_is_inconclusive_where_answers_differ_in_length_by_what_they_are_behind(project: Project) -> None:
    """The last of twelve takes 8 s and the shortest 2: that is 5 % of the load, and nothing waits for anything."""
    lengths = [8, 2, 8, 2, 8, 2, 2, 8, 2, 8, 2, 8]
    shape = {"timestamp": 0, "input_length": 4}
    rows = (json.dumps({**shape, "output_length": each, "hash_ids": [at]}) for at, each in enumerate(lengths))
    project.write("scenarios/lengths.jsonl", "\n".join(rows))
    source = 'source = { format = "mooncake", path = "lengths.jsonl", block_size = 4 }\noutput_length = "source"\n'
    project.scenario(f"{source}max_tokens = 8\nrounds = 1\n{SWEEP}")
    project.tests(both_arms())
    told = project.records()[SPECULATIVE].load.sweep
    assert told.target_points[0].sustained is None
    assert "too little for an engine that falls behind; give at least 13 requests" in told.target_points[0].reason
    assert told.target_saturation_per_second.value is None
    assert told.target_points[2].sustained is False


def test_each_point_of_a_sweep_is_measured_and_judged(project: Project) -> None:
    """From low to high; past saturation the engine's own rate is completed, and the wait grows."""
    _, speculative = both(project, SWEEP)
    points = speculative.load.sweep.points
    assert [point.asked for point in points] == [0.1, 0.2, 0.4]
    assert [point.completed for point in points] == pytest.approx([0.1, 0.2, 2 / 7])
    assert [point.ttft_p99_s for point in points] == pytest.approx([1.75, 1.75, 1.75 + 0.99 * 11 * 1.0], rel=0.01)
    assert [point.tpot_p50_s for point in points] == pytest.approx([1.75 / 4] * 3)
    assert [point.verdict for point in points] == ["identical"] * 3
    assert points[2].tokens_per_second == pytest.approx(8 / 3.5)


def test_the_other_figures_are_those_of_the_highest_sustained_rate(project: Project) -> None:
    """Of this arm; pytest-benchmark timed them."""
    target, speculative = both(project, SWEEP)
    assert (target.load.played["rate"], speculative.load.played["rate"]) == (0.1, 0.2)
    assert speculative.throughput.seconds.value == pytest.approx(11 / 0.2 + 3.5)


def test_the_target_is_swept_once(project: Project) -> None:
    """Each engine is loaded once, and the speculative arm finds the target's rounds."""
    both(project, SWEEP)
    assert len(project.loads()) == 2


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        ("0.05, 0.1", "not saturated at the highest rate asked"),
        ("0.5, 1.0", "not even the lowest rate asked was sustained"),
    ],
)
def test_a_sweep_that_finds_no_saturation_says_why(project: Project, rates: str, reason: str) -> None:
    target, _ = both(project, SWEEP.replace("0.1, 0.2, 0.4", rates))
    assert target.load.sweep.saturation_per_second == Figure(None, reason)


SLOW_SENDER = own_engine(
    """
    def prepare(self, workload):
        self.due = workload.arrivals_s
        late = tuple(max(at, 4.0 * number) for number, at in enumerate(self.due))
        super().prepare(replace(workload, arrivals_s=late))

    def collect(self):
        run = super().collect()
        moments = zip(run.generations, self.due)
        late = (replace(answer, started_s=answer.scheduled_s, scheduled_s=due) for answer, due in moments)
        return replace(run, generations=tuple(late) or run.generations, sent_apart=True)
    """
)
NOT_SENT = "inconclusive: asked 0.4 requests/s, this machine sent 0.25, up to 16.5 s late"


def test_a_rate_that_the_machine_did_not_send_is_inconclusive(project: Project) -> None:
    """One each 4 s: the target fails at 0.2/s whatever it is sent; of the other engine 0.4/s is not known."""
    project.conftest(SLOW_SENDER)
    target, speculative = both(project, SWEEP)
    theirs, ours = target.load.sweep, speculative.load.sweep
    assert [(point.sent, point.sustained, point.reason) for point in ours.points] == [
        (pytest.approx(0.1), True, None),
        (pytest.approx(0.2), True, None),
        (pytest.approx(0.25), None, NOT_SENT),
    ]
    assert ours.saturation_per_second == Figure(None, NOT_SENT)
    assert [point.sustained for point in theirs.points] == [True, False, False]
    assert ours.target_saturation_per_second == Figure(0.1)
    assert (target.gate, speculative.gate, speculative.load.played["rate"]) == ("green", "green", 0.2)


def test_an_inconclusive_rate_is_told_in_those_words(project: Project) -> None:
    """Below the table, beside the other arm's saturation, and at the rate in the table of rates."""
    project.conftest(SLOW_SENDER)
    project.scenario(TWELVE + SWEEP)
    project.tests(both_arms())
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "saturation: * fake none: 0.1 requests/s",
            "asked/s  arm done/s tokens/s TTFT p50 *",
            f"saturation: * fake draft_model d γ=3: {NOT_SENT}; target only: 0.1 requests/s",
            "asked/s         arm done/s tokens/s TTFT p50 *",
            "*0.1      target    0.1        1    1,000 *yes",
            "*0.1 draft_model    0.1        1    1,750 *yes",
            "*0.2      target *no",
            "*0.2 draft_model *yes",
            "*0.4      target *no",
            "*0.4 draft_model *inconclusive",
        ]
    )


def test_goodput_that_the_machine_kept_down_is_a_warning_and_no_red_gate(project: Project) -> None:
    """At 0.4/s each request is answered 3.5 s after it was sent, and up to 20 s after it was due."""
    project.conftest(SLOW_SENDER)
    project.scenario(TWELVE + CONSTANT + "0.4 }\nslo = { e2e_ms = 4000 }\nmin_goodput = 0.9\n")
    project.tests(both_arms())
    result = project.run("-k", "speculative")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["warning: short: inconclusive: goodput 0.0833 is below min_goodput = 0.9 of *"])


def test_objectives_missed_by_the_machine_s_delay_alone_are_inconclusive(project: Project) -> None:
    """At 0.25/s and less all is on time; at 0.27/s requests wait for their turn to be sent, and miss 4 s for that."""
    project.conftest(SLOW_SENDER)
    _, speculative = both(project, SWEEP.replace("0.1, 0.2, 0.4", "0.2, 0.26") + "slo = { e2e_ms = 4000 }\n")
    points = speculative.load.sweep.points
    assert [point.sustained for point in points] == [True, None]
    assert points[1].completed > 0.95 * 0.26


def test_objectives_move_the_saturation_point(project: Project) -> None:
    """Every request is completed in time at 0.2/s, but none within 3 s."""
    _, speculative = both(project, SWEEP.replace("0.1, 0.2", "0.1, 0.15, 0.2") + "slo = { e2e_ms = 3000 }\n")
    assert speculative.load.sweep.saturation_per_second.reason == "not even the lowest rate asked was sustained"
    assert [point.goodput for point in speculative.load.sweep.points] == [0.0] * 4


def test_a_wrong_answer_at_any_rate_makes_the_gate_red(project: Project) -> None:
    """It is named with its rate, and the sweep has no figures and no saturation point."""
    project.scenario(TWELVE + SWEEP)
    project.tests(gate("test_red", **WRONG_TOKEN))
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*t-draft_model-g3 at 0.1 requests/s: divergent: *"])
    result.stdout.fnmatch_lines(
        ["saturation: * fake draft_model d γ=3: the output is not the target's*; target only: 0.1 *"]
    )
    result.stdout.no_fnmatch_line("*asked/s*")


def test_an_untimed_session_gates_the_lowest_rate_and_sweeps_nothing(project: Project) -> None:
    project.scenario(TWELVE + SWEEP)
    project.tests(both_arms())
    result = project.run("--benchmark-disable", "--junit-xml=out.xml")
    result.assert_outcomes(passed=2)
    assert "saturation:" not in result.stdout.str()
    assert "so nothing was timed" in (project.path / "out.xml").read_text()


def test_an_engine_that_cannot_keep_moments_is_skipped_by_name(project: Project) -> None:
    """As Transformers refuses: no failure, and not silently without the schedule."""
    batches = """
        def prepare(self, workload):
            if workload.arrivals_s:
                raise Unsupported("requests that arrive while others are decoded are not supported")
            super().prepare(workload)
    """
    project.conftest(own_engine(batches))
    project.scenario(TWELVE + CONSTANT + "0.1 }")
    project.tests(both_arms())
    result = project.run("-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED *requests that arrive while others are decoded are not supported*"])
