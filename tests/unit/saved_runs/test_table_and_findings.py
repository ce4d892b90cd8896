"""What a person reads: a table that fits its screen, the worst findings in words, GitHub's summary and annotations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.saved_runs.made import TEST, figure, record

from pytest_specdec.history.history import Found, RegressionGate
from pytest_specdec.history.saved import SavedRun
from pytest_specdec.record import Place, Record
from pytest_specdec.record.parts import BaselinePart
from pytest_specdec.report.content import notes
from pytest_specdec.report.decision import headline
from pytest_specdec.report.findings import change_notes, error_lines, flat, markdown, worst
from pytest_specdec.report.gates import Gate
from pytest_specdec.report.notes import footnotes, gate_notes
from pytest_specdec.report.table import print_table, rows, screen_width
from pytest_specdec.thresholds import Threshold

PLACE = Place(test=TEST, file="test_it.py", line=7)


def given(now: Record, test: str) -> Found:
    """A baseline that is always there."""
    then = replace(record(engine={"versions": {"vllm": "0.25.0"}}), place=Place(test=test))
    return Found(SavedRun("0007", Path("x.json"), "", {}, {}, (then,)), then)


def compare_with_baseline(seconds: list[float], **changes: Any) -> Record:
    """A record held against the baseline run at 5 %."""
    now = replace(record(seconds, **changes), place=PLACE)
    baseline = RegressionGate(given, (Threshold.parse("tokens_per_second:5%"),)).part(now, TEST)
    return replace(now, baseline=baseline, gate="regressed" if baseline.failures else now.gate)


SLOW = [1.25, 1.26, 1.24, 1.25, 1.25, 1.26]
SAME = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98]


def table(records: list[Record], width: int, colour: bool = False) -> list[str]:
    """The table's lines."""
    lines: list[str] = []
    print_table(records, width, lines.append, colour)
    return lines


def test_the_change_since_the_baseline_stands_beside_the_rate() -> None:
    """With its interval; the verdict says that it got worse."""
    (row,) = [line for line in table([compare_with_baseline(SLOW)], 160) if line.lstrip().startswith("short")]
    assert "identical, worse" in row
    assert "−20." in row


def test_the_verdict_says_what_failed_against_the_baseline() -> None:
    """Worse only where something is; and the line under the table counts the gates that failed so."""
    noisy = [1.0, 3.0, 1.0, 3.0, 1.0, 3.0]
    nothing = replace(
        record(), gate="regressed", baseline=BaselinePart(failures=("no baseline run",), failed_by="no baseline")
    )
    lacks = record(throughput={"tokens_per_second": figure(None, "not timed")})
    part = RegressionGate(given, (Threshold.parse("tokens_per_second:5%"),), ("missing",)).part(lacks, TEST)
    gates = [compare_with_baseline(SLOW), compare_with_baseline(noisy), nothing]
    gates += [replace(lacks, gate="regressed", baseline=part), compare_with_baseline(SAME)]
    titles, *body = rows(gates)
    verdicts = [row[titles.index("verdict")].removeprefix("identical") for row in body]
    assert verdicts == [", worse", ", inconclusive", ", no baseline", ", missing", ""]
    assert headline(gates) == "5 exact, 4 failed against the baseline run"


def test_the_change_has_no_column_where_nothing_was_compared() -> None:
    """The table of a plain run is as it was."""
    assert not any("since baseline" in line for line in table([record()], 160))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_gets_fewer_columns_and_no_broken_lines(width: int) -> None:
    """What matters least is left out, and it is said."""
    lines = table([compare_with_baseline(SLOW), compare_with_baseline(SAME)], width)
    rows = [line for line in lines if line.lstrip().startswith("short")]
    assert len(rows) == 2
    assert all(len(line) <= width for line in rows)
    assert lines[-1].startswith("left out for want of width: ")


