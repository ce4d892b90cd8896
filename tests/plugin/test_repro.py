"""`--specdec-repro FOLDER`: a red gate's message ends with where its bug report lies, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

RED = """
@pytest.mark.specdec(gamma=3, speculative_options={"fault": "wrong token"})
def test_red(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)
"""


def test_a_red_gate_says_why_there_is_no_report(project: Project) -> None:
    """The fake engine is nobody's to be told of."""
    project.tests(RED)
    result = project.run("--specdec-repro=reports")
    result.stdout.fnmatch_lines(["no bug report: no script is known for the engine 'fake', only for *"])
    assert not (project.path / "reports").exists()


@pytest.mark.parametrize("asked", [(), ("--specdec-repro=reports", "--deselect=test_it.py::test_red")])
def test_nothing_is_said_unless_asked_for_a_red_gate(project: Project, asked: tuple[str, ...]) -> None:
    """Neither without the option nor by a green gate."""
    project.tests(RED + "\ndef test_green(specdec, spec_engine, scenario):\n    specdec(spec_engine, scenario)\n")
    project.run(*asked).stdout.no_fnmatch_line("*bug report*")
