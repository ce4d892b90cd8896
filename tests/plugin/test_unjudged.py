"""An engine that is only to be measured, as in a lossy mode: figures, and "not judged" in the place of a verdict.

It is never green, is no candidate of a decision, and what a lossy mode must keep as well is judged as ever.
"""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import both_arms, gate

from pytest_specdec.record import Record, from_json

WHY = "accepts what is near enough"
CLOSE = {"model": "context", "binades": 4, "close_rate": 0.1, "near_tie_rate": 0.0}
LONG = 'source = { format = "random", length = 8 }\ncount = 8\nmax_tokens = 48\nconcurrency = 4\nrounds = 4\n'


def lossy(fault: str = "lossy acceptance", why: str | None = WHY, alpha: float = 0.0) -> str:
    """A test of an engine with this fault, on a model whose tokens are often close to each other."""
    speculative_options = {"alpha": alpha, "fault": fault}
    return gate(gamma=3, options=CLOSE, speculative_options=speculative_options, unjudged=why)


def record_of(project: Project, test: str, more: str = "") -> Record:
    """Of the one gate of this project, red or not; `more` goes into its scenario."""
    project.scenario(LONG + more)
    project.tests(test)
    project.run("--junit-xml=out.xml")
    (told,) = ElementTree.parse(project.path / "out.xml").iterfind(".//property[@name='specdec']")
    return from_json(json.loads(str(told.get("value"))))


def test_what_is_red_is_measured_where_it_is_asked_for(project: Project) -> None:
    """The same engine, without the key and with it: red without figures; figures, and how many answers are right."""
    red = record_of(project, lossy(why=None))
    assert (red.gate, red.verdict.outcome, red.speedup.ratio.value) == ("red", "divergent", None)
    record = record_of(project, lossy())
    assert (record.gate, record.verdict.outcome, record.asked.unjudged) == ("unjudged", "not judged", WHY)
    assert record.throughput.tokens_per_second.value
    assert record.speedup.ratio.value
    assert record.verdict.counts == {"not judged": 30, "identical": 10}
    assert red.verdict.counts == {"divergent": 30, "identical": 10}
    assert record.verdict.known_truth.tokens.reason == "not judged"


@pytest.mark.parametrize("keeps_ends", [True, False])
def test_an_end_that_the_engine_leaves_out_is_no_difference(project: Project, keeps_ends: bool) -> None:
    """It is put back before answers are compared, as it is where tokens are judged; what is no answer has no row."""
    options = {**CLOSE, "eos_rate": 0.04, "keeps_ends": keeps_ends}
    sound = gate(gamma=3, options=options, speculative_options={"alpha": 0.8}, unjudged=WHY)
    project.scenario(f"{LONG}ignore_eos = false\n")
    project.tests(sound)
    (record,) = project.records().values()
    assert record.verdict.counts == {"identical": 40}
    assert record.throughput.tokens < 4 * 8 * 48


def test_the_table_says_so_and_why(project: Project) -> None:
    """Beside exact gates, none of which it is counted among; and nobody is advised to use it."""
    project.scenario(LONG)
    project.tests(gate("test_exact", gamma=3, options=CLOSE, speculative_options={"alpha": 0.8}) + lossy())
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines(
        [
            r" short .* draft_model 3 test_exact identical .*",
            r" short .* draft_model 3 test_it +not judged .*",
            r"1 exact, 1 measured, not judged.*",
            rf"measured, not judged: short, t bfloat16 fake draft_model: {WHY}; 10 of 40 answers are the target's own",
        ]
    )
    result.stdout.no_fnmatch_line("*worst:*not judged*")


def test_alone_it_decides_nothing(project: Project) -> None:
    """However fast it is."""
    project.scenario(LONG)
    project.tests(lossy())
    result = project.run()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("decision: *")