def test_colour_is_for_terminals() -> None:
    """A file or a pipe gets plain text."""
    assert any("\x1b[" in line for line in table([compare_with_baseline(SLOW)], 160, colour=True))
    assert not any("\x1b[" in line for line in table([compare_with_baseline(SLOW)], 160))


def test_the_three_worst_findings_come_in_words_wrong_output_first() -> None:
    """Then what got worse, then what loses to the target alone; the rest is counted."""
    wrong = record(verdict={"outcome": "divergent"}, gate="red", asked={"scenario": "prose"})
    losing = [record(speedup={"ratio": figure(share), "interval": figure([0.5, 0.95])}) for share in (0.9, 0.6)]
    first, second, third, more = worst([*losing, compare_with_baseline(SLOW), wrong])
    assert first == "worst: t vllm draft_model γ=3 on prose: divergent"
    assert "tokens_per_second 1024 → 818" in second
    assert "slower than the target alone, 0.60 of its tokens/s" in third
    assert more == "… and 1 more"
    unsure = {"ratio": figure(0.93), "interval": figure([0.012, 74.4])}
    assert worst([record(speedup={"ratio": figure(1.4)}), record(speedup=unsure)]) == []


def test_versions_that_changed_are_said_once_and_good_changes_are_counted() -> None:
    """The summary is about what needs a look."""
    notes = change_notes([compare_with_baseline(SAME), compare_with_baseline(SLOW)], verbose=False)
    assert notes[0] == "changed since run 0007: vllm 0.25.0 → 0.26.0"
    assert notes[1].startswith("t vllm draft_model γ=3 on short since run 0007: tokens_per_second 1024 → 818")
    assert notes[2:] == ["within their thresholds: 1 of 2 changes"]


def test_github_gets_a_table_in_markdown_and_an_annotation_at_the_test() -> None:
    """Green gates are no annotation; a bar or a line break inside a cell or message is escaped."""
    records = [compare_with_baseline(SAME), compare_with_baseline(SLOW, asked={"scenario": "a|b"})]
    page = markdown(records, partial="ended by SIGTERM after 2 of 3 gates")
    assert "- partial: ended by SIGTERM after 2 of 3 gates\n" in page
    assert "| scenario | target |" in page
    assert "a\\|b" in page
    (line,) = error_lines(records)
    assert line.startswith("::error file=test_it.py,line=7,title=t vllm draft_model γ=3 on a|b::tokens_per_second")
    assert "−20.1 %25" in line or "%25" in line


def test_a_message_of_several_lines_stays_one_annotation() -> None:
    """As the workflow commands want it."""
    bad = record(gate="red", verdict={"outcome": "engine error"}, asked={"scenario": "x:y,z\nw"})
    (line,) = error_lines([replace(bad, place=PLACE)])
    assert "x%3Ay%2Cz%0Aw::engine error" in line


def test_a_tie_names_its_gate() -> None:
    """One model at two concurrencies and under an open load, by three gaps; what is identical has no such line."""
    gates = ((8, "closed", 0.25), (64, "closed", 0.5), (64, "open", 0.75))
    tied = [
        record(
            verdict={"outcome": "tie", "max_gap_logits": {"value": gap}},
            workload={"concurrency": at},
            asked={"load": {"kind": kind}},
        )
        for at, kind, gap in gates
    ]
    notes = [note.partition(", within") for note in footnotes([*tied, record()], []) if note.startswith("tie")]
    assert [note[0] for note in notes] == [
        "tie: short, 8 at once, t bfloat16 vllm draft_model d γ=3: largest gap 0.25 logits",
        "tie: short, 64 at once, t bfloat16 vllm draft_model d γ=3: largest gap 0.5 logits",
        "tie: short, t bfloat16 vllm draft_model d γ=3: largest gap 0.75 logits",
    ]


