"""The record of a gate: plain JSON values under the same keys every time, null and a reason where nothing is known."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import WRONG_TOKEN, both_arms, gate

from pytest_specdec.generation import Generation
from pytest_specdec.record import Figure, Record, from_json, to_json
from pytest_specdec.record.parts import VerdictPart

SCENARIO = 'source = { format = "ids", prompts = [[5, 9], [8, 12, 4]] }\nmax_tokens = 8\nconcurrency = 2\nrounds = 2\n'
TARGET_ONLY, SPECULATIVE = "test_target_only[t-target-short]", "test_speculative[t-draft_model-g3-short]"
SWITCHES = {"switches": {"async_scheduling": True, "cuda_graphs": "FULL"}}


def property_of(project: Project, *options: str) -> dict[str, Any]:
    """The record in the JUnit XML of a run of one test."""
    project.run("--junit-xml=out.xml", *options)
    (found,) = ElementTree.parse(project.path / "out.xml").iterfind(".//property[@name='specdec']")
    record: dict[str, Any] = json.loads(str(found.get("value")))
    return record


def record_of(project: Project, *options: str) -> Record:
    """The same, read."""
    return from_json(property_of(project, *options))


@pytest.mark.parametrize("test", [TARGET_ONLY, SPECULATIVE])
def test_a_record_is_the_same_once_written_and_read(project: Project, test: str) -> None:
    """Both arms have every key of the type, whatever could be measured."""
    project.tests(both_arms())
    told = project.benchmarks()[test]["extra_info"]["specdec"]
    assert told["schema"] == 2
    assert to_json(from_json(told)) == told


def test_counters_and_rates_follow_from_what_was_drafted(project: Project) -> None:
    """Two rounds of two prompts, each in two blocks of three drafts and one token of the target, all accepted."""
    project.tests(both_arms())
    record = project.records()[SPECULATIVE]
    counted = record.acceptance
    counters = (counted.drafts, counted.draft_tokens, counted.accepted_tokens, counted.accepted_per_position)
    assert record.throughput.tokens == 32
    assert [each.value for each in counters] == [8, 24, 24, (8, 8, 8)]
    assert (record.acceptance.rate.value, record.acceptance.mean_accepted_length.value) == (1.0, 4.0)


def test_the_target_alone_has_no_speculation(project: Project) -> None:
    """Its counters are null, not zero, and it is nobody's speed-up."""
    project.tests(both_arms())
    record = project.records()[TARGET_ONLY]
    assert (record.asked.draft, record.asked.gamma) == (None, None)
    assert record.acceptance.drafts == record.acceptance.rate == Figure(None, "the engine does not speculate")
    assert record.acceptance.mean_accepted_length.value is None
    assert (
        record.speedup.ratio
        == record.target_alone.tokens_per_second
        == Figure(None, "this is the target-only baseline")
    )


def test_what_was_not_measured_is_null_with_a_reason(project: Project) -> None:
    """Untimed: no seconds, no throughput, no speed-up; energy is read by nobody."""
    project.tests(both_arms())
    record = record_of(project, "--benchmark-disable", "-k", "speculative")
    untimed = "pytest-benchmark is disabled (--benchmark-disable, or pytest-xdist), so nothing was timed"
    rate, ratio = record.throughput.tokens_per_second, record.speedup.ratio
    assert record.throughput.seconds == rate == ratio == record.energy.joules == Figure(None, untimed)


def test_a_red_record_has_no_speedup(project: Project) -> None:
    """A wrong answer is not faster; the verdict and its worst gap are kept."""
    project.tests(gate("test_red", **WRONG_TOKEN))
    record = record_of(project)
    assert (record.gate, record.verdict.outcome, record.verdict.max_gap_logits.value) == ("red", "divergent", 8.0)
    assert record.speedup.ratio.value is None
    assert record.speedup.ratio.reason


def test_an_engine_error_is_a_record_too(project: Project) -> None:
    """With what was asked for and the engine's words."""
    project.tests(gate("test_red", gamma=3, speculative_options={"fault": "dies"}))
    record = record_of(project)
    assert record.verdict == VerdictPart(outcome="engine error", detail="the fake engine died while decoding")
    assert (record.gate, record.asked.target, record.asked.gamma) == ("red", "t", 3)