def test_the_report_and_github_say_so(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row with a sign of its own, and no annotation of an error."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project.scenario(LONG)
    project.tests(lossy())
    result = project.run("--specdec-report=report.json")
    result.stdout.no_fnmatch_line("::error*")
    told = json.loads((project.path / "report.json").read_text("utf-8"))
    (row,) = told["rows"]
    assert (row["gate"], row["outcome"], row["label"]) == ("unjudged", "not judged", "draft_model d, not judged γ=3")
    assert [each for each in told["notes"] if WHY in each]


@pytest.mark.parametrize(
    ("fault", "outcome", "says", "more"),
    [
        ("max_tokens overshot", "length", "more than max_tokens = 48", ""),
        ("padded id", "length", "is 104, and the vocabulary has 103 tokens", ""),
        ("BOS doubled", "inputs differ", "put token 1 before the prompt", ""),
        ("text alone wrong", "text", "text differs from that of its ids", 'stop = ["7>"]\n'),
        ("dies", "engine error", "", ""),
        ("dead drafter", "not judged", "nothing was drafted in", ""),
        ("drafts in one round only", "not judged", "nothing was drafted in round 1", ""),
        (
            "lossy acceptance",
            "undecidable",
            "'preemption' was demanded and did not happen",
            'demand = ["preemption"]\n',
        ),
    ],
)
def test_what_every_mode_must_keep_is_judged(project: Project, fault: str, outcome: str, says: str, more: str) -> None:
    """A broken limit, another prompt, another text, drafting or a demand that did not happen are no lossy mode."""
    record = record_of(project, lossy(fault, alpha=0.8), more)
    assert (record.gate, record.verdict.outcome) == ("red", outcome)
    assert says in "\n".join(record.failures)


def test_a_baseline_that_drafts_is_an_error_here_too(project: Project) -> None:
    """Figures are over those of the target alone, whose own rounds are judged."""
    options = {**CLOSE, "fault": "baseline drafts"}
    record = record_of(project, gate(gamma=3, options=options, unjudged=WHY))
    assert record.verdict.outcome == "engine error"
    assert "the baseline drafted" in record.verdict.detail


def test_the_target_alone_is_judged_whatever_its_mark_says(project: Project) -> None:
    """One mark serves both arms of a module."""
    project.tests(both_arms(unjudged=WHY) + gate("test_alone", "ar_engine", unjudged=WHY))
    gates = {test.partition("[")[0]: record.gate for test, record in project.records().items()}
    assert gates == {"test_target_only": "green", "test_speculative": "unjudged", "test_alone": "green"}


def test_a_limit_of_the_scenario_is_held_against_its_figures(project: Project) -> None:
    """Red for the limit, and the figures stay in sight."""
    project.scenario(f"{LONG}min_acceptance_rate = 1.0\n")
    project.tests(lossy())
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r".* 3 not judged, red +\d+\.\d .*"])


def test_what_is_asked_of_the_verdict_is_told_as_not_held(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not fail; nothing is told where nothing of the kind is asked, or where tokens are judged."""
    asked = "detects = { near_ties = 0.5 }\nmax_tie_rate = 1.0\n"
    told = "not held, since tokens are not judged: "
    project.scenario(LONG)
    project.tests(lossy())
    (record,) = project.records().values()
    assert [each for each in record.warnings if told in each] == []
    project.scenario(LONG + asked)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    judged = gate("test_judged", gamma=3, options={"near_tie_rate": 0.0}, speculative_options={"alpha": 0.8})
    project.tests(lossy() + judged)
    by_test = {test.partition("[")[0]: record for test, record in project.records().items()}
    assert f"{told}detects.near_ties, max_tie_rate, VLLM_BATCH_INVARIANT" in by_test["test_it"].warnings
    assert [each for each in by_test["test_judged"].warnings if told in each] == []


def test_at_a_temperature_no_answer_is_compared(project: Project) -> None:
    """There is no single right one, and no distribution is tested."""
    project.scenario(f"{LONG}sampling = {{ temperature = 1.0 }}\n")
    project.tests(lossy("acceptance too lax", alpha=0.3))
    result = project.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"measured, not judged: *: {WHY}; no answer was compared"])


@pytest.mark.parametrize("why", [True, "", "  ", 1])
def test_a_reason_must_be_given(project: Project, why: object) -> None:
    """It stands in the table, so that nobody takes the figures for those of a judged engine."""
    project.tests(gate(unjudged=why))
    result = project.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*unjudged={why!r}: expected the reason, in words*"])


def test_it_is_held_against_its_own_kind_alone(project: Project) -> None:
    """A measured run is the baseline of a later one, and none of a judged one, whose test has the same name."""
    project.scenario(LONG)
    sound = {"gamma": 3, "options": CLOSE, "speculative_options": {"alpha": 0.8}}
    project.tests(gate(**sound, unjudged=WHY))
    project.run("--benchmark-autosave").assert_outcomes(passed=1)
    within = "--specdec-fail=tokens_per_second:5%"
    (again,) = project.records(within).values()
    assert again.baseline is not None
    assert [each.outcome for each in again.baseline.changes] == ["better or same"]
    project.tests(gate(**sound))
    result = project.run(within)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no baseline run: *its tokens are not judged, and those of this run are*"])