def test_flat_properties_leave_out_what_was_not_measured() -> None:
    """One name, one value."""
    found = dict(flat(compare_with_baseline(SLOW)))
    assert found["specdec.gate"] == "regressed"
    assert found["specdec.change.tokens_per_second"] == "worse"
    assert found["specdec.ttft_p99_s"] == "0.017"
    assert "specdec.speedup" not in found


def test_acceptance_by_category_is_a_footnote() -> None:
    """Under the gate's name; a gate whose prompts have no categories has none."""
    kind = {"name": "math", "requests": 10, "rate": figure(0.5), "delivered_tokens_per_step": figure(2.5)}
    notes = footnotes([record(), record(acceptance={"by_category": [kind]})], [])
    (told,) = [note for note in notes if "category" in note]
    assert told.endswith(": math 50.0%, 2.50 tokens a step (10 requests)")


def test_energy_by_phase_is_told_of_each_gate() -> None:
    """One phase alone where the other is not known, why neither is, and nothing of runs without energy, or older."""
    decode = {"joules": figure(9.0), "decode_joules_per_output_token": figure(0.9)}
    short, mixed = ({"value": None, "reason": why} for why in ("too short to measure", "requests overlap"))
    apart = {**decode, "prefill_joules_per_prompt_token": figure(0.02)}
    alone = {**decode, "prefill_joules_per_prompt_token": short}
    neither = {**decode, "prefill_joules_per_prompt_token": mixed, "decode_joules_per_output_token": mixed}
    told = gate_notes([record(), *(record(energy=each) for each in (apart, alone, neither))])
    assert [note.removeprefix("J/token: short, 8 at once, t bfloat16 vllm draft_model d γ=3: ") for note in told] == [
        "0.02 a prompt token in prefill, 0.9 an output token in decode",
        "0.9 an output token in decode",
        "not apart: requests overlap",
    ]


ALIAS = {"method": "mtp", "named_method": "mimo_mtp", "gamma": 3}
MADE = {"method": "mimo_mtp", "gamma": 2}
COMMON = "another vocabulary: 896 tokens in common, of 1024 and 896"


def test_drafting_that_is_not_simply_what_was_named_is_told() -> None:
    """An alias, what the engine made of it, the ids of two vocabularies: under the table and in a report."""
    simple = record(
        asked={"named_method": "draft_model"},
        engine={"details": {"speculation": {"method": "draft_model", "gamma": 3}, "draft_tokenizer": "identical"}},
    )
    other = record(asked=ALIAS, engine={"details": {"speculation": MADE, "draft_tokenizer": COMMON}})
    words = f"named mimo_mtp, the engine drafts 2 tokens by mimo_mtp, {COMMON}"
    assert [each for each in footnotes([simple, other], []) if "drafting" in each] == [
        f"drafting: short, t bfloat16 vllm mtp: {words}"
    ]
    gates = [Gate(SavedRun("0001", Path("x.json"), "", {}, {}, ()), each, "cpu") for each in (simple, other)]
    assert [each.partition(": drafting: ")[2] for each in notes(gates, "") if "drafting" in each] == [words]


def test_a_speedup_follows_from_the_rates_beside_it() -> None:
    """tokens/s over the target's is the speed-up as printed, with its interval; energy stands over the target's."""
    rates = {"tokens_per_second": figure(1180.1)}, {"tokens_per_second": figure(1268.9)}
    ratio = {"ratio": figure(1180.1 / 1268.9), "interval": figure([0.9, 0.96])}
    energy = {"over_target": figure(1.08), "over_target_interval": figure([1.05, 1.11])}
    measured = record(throughput=rates[0], target_alone=rates[1], speedup=ratio, energy=energy)
    lines = table([measured], 200)
    (row,) = [line for line in lines if line.lstrip().startswith("short")]
    assert any("tokens/s target tok/s          speed-up                  J/token" in line for line in lines)
    speeds = ["1180.1", "1268.9", "0.93", "[0.90,", "0.96]", "0.5", "(1.08×", "[1.05,", "1.11])"]
    assert row.split()[6:] == ["identical", *speeds, "80.0%", "3.40"]


