"""A gate on a constructed pair, which the fake engine decodes as its recipe says: the truth is judged too.

A green one says which faults of the KV cache it would have seen, where that was measured on a model of its kind.
"""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import WRONG_TOKEN, gate

from pytest_specdec.record import Figure, from_json

PAIR = """
import pytest

pytestmark = pytest.mark.specdec(
    target="constructed:tiny?memory=6&vocab=64",
    draft="constructed:tiny:draft?memory=6&vocab=64&alpha=0.7",
    gamma=3,
    scenario="scenarios/pair.toml",
)
"""
SCENARIO = 'source = { format = "random", length = 20 }\ncount = 3\nmax_tokens = 30\nconcurrency = 2\nrounds = 2\n'
BOTH_ARMS = gate("test_target_only", "ar_engine", method="none", draft=None, gamma=None) + gate("test_speculative")
WRONG_IN_BOTH = """{"fault": "wrong token"}"""


@pytest.fixture
def pair(project: Project) -> Project:
    """A project whose gates have a pair with memory."""
    project.scenario(SCENARIO, "pair")
    return project


def test_a_sound_pair_is_identical_and_its_counters_are_the_foretold_ones(pair: Project) -> None:
    """The record has both, and how much of the cache was read."""
    pair.tests(BOTH_ARMS, header=PAIR)
    target, speculative = pair.records().values()
    counted, foretold = speculative.acceptance, speculative.verdict.foretold
    assert [each.verdict.outcome for each in (target, speculative)] == ["identical", "identical"]
    assert [each.verdict.known_truth.wrong for each in (target, speculative)] == [Figure(0), Figure(0)]
    assert (foretold.drafts, foretold.draft_tokens) == (counted.drafts, counted.draft_tokens)
    assert foretold.accepted_per_position == counted.accepted_per_position
    assert target.verdict.foretold.drafts == Figure(None, "the engine does not speculate")
    assert speculative.coverage.output.value is not None


def test_of_an_adapted_target_nothing_is_known(pair: Project) -> None:
    """Its answers are no longer those of the pair, nor are its counters, nor what would be seen of them."""
    pair.tests(gate(options={"adapter": "lora"}), header=PAIR)
    (record,) = pair.records().values()
    reason = "lora is not a constructed model, so its right answers are not known beforehand"
    assert record.verdict.known_truth.tokens == Figure(None, reason)
    assert record.verdict.foretold.drafts == Figure(None, reason)
    assert (record.coverage.output.value, record.detection) == (None, None)


def test_a_fault_of_both_arms_is_red(pair: Project) -> None:
    """Each arm by itself agrees with the other."""
    pair.tests(BOTH_ARMS, header=PAIR)
    result = pair.run("--specdec-engine-options", WRONG_IN_BOTH)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*divergent: from the known truth: token *"])
    result.stdout.fnmatch_lines(["*divergent: from the known truth, both arms: token *"])


def test_a_drafter_that_is_never_right_is_draft_state(pair: Project) -> None:
    """Every token is right."""
    pair.tests(gate(speculative_options={"fault": "nothing accepted"}), header=PAIR)
    result = pair.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["draft state: 9 identical of 9 generations on pair", "round 0: foretold *; counted 0 of *"]
    )


def test_low_coverage_is_a_footnote(pair: Project) -> None:
    """With the reason."""
    pair.scenario(SCENARIO.replace("length = 20", "length = 60"), "pair")
    pair.tests(BOTH_ARMS, header=PAIR)
    said = " ".join(str(pair.run().stdout).split())
    assert "coverage: pair, tiny-memory6-vocab64: only " in said
    assert "up to 6 tokens are read back, after prompts of 60 tokens and in answers of 30" in said


def test_how_much_was_held_against_the_truth_is_a_footnote(pair: Project) -> None:
    """Once for all gates: those of the pair, and not the one of a model whose answers nobody knows beforehand."""
    unknown = gate("test_unknown", target="t", draft="d", scenario="scenarios/short.toml")
    pair.tests(unknown, header="import pytest\n")
    assert "known truth: " not in str(pair.run().stdout)
    pair.tests(BOTH_ARMS, header=PAIR)
    records = pair.records().values()
    tokens = sum(record.verdict.known_truth.tokens.value or 0 for record in records)
    said = " ".join(str(pair.run().stdout).split())
    assert tokens > 2 * 2 * 3 * 30
    assert f"known truth: 2 of 2 gates, {tokens:,} tokens of all rounds compared, 0 of them wrong; accepted" in said
    assert "accepted drafts compared with the foretold ones in 1 " in said


def test_a_green_gate_says_what_it_would_have_seen(project: Project) -> None:
    """By the tokens of its answers; a gate that is red, or on another model, says nothing."""
    measured = {"target": "constructed:tiny?memory=24", "draft": "constructed:tiny:draft?memory=24", "gamma": 3}
    project.tests(
        gate("test_pair", **measured) + gate("test_red", **measured | WRONG_TOKEN) + gate("test_other", gamma=3)
    )
    project.scenario('source = { format = "random", length = 33 }\ncount = 2\nmax_tokens = 20\nrounds = 2\n')
    project.run("--junit-xml=out.xml", "--specdec-report=report.md")
    cases = ElementTree.parse(project.path / "out.xml").iterfind(".//property[@name='specdec']")
    pair, red, other = (from_json(json.loads(str(each.get("value")))).detection for each in cases)
    assert (red, other) == (None, None)
    assert pair is not None
    assert (pair.measured_on, pair.tokens) == ("constructed:tiny?memory=24", 16)
    assert (project.path / "report.md").read_text().count(pair.statement) == 1


def test_after_short_prompts_no_fault_is_said_to_be_seen(project: Project) -> None:
    """The pair's right output is not known there, and no fault was planted there."""
    measured = {"target": "constructed:tiny?memory=24", "draft": "constructed:tiny:draft?memory=24", "gamma": 3}
    project.tests(gate("test_pair", **measured))
    project.scenario('source = { format = "random", length = 9 }\ncount = 2\nmax_tokens = 20\nrounds = 2\n')
    said = " ".join(str(project.run().stdout).split())
    [record] = project.records().values()
    assert record.detection is None
    assert record.verdict.known_truth.tokens.value is None
    assert "prompts of fewer than 25 tokens: what the pair must emit" in said
