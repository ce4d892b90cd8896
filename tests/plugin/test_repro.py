"""`--specdec-repro FOLDER`: a red gate's message ends with where its bug report lies, or why there is none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.plugin.conftest import Project

RED = """
@pytest.mark.specdec(gamma=3, speculative_options={"fault": "wrong token"})
def test_red(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)
"""


def test_a_red_gate_says_why_there_is_no_report(project: Project) -> None:
    """Another plugin's engine: nobody knows its API."""
    project.conftest("""
        from pytest_specdec.engines.fake import FakeEngine

        @pytest.hookimpl
        def pytest_specdec_start_engine(spec):
            return FakeEngine(spec) if spec.backend == "ours" else None
        """)
    project.tests(RED)
    result = project.run("--specdec-repro=reports", "--specdec-engine=ours")
    result.stdout.fnmatch_lines(["no bug report: no script is known for the engine 'ours', only for *"])
    assert not (project.path / "reports").exists()


def test_the_fake_engine_s_script_shows_its_fault_and_sees_it_gone(project: Project) -> None:
    """1 while the fault is there, 2 where it cannot be tried, 0 once it is mended."""
    project.tests(RED)
    project.run("--specdec-repro=reports").stdout.fnmatch_lines(["bug report: reports/fake-t-draft_model-g3-short.py"])
    script = project.path / "reports" / "fake-t-draft_model-g3-short.py"
    assert "speculative_options = {'fault': 'wrong token'}\n" in script.with_suffix(".md").read_text()
    assert [exit_code(script, fault) for fault in ("'wrong token'", "'unknown'", "None")] == [1, 2, 0]


def exit_code(script: Path, fault: str) -> int:
    """What the script exits with, once it names this fault."""
    script.write_text(re.sub("'fault': '[^']*'", f"'fault': {fault}", script.read_text()))
    return subprocess.run([sys.executable, script], capture_output=True, check=False).returncode


@pytest.mark.parametrize("asked", [(), ("--specdec-repro=reports", "--deselect=test_it.py::test_red")])
def test_nothing_is_said_unless_asked_for_a_red_gate(project: Project, asked: tuple[str, ...]) -> None:
    """Neither without the option nor by a green gate."""
    project.tests(RED + "\ndef test_green(specdec, spec_engine, scenario):\n    specdec(spec_engine, scenario)\n")
    project.run(*asked).stdout.no_fnmatch_line("*bug report*")