def test_what_the_steady_window_and_the_slowest_of_twenty_say_stands_beside() -> None:
    """Where it was measured: the ratio while every place was taken, and both arms' p95 latencies as the decision."""
    steady = {"steady_ratio": figure(1.75), "steady_interval": figure([1.6, 1.9])}
    latency = {"itl_s": {"p95": 0.0066, "n": 9}, "ttft_s": {"p95": 0.021, "n": 9}}
    lines = table([record(speedup=steady, latency=latency)], 200)
    assert any("steady" in line and line.endswith("p95 ITL ms p95 TTFT ms") for line in lines)
    (row,) = [line for line in lines if line.lstrip().startswith("short")]
    assert row.split()[8:11] == ["1.75", "[1.60,", "1.90]"]
    assert row.split()[-2:] == ["6.6", "21.0"]
    assert not any("steady" in line or "p95" in line for line in table([record()], 200))


def test_brackets_are_explained_where_there_are_some() -> None:
    """Energy over the target's has a note; energy alone needs none, nor does that of a red gate, which shows none."""
    over = {"over_target": figure(0.5)}
    told = [record(), record(energy=over), record(energy=over, gate="red")]
    assert [["in brackets" in each for each in footnotes([one], ["J/token"])][:1] for one in told] == [[], [True], []]


def test_one_gate_is_no_gates() -> None:
    """In the headline as in every count."""
    assert headline([record(gate="red", verdict={"outcome": "divergent"})]) == "1 of 1 gate red, 0 exact"
    assert headline([record(), record(gate="red", verdict={"outcome": "divergent"})]) == "1 of 2 gates red, 1 exact"


def test_a_red_gate_shows_no_figure_of_speed() -> None:
    """Whatever its record has."""
    ratio = {"ratio": figure(1.5), "interval": figure([1.4, 1.6])}
    (row,) = [line for line in table([record(gate="red", speedup=ratio)], 200) if line.lstrip().startswith("short")]
    assert row.split()[6:] == ["identical,", "red", "–", "80.0%", "3.40"]


def test_a_missed_limit_keeps_its_figures() -> None:
    """The output is right and the scenario wanted more: its row is red and says how fast it was."""
    ratio = {"ratio": figure(1.5), "interval": figure([1.4, 1.6])}
    missed = record(gate="red", failures=["speedup 1.5 is below min_speedup = 2"], speedup=ratio)
    assert any("1.50 [1.40, 1.60]" in line for line in table([missed], 200))


def test_no_two_rows_are_the_same() -> None:
    """Drafts, devices, GPUs and requests have a column where rows differ in nothing else; a narrow table keeps it."""
    for part, field, names in (
        ("asked", "target", ["t", "u"]),
        ("asked", "draft", ["d", "e"]),
        ("engine", "device", ["H100", "H200"]),
        ("asked", "parallelism", [{"tensor_parallel_size": 1}, {"tensor_parallel_size": 2}]),
        ("workload", "concurrency", [8, 32]),
    ):
        lines = [line for line in table([record(**{part: {field: name}}) for name in names], 60) if "short" in line]
        assert len({line.split("identical")[0] for line in lines}) == 2
    places = [Place(test=f"test_it.py::{name}") for name in ("test_it[a]", "test_it[b]", "test_more[a]")]
    tests = table([replace(record(), place=each) for each in places], 100)
    assert len({line.split("identical")[0] for line in tests if "short" in line}) == 3


def test_slower_is_yellow_and_what_is_not_known_is_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slower: the whole interval lies below 1. One that holds 1 says nothing."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    slower, unsure = ({"ratio": figure(0.9), "interval": figure(each)} for each in ([0.8, 0.95], [0.012, 74.4]))
    first, second = (
        next(line for line in table([record(speedup=each)], 160, colour=True) if "short" in line)
        for each in (slower, unsure)
    )
    assert "\x1b[33m" in first
    assert "\x1b[33m" not in second
    assert "\x1b[2m" in second


