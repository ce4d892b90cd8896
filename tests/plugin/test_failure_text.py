"""A red gate says what differs, where, by how much, against which floor, and what to try; no traceback hides it."""

from __future__ import annotations

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import gate


def failure(project: Project, fault: str, *options: str) -> list[str]:
    """The lines of pytest's FAILURES section, of a test whose engine has this fault."""
    project.tests(gate("test_red", gamma=3, speculative_options={"fault": fault}))
    lines = project.run(*options).outlines
    start = next(at for at, line in enumerate(lines) if "FAILURES" in line)
    end = next(at for at, line in enumerate(lines) if "speculative decoding:" in line)
    return lines[start + 2 : end]


def line_with(lines: list[str], start: str) -> str:
    """The first line that begins so, whatever its indentation."""
    return next(line.strip() for line in lines if line.strip().startswith(start))


def test_a_divergence_is_told_with_counts_window_gap_floor_and_what_to_try(project: Project) -> None:
    """Two rounds of two requests, one request wrong; in brackets is the token that differs: 9, and the engine says 3.

    The gap is how far the target rates the token below its own choice, the floor how far it strays itself.
    """
    lines = failure(project, "wrong token")
    assert lines[0] == "divergent: 4 divergent, 4 identical of 8 generations on short"
    assert line_with(lines, "first difference") == "first difference at token 3"
    assert line_with(lines, "target only") == "target only  77 53 85 [9] 77 53 85 9"
    assert line_with(lines, "this engine") == "this engine  77 53 85 [3] 35 3 35 3"
    found = line_with(lines, "request 0, warm-up round -2")
    assert "token 3 is 8 below the target's argmax 9 (128 ULPs); 3 of 8 tokens are beyond the floor" in found
    assert found.startswith("request 0, warm-up round -2 and 3 more: divergent: ")
    assert len([line for line in lines if line.startswith("request 0, ")]) == 1
    text = line_with(lines, "hint: as text")
    after, _, sides = text.partition(": target only ")
    assert after.endswith("<77><53><85>'")
    assert sides == "'<9><77><53><85><9>', this engine '<3><35><3><35><3>'"
    assert line_with(lines, "not the target's argmax: 3 of 16 tokens, 0 of 16 in the calibration")
    options = "speculative_options = {'fault': 'wrong token'}: try it without them"
    assert line_with(lines, "speculative_options").startswith(options)
    floor = line_with(lines, "noise floor")
    assert floor.startswith("noise floor 3 ULPs (bfloat16): over 32 target-only tokens")
    assert "--specdec-dtype float32" in line_with(lines, "what to try:")


def test_in_float32_it_is_not_advised(project: Project) -> None:
    """It tells numerics from a fault, and is there."""
    lines = failure(project, "wrong token", "--specdec-dtype=float32")
    assert "in float32 numerics explain" in line_with(lines, "what to try:")


def test_an_early_stop_names_the_end(project: Project) -> None:
    """A missing last token is a matter of length, shown as the end."""
    lines = failure(project, "stops early")
    assert lines[0] == "length: 8 length of 8 generations on short"
    assert line_with(lines, "this engine").endswith("[end]")
    assert "EOS, stop and max_tokens" in line_with(lines, "what to try:")


def test_a_dead_drafter_is_told_by_its_settings(project: Project) -> None:
    """Equal output, nothing drafted: the method and γ that did nothing are named."""
    lines = failure(project, "dead drafter")
    assert lines[0].startswith("nothing was drafted in 64 tokens")
    assert "(method draft_model, γ = 3)" in lines[0]


@pytest.mark.parametrize("fault", ["wrong token", "stops early", "dead drafter", "dies", "does not load"])
def test_there_is_no_traceback(project: Project, fault: str) -> None:
    """Even in pytest's longest style: the fault is not in the user's Python."""
    lines = failure(project, fault, "--tb=long")
    assert [line for line in lines if "Traceback" in line or ".py" in line or line.startswith(("E ", ">"))] == []


def test_an_engine_fault_is_one_line(project: Project) -> None:
    """The engine's own words, and nothing else."""
    assert [line for line in failure(project, "dies") if line] == ["the fake engine died while decoding"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("wrong token", "divergent: 4 divergent, 4 identical of 8 generations on short"),
        ("dies", "the fake engine died"),
    ],
)
def test_summary_and_annotation_have_the_reason_in_their_line(
    project: Project, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str
) -> None:
    """As a job's page shows them; in CI pytest cuts no line."""
    for name in ("CI", "GITHUB_ACTIONS"):
        monkeypatch.setenv(name, "true")
    project.tests(gate("test_red", gamma=3, speculative_options={"fault": fault}))
    result = project.run()
    result.stdout.fnmatch_lines([f"::error file=test_it.py,line=*::{reason}*"])
    result.stdout.fnmatch_lines([f"FAILED test_it.py::test_red* - Failed: {reason}*"])


@pytest.mark.parametrize(
    ("checkout", "told"), [("..", "{}/test_it.py"), (".", "test_it.py"), ("../other", "test_it.py")]
)
def test_an_annotation_names_the_file_from_the_repository_s_root(
    project: Project, monkeypatch: pytest.MonkeyPatch, checkout: str, told: str
) -> None:
    """Where pytest's rootdir is a folder of it; else as pytest names it."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str((project.path / checkout).resolve()))
    project.tests(gate("test_red", gamma=3, speculative_options={"fault": "wrong token"}))
    project.run().stdout.fnmatch_lines([f"::error file={told.format(project.path.name)},line=*"])


def test_an_annotation_s_file_is_the_real_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever links to the repository, and wherever below it pytest's rootdir is."""
    (link := project.path.with_name("link")).symlink_to(project.path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(link))
    project.tests(gate("test_red", gamma=3, speculative_options={"fault": "wrong token"}))
    (project.path / "below").mkdir()
    told = project.run("-c", "pytest.ini", "--rootdir=below")
    told.stdout.fnmatch_lines(["::error file=test_it.py,line=*"])


def test_a_test_that_cannot_be_collected_has_its_reason_in_the_summary(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the test's name."""
    monkeypatch.setenv("CI", "true")
    project.tests(gate("test_red", gama=3))
    project.run().stdout.fnmatch_lines(["ERROR test_it.py - test_it.py::test_red: *unknown key 'gama'*"])


def test_a_missed_limit_names_figure_limit_and_file(project: Project) -> None:
    """The scenario's own demand."""
    project.scenario((project.path / "scenarios/short.toml").read_text() + "min_speedup = 3.0\n")
    project.tests(gate("test_red", gamma=2))
    missed = next(line for line in project.run().outlines if line.startswith("speedup"))
    assert missed.startswith("speedup 1.52× is below min_speedup = 3 of ")
    assert "scenarios/short.toml; " in missed
