"""The record of a gate: plain JSON values under the same keys every time, null and a reason where nothing is known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

BOTH_ARMS = """
def test_target_only(specdec, ar_engine, scenario):
    specdec(ar_engine, scenario)

@pytest.mark.specdec(gamma=3, speculative_options={"alpha": 1.0})
def test_speculative(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)
"""
TARGET_ONLY, SPECULATIVE = "test_target_only[t-target-short]", "test_speculative[t-draft_model-g3-short]"
KEYS = {
    *("schema", "scenario", "engine", "engine_key", "target", "draft", "method", "gamma", "dtype"),
    *("versions", "device", "engine_details", "workload", "requests", "concurrency", "hardware", "verdict", "gate"),
    *("rounds", "tokens", "seconds", "tokens_per_second", "tokens_per_second_reason", "speedup", "speedup_reason"),
    *("drafts", "draft_tokens", "accepted_tokens", "accepted_per_position", "acceptance_rate", "mean_accepted_length"),
    *("energy", "load", "goodput", "goodput_reason", "failed_requests", "rate_sweep", "saturation_rate"),
    *("scenario_digest", "parallelism", "per_round"),
}
SWITCHES = {"switches": {"async_scheduling": True, "cuda_graphs": "FULL"}}
VERDICT_KEYS = {"outcome", "counts", "max_gap", "noise_floor", "control"}


def property_of(project: Project, *options: str) -> dict[str, Any]:
    """The record in the JUnit XML of a run of one test."""
    project.run("--junit-xml=out.xml", *options)
    (found,) = ElementTree.parse(project.path / "out.xml").iterfind(".//property[@name='specdec']")
    record: dict[str, Any] = json.loads(str(found.get("value")))
    return record


@pytest.mark.parametrize("test", [TARGET_ONLY, SPECULATIVE])
def test_schema_1_has_these_keys(project: Project, test: str) -> None:
    """Both arms have all of them, whatever could be measured."""
    project.tests(BOTH_ARMS)
    record = project.records()[test]
    assert record["schema"] == 1
    assert KEYS - record.keys() == set()
    assert VERDICT_KEYS - record["verdict"].keys() == set()


def test_counters_and_rates_follow_from_what_was_drafted(project: Project) -> None:
    """Two rounds of two prompts, each in two blocks of three drafts and one token of the target, all accepted."""
    project.tests(BOTH_ARMS)
    record = project.records()[SPECULATIVE]
    counted = [record[key] for key in ("tokens", "drafts", "draft_tokens", "accepted_tokens", "accepted_per_position")]
    assert counted == [32, 8, 24, 24, [8, 8, 8]]
    assert (record["acceptance_rate"], record["mean_accepted_length"]) == (1.0, 4.0)


def test_the_target_alone_has_no_speculation(project: Project) -> None:
    """Its counters are null, not zero, and it is nobody's speed-up."""
    project.tests(BOTH_ARMS)
    record = project.records()[TARGET_ONLY]
    figures = ("draft", "gamma", "drafts", "acceptance_rate", "mean_accepted_length", "speedup")
    assert [record[key] for key in figures] == [None] * len(figures)
    assert "base line" in record["speedup_reason"]


def test_what_was_not_measured_is_null_with_a_reason(project: Project) -> None:
    """Untimed: no seconds, no throughput, no speed-up; energy is read by nobody."""
    project.tests(BOTH_ARMS)
    record = property_of(project, "--benchmark-disable", "-k", "speculative")
    assert (record["seconds"], record["tokens_per_second"], record["speedup"]) == (None, None, None)
    assert "pytest-benchmark is disabled" in record["tokens_per_second_reason"]
    assert "pytest-benchmark is disabled" in record["speedup_reason"]
    assert record["energy"]["joules"] is None
    assert record["energy"]["reason"]


def test_a_red_record_has_no_speedup(project: Project) -> None:
    """A wrong answer is not faster; the verdict and its worst gap are kept."""
    project.tests(
        '@pytest.mark.specdec(gamma=3, speculative_options={"fault": "wrong token"})\n'
        "def test_red(specdec, spec_engine, scenario):\n    specdec(spec_engine, scenario)\n"
    )
    record = property_of(project)
    assert (record["gate"], record["verdict"]["outcome"], record["verdict"]["max_gap"]) == ("red", "divergent", 8.0)
    assert record["speedup"] is None
    assert record["speedup_reason"]


def test_an_engine_error_is_a_record_too(project: Project) -> None:
    """With what was asked for and the engine's words."""
    project.tests(
        '@pytest.mark.specdec(gamma=3, speculative_options={"fault": "dies"})\n'
        "def test_red(specdec, spec_engine, scenario):\n    specdec(spec_engine, scenario)\n"
    )
    record = property_of(project)
    assert record["verdict"] == {"outcome": "engine error", "detail": "the fake engine died while decoding"}
    assert (record["schema"], record["target"], record["gamma"]) == (1, "t", 3)


def test_junit_xml_and_benchmark_json_hold_the_same_record(project: Project) -> None:
    """Two ways to the same figures."""
    project.tests(BOTH_ARMS)
    in_xml = property_of(project, "--benchmark-json=out.json", "-k", "speculative")
    (bench,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
    assert in_xml == bench["extra_info"]["specdec"]


def test_the_fixture_returns_the_record(project: Project) -> None:
    """So that a test can assert more than the gate does, on the same object that is kept."""
    project.tests(
        """
        import json

        def test_it(specdec, spec_engine, scenario):
            record = specdec(spec_engine, scenario)
            assert record["gate"] == "green"
            Path = __import__("pathlib").Path
            Path("returned.json").write_text(json.dumps(record))
        """
    )
    (kept,) = project.records().values()
    assert json.loads((project.path / "returned.json").read_text()) == kept


def test_what_an_engine_switches_when_it_drafts_is_warned_of(project: Project) -> None:
    """Off by the engine's own choice as soon as it drafts: the ratio contains it, and record and table say so."""
    drafting = 'speculative_options={"alpha": 1.0, "switches": {"async_scheduling": False}}'
    both = BOTH_ARMS.replace('speculative_options={"alpha": 1.0}', drafting)
    project.tests(both)
    switched = ("--specdec-engine-options", json.dumps(SWITCHES))
    (word,) = project.records(*switched)[SPECULATIVE]["warnings"]
    assert word.startswith("async_scheduling is off here and on for target-only")
    assert "warning: short: async_scheduling is off here" in " ".join(str(project.run(*switched).stdout).split())