def test_a_gate_at_a_temperature_says_what_made_it_green() -> None:
    """Its measured tokens, or where those could have shown nothing the samples drawn anew."""
    drawn = {"power_statement": "of samples"}
    rated = {"statement": "of tokens", "detects_total_variation": figure(0.1)}
    unseen = {**rated, "detects_total_variation": figure(None, "so few")}
    told = [
        [line.rpartition(": ")[2] for line in footnotes([each], []) if line.startswith("sampled: ")]
        for each in (
            record(verdict={"outcome": "consistent", "sampling": {**drawn, "rated": rated}}),
            record(verdict={"outcome": "consistent", "sampling": {**drawn, "rated": unseen}}),
            record(verdict={"outcome": "consistent", "sampling": drawn}),
            record(),
        )
    ]
    assert told == [["of tokens"], ["of samples"], ["of samples"], []]


def test_a_busy_machine_is_told_beside_the_table() -> None:
    """Of either arm, where it waited for much of its time; a decision that says so says it for both."""
    quiet, busy = (record(throughput={"waited_for_cores": figure(share)}) for share in (0.2, 0.45))
    beside = record(target_alone={"waited_for_cores": figure(0.3)})
    told = [[each for each in footnotes([one], []) if "busy machine" in each] for one in (quiet, busy, beside)]
    assert [len(each) for each in told] == [0, 1, 1]
    assert told[1][0].endswith("its engine waited for a core 45% of the time that it wanted one")
    assert told[2][0].endswith("the target waited for a core 30% of the time that it wanted one")
    decided = "its engine waited for a core 45% of the time that it wanted one"
    assert not any("busy machine" in each for each in footnotes([busy], [], decided))


def test_notes_are_about_columns_that_are_shown_and_said_once() -> None:
    """Eight gates that leave the same to be desired are one line."""
    low = "only 12% of the KV entries of prompts were read"
    several = [record(coverage={"low": low}, asked={"scenario": name}) for name in "abcdefgh"]
    assert [note for note in footnotes(several, []) if "tok/step" in note or "itl" in note] == []
    assert [note for note in footnotes(several, ["tok/step"]) if note.startswith("coverage")] == [
        f"coverage: a, t; b, t; c, t; and 5 more: {low}"
    ]


def test_the_width_is_that_of_columns_and_100_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe has no width of its own."""
    monkeypatch.setenv("COLUMNS", "77")
    assert screen_width() == 77
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError()))
    assert screen_width() == 100


def test_an_engine_that_tells_fewer_versions_is_not_another_version() -> None:
    """A server tells its own alone; one that tells another is two versions."""
    told = {"vllm": "0.32.0", "torch": "2.13.0"}

    def notes(versions: dict[str, str]) -> list[str]:
        records = [record(engine={"versions": versions}, verdict={"reference_versions": told})]
        return [note for note in footnotes(records, []) if note.startswith("two versions")]

    assert notes({"vllm": "0.32.0"}) == []
    assert notes({"vllm": "0.31.0"}) == [
        "two versions: draft_model by vllm 0.31.0; target only by torch 2.13.0, vllm 0.32.0"
    ]


def test_a_cost_that_all_gates_have_is_said_once() -> None:
    """Rescoring is a range where it is one."""
    made = [
        record(verdict={"calibration": {"dtype": "float32", "tokens": 8, "rescoring_over_decoding": {"value": cost}}})
        for cost in (0.25, 0.5)
    ]
    costs = [next(each for each in footnotes(several, []) if "rescoring" in each) for several in (made[:1], made)]
    assert [words.split(" of ")[0] for words in costs] == ["rescoring took 0.25", "rescoring took 0.25 to 0.50"]
