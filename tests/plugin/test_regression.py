"""A test is held against an earlier run: what fails, what is a note, and that nothing passes in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import ExitCode
from tests.plugin.conftest import Project
from tests.plugin.gates import gate, own_engine

TWO = gate("test_target_only", "ar_engine") + gate("test_spec", gamma=3)
SPEC = "test_it.py::test_spec[t-draft_model-g3-short]"
GATE = "--specdec-fail=tokens_per_second:5%"
ROUNDS = "--specdec-rounds=6"
NOISY = own_engine("""
    passes = 0

    def run(self):
        self.passes += 1
        TIME.advance(50 * (self.passes % 2))
        super().run()
""")
DEFAULT_ROUNDS = """
source = { format = "ids", prompts = [[5, 9], [8, 12, 4]] }
max_tokens = 8
concurrency = 2
"""


@pytest.fixture(scope="module")
def stored() -> dict[Path, str]:
    """The file of the one saved run of two gates, once it is there; all tests begin with it."""
    return {}


@pytest.fixture
def saved(project: Project, stored: dict[Path, str]) -> Project:
    """A project with one saved run of two gates."""
    project.tests(TWO)
    if not stored:
        project.run("--benchmark-autosave", ROUNDS).assert_outcomes(passed=2)
        stored.update({path.relative_to(project.path): path.read_text() for path in list_stored(project)})
    for path, text in stored.items():
        (project.path / path).parent.mkdir(parents=True, exist_ok=True)
        (project.path / path).write_text(text)
    return project


def list_stored(project: Project) -> list[Path]:
    """The saved runs, oldest first."""
    return sorted((project.path / ".benchmarks").rglob("*.json"))


def rewrite(project: Project, change: Callable[[dict[str, Any]], object], number: int = 0) -> None:
    """Change every record of a saved run."""
    path = list_stored(project)[number]
    content = json.loads(path.read_text())
    for bench in content["benchmarks"]:
        change(bench["extra_info"]["specdec"])
    path.write_text(json.dumps(content, indent=4))


def faster(record: dict[str, Any], share: float = 0.9) -> None:
    """As if the baseline run had taken nine tenths of the time."""
    rounds = record["throughput"]["per_round"]
    rounds["seconds"] = [share * each for each in rounds["seconds"]]
    record["throughput"]["tokens_per_second"]["value"] /= share


def noisy(record: dict[str, Any]) -> None:
    """As if something else had held up every other round."""
    rounds = record["throughput"]["per_round"]
    rounds["seconds"] = [each * (1 + 2 * (at % 2)) for at, each in enumerate(rounds["seconds"])]


def test_the_same_again_passes_and_says_so(saved: Project) -> None:
    """--specdec-fail alone means the latest run."""
    result = saved.run(GATE, ROUNDS)
    result.assert_outcomes(passed=2)
    assert "within their thresholds: 2 of 2 changes" in result.outlines


def test_a_slower_run_fails_the_test_with_its_figures(saved: Project) -> None:
    """The exit code is pytest's own, and the words are the test's."""
    rewrite(saved, faster)
    result = saved.run(GATE, ROUNDS)
    result.assert_outcomes(failed=2)
    assert result.ret == ExitCode.TESTS_FAILED
    said = result.stdout.str()
    assert "(−10.0 % [−10.0, −10.0], sessions ±9.0 % assumed, threshold 5%): worse, against run 0001" in said
    assert "identical, worse" in said
    assert "2 exact, 2 failed against the baseline run, 1 faster" in result.outlines
    assert any(line.startswith("worst: t fake") for line in result.outlines)


def test_a_slower_run_is_not_stored_so_that_it_becomes_no_baseline(saved: Project) -> None:
    """Else the second slow run would pass."""
    rewrite(saved, faster)
    saved.run(GATE, ROUNDS, "--benchmark-autosave").assert_outcomes(failed=2)
    assert json.loads(list_stored(saved)[-1].read_text())["benchmarks"] == []
    saved.run(GATE, ROUNDS).assert_outcomes(failed=2)


def test_compare_shows_changes_and_fails_nothing(saved: Project) -> None:
    """Without a threshold nobody has said what is too much."""
    rewrite(saved, faster)
    result = saved.run("--specdec-compare", ROUNDS)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*since run 0001: tokens_per_second * (−10.0 % *)"])


@pytest.mark.parametrize("named", ["1", "0001", "file"])
def test_a_run_is_named_by_number_or_file(saved: Project, named: str) -> None:
    """Whatever is saved later."""
    saved.run("--benchmark-autosave", ROUNDS)
    rewrite(saved, faster)
    name = str(list_stored(saved)[0]) if named == "file" else named
    saved.run(f"--specdec-compare={name}", GATE, ROUNDS).assert_outcomes(failed=2)
    saved.run("--specdec-compare=2", GATE, ROUNDS).assert_outcomes(passed=2)


def test_an_unknown_run_is_a_usage_error(saved: Project) -> None:
    """It names the latest there is; no test runs."""
    result = saved.run("--specdec-compare=9", GATE)
    assert result.ret == ExitCode.USAGE_ERROR
    assert "'9' is neither a file nor the number of a run" in result.stderr.str()


def test_thresholds_come_from_ini_and_environment_too(saved: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several in one text by commas, or by repeating the option."""
    rewrite(saved, faster)
    monkeypatch.setenv("SPECDEC_FAIL", "tokens_per_second:50%,ttft_p99:1s")
    saved.run(ROUNDS).assert_outcomes(passed=2)
    saved.run("--specdec-fail=tokens_per_second:50%", GATE, ROUNDS).assert_outcomes(failed=2)


