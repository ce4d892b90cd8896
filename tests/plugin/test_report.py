"""`--specdec-report FILE`: the report of the session that just ran, which has its red gates as well."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import SPECULATIVE, WRONG_TOKEN, gate

GATES = (
    gate("test_target_only", "ar_engine")
    + gate("test_green", gamma=3)
    + gate("test_red", **WRONG_TOKEN)
    + gate("test_dead", gamma=3, speculative_options={"fault": "dies"})
)


def rows(project: Project, *options: str) -> dict[str, dict[str, Any]]:
    """The report's gates by the name of the test, as JSON has them."""
    project.tests(GATES)
    result = project.run("--specdec-report=out/report.json", *options)
    result.stdout.fnmatch_lines(["report: out/report.json"])
    told = json.loads((project.path / "out/report.json").read_text())["rows"]
    return {row["test"].partition("::")[2].partition("[")[0]: row for row in told}


def test_red_gates_are_in_it(project: Project) -> None:
    """Unlike pytest-benchmark's files; with both sides around the first difference, and an engine's last words."""
    found = rows(project)
    assert {name: row["gate"] for name, row in found.items()} == {
        "test_target_only": "green",
        "test_green": "green",
        "test_red": "red",
        "test_dead": "red",
    }
    first = found["test_red"]["divergences"][0]
    assert [(side["before"], side["at"], side["after"]) for side in first["sides"]] == [
        ("77 53 85", "9", "77 53 85 9"),
        ("77 53 85", "3", "35 3 35 3"),
    ]
    assert found["test_red"]["words"][0].startswith("divergent: 4 divergent, 4 identical of 8 generations on short")
    assert found["test_dead"]["words"] == ["the fake engine died while decoding"]
    assert {row["group"] for row in found.values()} == {"short · fake · t bf16 · fake"}


def test_a_test_that_fails_after_its_gate_is_red_too(project: Project) -> None:
    """The gate was green, the test is not."""
    project.tests(SPECULATIVE.rstrip() + "\n    assert False\n")
    project.run("--specdec-report=report.json")
    (row,) = json.loads((project.path / "report.json").read_text())["rows"]
    assert (row["gate"], row["outcome"]) == ("red", "identical")
    assert "its own assertions say why" in row["words"][0]


def test_the_page_is_written(project: Project) -> None:
    """By its suffix."""
    project.tests(GATES)
    project.run("--specdec-report=report.html")
    page = (project.path / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "2 of 4 gates red" in page


def test_a_suffix_that_says_nothing_is_refused_at_once(project: Project) -> None:
    """Before an engine is loaded."""
    project.tests(GATES)
    result = project.run("--specdec-report=report.pdf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--specdec-report: report.pdf: a report ends in .html, *"])
    assert project.loads() == []


def test_a_session_without_gates_says_so(project: Project) -> None:
    """No empty report that looks like a good one."""
    project.tests("def test_nothing():\n    pass\n")
    project.run("--specdec-report=report.html").stdout.fnmatch_lines(["no gate ran, so there is no report in *"])
    assert not (project.path / "report.html").exists()


def test_the_report_is_no_reason_to_load_its_packages_early(project: Project) -> None:
    """Jinja2 is loaded when the report is written."""
    project.conftest(
        """
        import sys
        def pytest_runtest_call(item):
            assert "jinja2" not in sys.modules
        """
    )
    project.tests(SPECULATIVE)
    project.run_apart("--specdec-report=report.html").assert_outcomes(passed=1)
