"""An engine's fault is that engine's: one clear error, and everything else in the session runs."""

from __future__ import annotations

from tests.plugin.conftest import SCENARIO, Project
from tests.plugin.gates import gate, own_engine

TARGET_ONLY = gate("test_target_only", "ar_engine")
ENGINES_ONCE = ["t-target", "t-draft_model-g3", "t-draft_model-g5"]
DIES_IN_ITS_FIRST_LIFE = """
lives = 0

def __init__(self, spec):
    super().__init__(spec)
    Own.lives += 1
    self.life = Own.lives

def run(self):
    if self.life == 1:
        raise EngineDied("gone")
    super().run()
"""
REFUSES_TO_LOAD = """
def __init__(self, spec):
    raise Unsupported("this engine drafts at most 2 tokens")
"""


def two_on_one_engine_and_another(**options: str) -> str:
    """The target alone, two gates of one engine with these options of speculation, and one of another."""
    faulty = {"gamma": 3, "speculative_options": options}
    return TARGET_ONLY + gate("test_first", **faulty) + gate("test_second", **faulty) + gate("test_sound", gamma=5)


def test_an_engine_that_does_not_load_is_tried_once(project: Project) -> None:
    """Two tests want it, both fail with its words; the tests before and after it run."""
    project.tests(two_on_one_engine_and_another(fault="does not load"))
    result = project.run()
    result.assert_outcomes(passed=2, failed=2)
    assert project.loads() == ENGINES_ONCE
    assert result.outlines.count("the fake engine was told not to load") == 1
    assert result.outlines.count("not tried again in this session: the fake engine was told not to load") == 1


def test_a_target_that_does_not_load_is_tried_once(project: Project) -> None:
    """Every test of that target fails for the one reason, since nothing can be judged; another target's tests run."""
    project.conftest(
        own_engine('def __init__(self, spec):\n    raise EngineError("no such model")', "spec.target == 't'")
    )
    others = gate("test_speculative", gamma=3) + gate("test_other_target", "ar_engine", target="u")
    project.tests(TARGET_ONLY + others)
    project.run().assert_outcomes(passed=1, failed=2)
    assert project.loads() == ["t-target", "u-target"]


def test_an_engine_that_dies_fails_that_test_only(project: Project) -> None:
    """The next test of the same engine loads it anew, and passes if it lives."""
    project.conftest(own_engine(DIES_IN_ITS_FIRST_LIFE, "spec.gamma == 3"))
    project.tests(two_on_one_engine_and_another())
    result = project.run()
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_first*"])
    assert project.loads() == ["t-target", "t-draft_model-g3", "t-draft_model-g3", "t-draft_model-g5"]


def test_no_turn_follows_an_answer_that_was_cut_off(project: Project) -> None:
    """The target's own, on which the next prompt is built: its words are told, and no gate goes on without the turn."""
    project.scenario(SCENARIO + "follow_ups = [[5]]\n")
    cut_off = {"fault": "cut off, says abort", "model": "context", "near_tie_rate": 1.0}
    project.tests(gate(options=cut_off, gamma=3))
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no turn can follow request 0 of short: the engine ended it by 'abort' after *"])


def test_an_engine_that_refuses_a_request_skips_with_its_reason(project: Project) -> None:
    """It was asked for something it does not do: no failure, and no silence."""
    project.tests(two_on_one_engine_and_another(fault="unsupported"))
    result = project.run("-rs")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED *: the fake engine does not support this request"])
    assert project.loads() == ENGINES_ONCE


def test_a_refusal_fails_where_support_is_required(project: Project) -> None:
    """--specdec-require=supported: what an engine refuses is a failure, and not a skip."""
    project.tests(two_on_one_engine_and_another(fault="unsupported"))
    project.run("--specdec-require=supported").assert_outcomes(passed=2, failed=2)


def test_an_engine_that_refuses_to_load_skips_with_its_reason(project: Project) -> None:
    """It is asked once; the second test is skipped for the same reason."""
    project.conftest(own_engine(REFUSES_TO_LOAD, "spec.gamma == 3"))
    project.tests(two_on_one_engine_and_another())
    result = project.run("-rs")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED *: *this engine drafts at most 2 tokens"])
    assert project.loads() == ENGINES_ONCE


def test_an_engine_that_no_plugin_answers_to_names_the_hook(project: Project) -> None:
    """Where another plugin starts engines: the error lists those of this package, and how others come."""
    project.conftest(
        "@pytest.hookimpl(specname='pytest_specdec_start_engine')\ndef pytest_start_mine(spec):\n    return None\n"
    )
    project.tests(TARGET_ONLY)
    result = project.run("--specdec-engine=vlm")
    result.assert_outcomes(failed=1)
    assert (
        "no plugin answers to the engine 'vlm'; this package has vllm, transformers, server and fake, "
        "and others come by the hook pytest_specdec_start_engine"
    ) in result.outlines


def test_an_engine_fault_is_in_the_record(project: Project) -> None:
    """As an infrastructure fault, never as a verdict on tokens; the table shows it."""
    project.tests(two_on_one_engine_and_another(fault="dies"))
    result = project.run()
    rows = [line for line in result.outlines if line.strip().startswith("short") and "engine error" in line]
    assert len(rows) == 2