@pytest.mark.parametrize("written", ["tokens_per_second:5", "tokens_per_secnd:5%", "speed"])
def test_a_wrong_threshold_is_a_usage_error(saved: Project, written: str) -> None:
    """With what would be right."""
    result = saved.run(f"--specdec-fail={written}")
    assert result.ret == ExitCode.USAGE_ERROR
    assert "--specdec-fail: cannot read" in result.stderr.str()


def test_a_missing_baseline_is_a_visible_note_or_a_failure_by_choice(project: Project) -> None:
    """The first run of a repository passes; a CI that expects a baseline run asks for one."""
    project.tests(TWO)
    result = project.run(GATE, ROUNDS)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*not compared: no run in *.benchmarks has this measurement*"])
    strict = project.run(GATE, ROUNDS, "--specdec-fail-on=missing")
    strict.assert_outcomes(failed=2)
    strict.stdout.fnmatch_lines(["*no baseline run: no run in *"])


def test_a_truncated_or_foreign_baseline_is_a_named_error_never_a_silent_pass(saved: Project) -> None:
    """pytest-benchmark warns and exits 0 where a baseline run is cut off or comes from another host."""
    rewrite(saved, lambda record: record["hardware"].update(processor="another", cores=64))
    elsewhere = saved.run(GATE, ROUNDS)
    elsewhere.assert_outcomes(failed=2)
    elsewhere.stdout.fnmatch_lines(["*is no baseline run: other hardware: processor another*"])
    assert "identical, no baseline" in elsewhere.stdout.str()
    whole = list_stored(saved)[0].read_text()
    list_stored(saved)[0].write_text(whole[: len(whole) // 2])
    cut = saved.run(GATE, ROUNDS)
    cut.assert_outcomes(failed=2)
    cut.stdout.fnmatch_lines(["*0001_*.json: is cut off or no JSON*"])


def test_a_noisy_saved_run_is_passed_over_until_a_better_one_is_saved(saved: Project) -> None:
    """The session says that nothing was compared; what it saves is the next one's baseline."""
    rewrite(saved, noisy)
    first = saved.run(GATE, ROUNDS, "--benchmark-autosave")
    first.assert_outcomes(passed=2)
    first.stdout.fnmatch_lines(["*not compared: run 0001 * its tokens/s is known to ±*; save another with *"])
    again = saved.run(GATE, ROUNDS)
    again.assert_outcomes(passed=2)
    assert "within their thresholds: 2 of 2 changes" in again.outlines
    rewrite(saved, faster, number=1)
    saved.run(GATE, ROUNDS).assert_outcomes(failed=2)


def test_a_noisy_run_without_a_baseline_fails_and_is_not_stored(project: Project) -> None:
    """It would serve no later one, so that nothing were ever compared; where there is a baseline it is held against
    that."""
    project.tests(TWO)
    project.run("--benchmark-autosave", ROUNDS).assert_outcomes(passed=2)
    project.conftest(NOISY)
    saved = list_stored(project)[0]
    assert "inconclusive" in project.run(GATE, ROUNDS).stdout.str()
    saved.unlink()
    result = project.run(GATE, ROUNDS, "--benchmark-autosave")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*no run in * has this *; nor is this run one for the next: its tokens/s *"])
    assert json.loads(list_stored(project)[0].read_text())["benchmarks"] == []


def test_few_rounds_are_inconclusive_and_fail(saved: Project) -> None:
    """Two rounds decide nothing, and nothing passes that they do not decide; it is said what would."""
    result = saved.run(GATE, "--specdec-rounds=2")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*inconclusive; 2 rounds give no interval: at least 4 are needed on each side*"])
    assert "2 exact, 2 failed against the baseline run, 1 faster" in result.outlines
    assert "identical, inconclusive" in result.stdout.str()


def test_the_default_number_of_rounds_finds_an_engine_that_is_half_as_fast(project: Project) -> None:
    """As README has it: a run is saved, the engine gets slower, the test fails."""
    project.scenario(DEFAULT_ROUNDS)
    project.tests(TWO)
    project.run("--benchmark-autosave").assert_outcomes(passed=2)
    rewrite(project, lambda record: faster(record, 0.65))
    result = project.run(GATE)
    result.assert_outcomes(failed=2)
    assert "(−35.0 % [−35.0, −35.0], sessions ±9.0 % assumed, threshold 5%): worse" in result.stdout.str()


def test_what_sessions_may_differ_by_is_inconclusive_and_fails_by_choice(saved: Project) -> None:
    """7 % slower than one earlier run: beyond the threshold, and no more than two sessions of the same code differ."""
    rewrite(saved, lambda record: faster(record, 0.93))
    result = saved.run(GATE, ROUNDS)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*inconclusive; beyond *; one earlier run cannot tell how far sessions differ*"])
    saved.run(GATE, ROUNDS, "--specdec-fail-on=inconclusive").assert_outcomes(failed=2)


def test_the_last_runs_of_the_same_versions_are_the_baseline_together(saved: Project) -> None:
    """Their mean, and how far they differ among themselves; a run of other versions is none of them."""
    for _ in range(3):
        saved.run("--benchmark-autosave", ROUNDS)
    rewrite(saved, lambda record: record["engine"].update(versions={"fake": "0"}), number=1)
    (change,) = saved.records(GATE, ROUNDS)["test_spec[t-draft_model-g3-short]"].baseline.changes
    assert (change.sessions, change.outcome) == (3, "better or same")


def test_a_faster_wrong_run_is_a_failure_and_is_not_compared(saved: Project) -> None:
    """Equal output comes first: nobody looks at the speed of a wrong answer."""
    saved.tests(TWO.replace("gamma=3", 'gamma=3, speculative_options={"fault": "wrong token"}'))
    result = saved.run(GATE, ROUNDS)
    result.assert_outcomes(failed=1, passed=1)
    said = result.stdout.str()
    assert "divergent" in said
    assert "within their thresholds: 1 of 1 changes" in said


def test_a_renamed_test_is_compared_and_another_gamma_is_another_question(saved: Project) -> None:
    """The key is the measurement, not the name."""
    saved.tests(TWO.replace("test_spec", "test_renamed"))
    saved.run(GATE, ROUNDS, "--specdec-fail-on=missing").assert_outcomes(passed=2)
    saved.tests(TWO.replace("gamma=3", "gamma=4"))
    saved.run(GATE, ROUNDS, "--specdec-fail-on=missing").assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize("options", [("--benchmark-disable",), ("-n", "2")])
def test_a_gate_on_figures_that_are_not_measured_is_refused(saved: Project, options: tuple[str, ...]) -> None:
    """Under pytest-xdist, or with timing switched off, a green run would say nothing."""
    result = saved.run(GATE, *options)
    assert result.ret == ExitCode.USAGE_ERROR
    assert saved.run(GATE, *options).stderr.str().count("--specdec-fail") >= 1


def test_pytest_benchmark_reads_the_same_storage(saved: Project) -> None:
    """Its own comparison stays usable."""
    result = saved.run("--benchmark-compare=0001", ROUNDS)
    result.assert_outcomes(passed=2)
    assert "(0001_" in result.stdout.str()


def test_the_record_tells_what_was_compared(saved: Project) -> None:
    """Run, changes, failures, for whoever reads the JSON."""
    baseline = saved.records(GATE, ROUNDS)["test_spec[t-draft_model-g3-short]"].baseline
    assert (baseline.run, baseline.test, baseline.failures) == ("0001", SPEC, ())
    (change,) = baseline.changes
    assert (change.metric, change.outcome, change.level) == ("tokens_per_second", "better or same", 0.95)


def test_github_gets_a_summary_and_annotations(saved: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its variables are set, and only there."""
    assert "::error" not in saved.run(GATE, ROUNDS).stdout.str()
    rewrite(saved, faster)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(saved.path / "summary.md"))
    result = saved.run(GATE, ROUNDS)
    result.stdout.fnmatch_lines(["::error file=test_it.py,line=*,title=t fake draft_model*::tokens_per_second*"])
    summary = (saved.path / "summary.md").read_text()
    assert "| scenario | target |" in summary
    assert "\n2 exact, 2 failed against the baseline run, 1 faster\n" in summary
    assert "- **short · fake · t bf16 · fake**: use γ = 3 (draft_model d): " in summary


def test_quiet_keeps_the_table_and_drops_the_footnotes(saved: Project) -> None:
    """What failed stays."""
    rewrite(saved, faster)
    lines = saved.run("-q", GATE, ROUNDS).outlines
    assert any("identical, worse" in line for line in lines)
    assert any(line.startswith("worst: ") for line in lines)
    assert not any(line.startswith("speed-up: ") for line in lines)


def test_junit_has_flat_properties(saved: Project) -> None:
    """For what reads XML and no JSON."""
    saved.run(GATE, ROUNDS, "--junit-xml=out.xml")
    text = (saved.path / "out.xml").read_text()
    assert '<property name="specdec.gate" value="green"' in text
    assert '<property name="specdec.change.tokens_per_second" value="better or same"' in text
