"""The action for GitHub does as its steps say: its shell steps are run here as a runner runs them, on the example."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import pytest_specdec

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
OTHERS = STEPS[1:]  # than that which installs
EXPRESSION = re.compile(r"\$\{\{ (.+?) \}\}")
INPUT = re.compile(r"\binputs\.([\w-]+)")
BASH = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail")
INSTALLED = "pytest"  # so pip is done without a look at an index


@dataclass(frozen=True)
class Job:
    """What a job gave: the exit code of each shell step until one failed, what was printed, and the job's summary."""

    codes: list[int]
    printed: str
    summary: str


def filled(text: str, inputs: dict[str, str]) -> str:
    """A value with its inputs in their places; any other expression is an error here."""
    return EXPRESSION.sub(lambda found: inputs[found[1].removeprefix("inputs.")], text)


def run_action(folder: Path, steps: Sequence[dict[str, Any]] = STEPS, **given: str) -> Job:
    """The shell steps in their order, up to the first that fails."""
    inputs = {name: told["default"] for name, told in ACTION["inputs"].items()} | {"package": INSTALLED} | given
    summary, codes, printed = folder / "summary.md", [], ""
    for step in [step for step in steps if "run" in step]:
        script = folder / "step.sh"
        script.write_text(filled(step["run"], inputs))
        told = {name: filled(value, inputs) for name, value in step["env"].items()}
        where = folder / filled(step.get("working-directory", "."), inputs)
        environment = on_a_runner(folder, summary) | told
        ran = subprocess.run([*BASH, script], cwd=where, env=environment, capture_output=True, text=True, check=False)
        codes, printed = [*codes, ran.returncode], printed + ran.stdout + ran.stderr
        if ran.returncode:
            break
    return Job(codes, printed, summary.read_text() if summary.exists() else "")


def on_a_runner(folder: Path, summary: Path) -> dict[str, str]:
    """The environment of a step, with this interpreter as python and this package in it."""
    python = folder / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPECDEC_", "PYTEST_"))}
    root = str(Path(pytest_specdec.__file__).parents[1])
    return kept | {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "PYTEST_ADDOPTS": "-p benchmark -p pytest_specdec.plugin",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose gates are the example's, in a folder of it."""
    shutil.copytree(ROOT / "examples", tmp_path / "gates", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return tmp_path


def results(repository: Path) -> list[str]:
    """The files that the action uploads, a saved run without its number and date."""
    files = (repository / "gates" / ".specdec").rglob("*")
    return sorted(re.sub(r"\d{4}_.*", "RUN", path.name) for path in files if path.is_file())


def test_a_green_repository_is_green_and_is_held_against_its_base(repository: Path) -> None:
    """Its run is kept, and the next one, as a pull request's, is compared with it: slower by more than asked is red."""
    green = {"working-directory": "gates", "tests": "test_exact.py"}
    first = run_action(repository, **green)
    assert first.codes == [0, 0], first.printed
    assert "identical" in first.summary
    assert results(repository)[0] == "RUN"
    engine = """--specdec-engine-options '{"model": "context", "near_tie_rate": 0, "step_seconds": 2}' test_exact.py"""
    second = run_action(repository, OTHERS, **(green | {"tests": engine}))
    assert second.codes == [1], second.printed
    assert "tokens_per_second" in second.summary


def test_a_red_repository_is_red_and_hands_over_its_script(repository: Path) -> None:
    """With an annotation at its test, and the report, the script and the results to be uploaded."""
    job = run_action(repository, OTHERS, **{"working-directory": "gates"})
    assert job.codes == [1], job.printed
    assert "divergent" in job.summary
    assert "::error file=test_faulty.py" in job.printed
    names = [name for name in results(repository) if not name.startswith("report.")]
    script = "fake-arithmetic-draft_model-g2-numbers"
    assert names == ["RUN", f"{script}.md", f"{script}.py", "results.xml"]


def test_every_input_is_used_and_every_used_one_is_there() -> None:
    """And each says what it is for."""
    assert set(INPUT.findall(yaml.safe_dump(STEPS))) == set(ACTION["inputs"])
    assert [name for name, told in ACTION["inputs"].items() if not told["description"]] == []


def test_a_pull_request_finds_what_its_base_has_kept() -> None:
    """The key that is looked for begins the key of each run that a branch keeps."""
    looked_for, kept = (step["with"] for step in STEPS if step.get("uses", "").startswith("actions/cache/"))
    begin = looked_for["restore-keys"].replace("github.base_ref || github.ref_name", "github.ref_name")
    assert kept["key"].startswith(begin)
    assert kept["path"] == looked_for["path"]


def workflows() -> list[dict[str, Any]]:
    """The example workflows of docs/ci.md."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "ci.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(block) for block in blocks]


def test_the_example_workflows_give_inputs_that_are_there() -> None:
    """Each of them uses the action."""
    steps = [[step for job in each["jobs"].values() for step in job["steps"]] for each in workflows()]
    ours = [[step for step in each if step.get("uses", "").startswith("pytest-specdec/")] for each in steps]
    assert [len(each) for each in ours] == [1] * len(workflows())
    assert {name for (step,) in ours for name in step.get("with", {})} <= set(ACTION["inputs"])


def test_the_container_is_built_of_what_is_here() -> None:
    """The files it copies, the extras it installs."""
    lines = [line.split() for line in (ROOT / "Containerfile").read_text().splitlines()]
    copied = [name for words in lines if words[0] == "COPY" for name in words[1:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    (extras,) = (words[1].removeprefix("EXTRAS=").split(",") for words in lines if words[0] == "ARG")
    assert [extra for extra in extras if f"\n{extra} = [" not in (ROOT / "pyproject.toml").read_text()] == []