def test_junit_xml_and_benchmark_json_hold_the_same_record(project: Project) -> None:
    """Two ways to the same figures."""
    project.tests(both_arms())
    in_xml = property_of(project, "--benchmark-json=out.json", "-k", "speculative")
    (bench,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
    assert in_xml == bench["extra_info"]["specdec"]


def test_the_fixture_returns_the_record(project: Project) -> None:
    """So that a test can assert more than the gate does, on the same object that is kept."""
    project.tests(
        """
        import json

        from pytest_specdec.record import to_json

        def test_it(specdec, spec_engine, scenario):
            record = specdec(spec_engine, scenario)
            assert record.gate == "green"
            Path = __import__("pathlib").Path
            Path("returned.json").write_text(json.dumps(to_json(record)))
        """
    )
    (kept,) = project.benchmarks().values()
    assert json.loads((project.path / "returned.json").read_text()) == kept["extra_info"]["specdec"]


def test_what_an_engine_switches_when_it_drafts_is_warned_of(project: Project) -> None:
    """Off by the engine's own choice as soon as it drafts: the ratio contains it, and record and table say so."""
    project.tests(both_arms(speculative_options={"alpha": 1.0, "switches": {"async_scheduling": False}}))
    switched = ("--specdec-engine-options", json.dumps(SWITCHES))
    (word,) = project.records(*switched)[SPECULATIVE].warnings
    assert word.startswith("async_scheduling is off here and on for target-only")
    assert "warning: short: async_scheduling is off here" in " ".join(str(project.run(*switched).stdout).split())


def test_what_a_scenario_demands_and_does_not_happen_is_undecidable(project: Project) -> None:
    """The drafter is always right, so nothing is rejected: red, with what to change, and without a speed."""
    project.scenario(SCENARIO + 'demand = ["all_accepted", "rejection"]\n')
    project.tests(both_arms())
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    told = " ".join(str(result.stdout).split())
    assert "'rejection' was demanded and did not happen: take a poorer drafter" in told
    assert "'all_accepted' was demanded" not in told


def test_numbers_of_numpy_are_plain_in_a_generation() -> None:
    """An engine of another plugin may give its arrays' own numbers, which no JSON has."""
    ids = np.arange(3)
    generation = Generation(tuple(ids), tuple(ids), "length")
    assert json.dumps([generation.prompt_ids, generation.token_ids]) == "[[0, 1, 2], [0, 1, 2]]"


@pytest.mark.parametrize(("penalty", "told"), [(0.0001, True), (90.0, False)])
def test_sampling_fields_that_changed_nothing_are_told(project: Project, penalty: float, told: bool) -> None:
    """A penalty that never decided a token proves nothing of penalties."""
    project.scenario(SCENARIO + f"sampling = {{ frequency_penalty = {penalty} }}\n")
    project.tests(both_arms())
    words = project.records()[SPECULATIVE].warnings
    assert any(word.startswith("frequency_penalty had no effect on this workload") for word in words) == told


@pytest.mark.parametrize("circles", [True, False])
def test_answers_that_go_in_circles_are_told(project: Project, circles: bool) -> None:
    """Where the last token alone decides, an answer of 64 tokens comes back to where it was."""
    project.scenario('source = { format = "random", length = 8 }\ncount = 8\nmax_tokens = 64\nrounds = 2\n')
    project.tests(
        gate("test_it", gamma=3, options={"model": "map", "vocabulary": 8} if circles else {"model": "context"})
    )
    (record,) = project.records().values()
    assert (record.answers.repeated_share.value > 0.5) == circles
    assert any("the answers go in circles" in word for word in record.warnings) == circles


@pytest.mark.parametrize("ignores", [False, True])
def test_answers_that_go_on_past_their_end_are_told(project: Project, ignores: bool) -> None:
    """A model of few tokens ends often; where ends count, nothing comes after them."""
    project.scenario(
        'source = { format = "random", length = 8 }\ncount = 8\nmax_tokens = 64\nrounds = 2\n'
        f"ignore_eos = {str(ignores).lower()}\n"
    )
    project.tests(gate("test_it", gamma=3, options={"model": "context", "vocabulary": 8, "eos_rate": 0.1}))
    (record,) = project.records().values()
    assert record.answers.repeated_share.value is not None
    assert bool(record.answers.past_end.value) == ignores
    assert any("after an end that ignore_eos passes over" in word for word in record.warnings) == ignores
