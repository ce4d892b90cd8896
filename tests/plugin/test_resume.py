"""Gates that are green in a saved run are skipped by name, so that several short sessions do for one long one."""

from __future__ import annotations

import os
import time

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import gate

SWEPT = 'source = { format = "random", length = 4 }\ncount = 4\nmax_tokens = 8\nconcurrency = [1, 2]\nrounds = 2\n'
TESTS = gate(gamma=(2, 3))
SAVED = ("--benchmark-autosave", "--specdec-resume")


def resumed(result: pytest.RunResult) -> list[str]:
    """The tests that are skipped, and the number of the run that has each."""
    told = [line.partition("--specdec-resume: ")[2].split() for line in result.outlines if "--specdec-resume: " in line]
    return sorted(f"{words[0]} {words[5]}" for words in told)


@pytest.fixture
def map_(project: Project) -> Project:
    """Two γ at two concurrencies."""
    project.scenario(SWEPT)
    project.tests(TESTS)
    return project


def test_a_session_takes_up_what_earlier_ones_lack(map_: Project) -> None:
    """One gate in the first run, one more in the second, two in the third; a fourth has nothing left to do."""
    gates = [f"test_it[t-draft_model-g{gamma}-short-c{at}]" for gamma in (2, 3) for at in (1, 2)]
    map_.run(*SAVED, "-k", "g2 and c1").assert_outcomes(passed=1, deselected=3)
    second = map_.run(*SAVED, "-k", "g2")
    second.assert_outcomes(passed=1, skipped=1, deselected=2)
    assert resumed(second) == [f"{gates[0]} 0001"]
    told = "resumed: 1 gate of saved runs, not in *: pytest-specdec decide .benchmarks"
    second.stdout.fnmatch_lines(["decision: *", told])
    third = map_.run(*SAVED)
    third.assert_outcomes(passed=2, skipped=2)
    assert resumed(third) == [f"{gates[0]} 0001", f"{gates[1]} 0002"]
    fourth = map_.run(*SAVED)
    fourth.assert_outcomes(skipped=4)
    assert resumed(fourth) == [f"{gates[0]} 0001", f"{gates[1]} 0002", f"{gates[2]} 0003", f"{gates[3]} 0003"]


def test_all_that_was_done_before_is_no_empty_session(map_: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """In CI, where a session that runs nothing fails; and without the option all gates run again."""
    map_.run(*SAVED)
    loaded = map_.loads()
    monkeypatch.setenv("CI", "1")
    assert map_.run(*SAVED).ret == 0
    assert map_.loads() == loaded
    map_.run("--benchmark-autosave").assert_outcomes(passed=4)


def test_what_is_measured_and_not_judged_runs_again(project: Project) -> None:
    """It is never green."""
    project.scenario(SWEPT.replace("[1, 2]", "2"))
    project.tests(TESTS.replace("(2, 3)", '2, unjudged="to know"'))
    for _ in range(2):
        project.run(*SAVED).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "change",
    [
        "--specdec-rounds=3",
        "--specdec-set=min_speedup = 0.1",
        "--specdec-set=max_tokens = 9",
        "--specdec-dtype=float32",
    ],
)
def test_what_was_measured_otherwise_is_no_record_of_this_gate(map_: Project, change: str) -> None:
    """Other rounds, a limit, another workload, another engine: each is measured again."""
    map_.run(*SAVED)
    map_.run(*SAVED, change).assert_outcomes(passed=4)


def test_another_version_is_measured_again(map_: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade."""
    map_.run(*SAVED)
    monkeypatch.setattr("pytest_specdec.run.resume.VERSIONS", {"fake": "2"})
    map_.run(*SAVED).assert_outcomes(passed=4)


def test_a_red_gate_is_tried_again(map_: Project) -> None:
    """It is in no saved run."""
    map_.tests(TESTS.replace("gamma=(2, 3)", 'gamma=2, speculative_options={"fault": "wrong token"}'))
    map_.run(*SAVED).assert_outcomes(failed=2)
    map_.run(*SAVED).assert_outcomes(failed=2)


def test_the_same_workload_under_another_limit_is_another_gate(project: Project) -> None:
    """Of two scenarios that ask the same, one has a limit that γ = 1 misses: that it is green without says nothing."""
    plain = 'source = { format = "random", length = 4 }\ncount = 4\nmax_tokens = 16\n'
    project.scenario(plain, "a")
    project.scenario(f"{plain}min_speedup = 2.0\n", "b")
    project.tests(gate(gamma=(1, 4), scenario="scenarios", speculative_options={"alpha": 1.0}))
    (project.path / "scenarios/short.toml").unlink()
    project.run(*SAVED).assert_outcomes(passed=3, failed=1)
    project.run(*SAVED).assert_outcomes(skipped=3, failed=1)


def test_a_test_that_asks_more_of_the_same_gate_is_not_taken_for_another(map_: Project) -> None:
    """Its own record was red, or is none: that another test's is green says nothing of it."""
    map_.tests(TESTS + TESTS.replace("test_it", "test_more").rstrip() + "\n    assert False\n")
    map_.run(*SAVED).assert_outcomes(passed=4, failed=4)
    map_.run(*SAVED).assert_outcomes(skipped=4, failed=4)


def test_another_mode_or_checkpoint_is_measured_again(map_: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a tie is none, and where a drafter was trained anew in its folder."""
    draft = map_.path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text("{}")
    map_.tests(TESTS.replace("gamma", f'draft="{draft}", gamma'))
    map_.run(*SAVED).assert_outcomes(passed=4)
    map_.run(*SAVED).assert_outcomes(skipped=4)
    later = time.time() + 60
    os.utime(draft / "config.json", (later, later))
    map_.run(*SAVED).assert_outcomes(passed=4)
    draft.rename(map_.path / "older")
    (map_.path / "other").mkdir()
    (map_.path / "other" / "config.json").write_text("{ }")
    os.utime(map_.path / "other" / "config.json", (0, 0))
    draft.symlink_to(map_.path / "other")  # an older one, in its place
    map_.run(*SAVED).assert_outcomes(passed=4)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    map_.run(*SAVED).assert_outcomes(passed=4)
