"""One set of commands, that of tox: by hand, before a commit and in the workflow, on every Python that is claimed."""

from __future__ import annotations

import configparser
import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_specdec.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHON = "Programming Language :: Python :: "
SET_UP = ("python -m pip install tox",)


def tox() -> dict[str, dict[str, str]]:
    """tox's environments by name; one that is written with braces stands under each name that they give."""
    read = configparser.ConfigParser(interpolation=None)
    read.read(ROOT / "tox.ini")
    sections = {name.removeprefix("testenv:"): dict(read[name]) for name in read if name.startswith("testenv:")}
    return {name: keys for written, keys in sections.items() for name in expand(written)}


def expand(name: str) -> list[str]:
    braces = re.search(r"\{([^}]*)\}", name)
    return [name.replace(braces.group(), each) for each in braces.group(1).split(",")] if braces else [name]


def claimed_versions() -> list[str]:
    """The versions of Python that the classifiers name, as "3.10"."""
    return re.findall(rf"^{PYTHON}(3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)


def without_options(command: str) -> str:
    return " ".join(word for word in command.split() if not word.startswith("-"))


def commands(workflow: dict[str, Any]) -> list[str]:
    """What the steps of all jobs run, with each row of a matrix put in its place."""
    found = []
    for job in workflow["jobs"].values():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        found += [fill(step["run"], row) for step in job["steps"] if "run" in step for row in rows]
    return found


def fill(command: str, row: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda name: row[name.group(1)], command)


def missing(command: str, environments: dict[str, Any]) -> bool:
    """Whether the command is neither a set-up, nor a tox environment, nor a script that is there."""
    program, _, rest = command.partition(" ")
    if program == "tox":
        return not re.fullmatch(r"-e [\w-]+", rest) or rest.removeprefix("-e ") not in environments
    return command not in SET_UP and not (program == "bash" and (ROOT / rest).is_file())


def test_a_commit_is_checked_as_lint_checks() -> None:
    """The hooks are the commands of `tox -e lint`, no fewer and no more."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [without_options(hook["entry"]) for repo in config["repos"] for hook in repo["hooks"]]
    assert hooks == [without_options(command) for command in tox()["lint"]["commands"].split("\n") if command]


def test_every_python_that_is_claimed_has_an_environment() -> None:
    """And the oldest of them is the one that pip demands."""
    environments = tox()
    assert [name for name in environments if name.startswith("unit-py")] == [
        f"unit-py{version.replace('.', '')}" for version in claimed_versions()
    ]
    interpreters = re.findall(r"py(\d+): python([\d.]+)", environments["unit-py310"]["base_python"])
    assert interpreters == [(version.replace(".", ""), version) for version in claimed_versions()]
    assert PROJECT["requires-python"] == f">={claimed_versions()[0]}"


def test_the_workflow_has_every_python_that_is_claimed() -> None:
    """Each in its own environment."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["unit"]["strategy"]["matrix"]["include"] == [
        {"python": version, "environment": f"unit-py{version.replace('.', '')}"} for version in claimed_versions()
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_command_of_a_workflow_is_there(path: Path) -> None:
    """So what fails there can be run by hand; all of it is run, the tests of real engines too."""
    environments = tox()
    ran = commands(yaml.safe_load(path.read_text()))
    assert {"tox -e lint", "tox -e docs", "bash .ci/run"} <= set(ran)
    assert [command for command in ran if missing(command, environments)] == []


@pytest.mark.parametrize("command", ["tox -e unit-py39", "tox", "bash .ci/gone", "pytest tests"])
def test_a_command_that_is_not_there_is_found(command: str) -> None:
    """The check itself can fail."""
    assert missing(command, tox())


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_asks_what_the_machine_has(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It demands the doctor's JSON, by a command that is there, and every question has a name of its own."""
    form = yaml.safe_load(path.read_text())
    questions = {part["id"]: part for part in form["body"] if part["type"] != "markdown"}
    assert len(questions) == sum(part["type"] != "markdown" for part in form["body"])
    asked = questions["doctor"]["attributes"]["description"].removeprefix("The output of: ")
    program, *arguments = asked.split()
    assert PROJECT["scripts"][program] == "pytest_specdec.cli:main"
    assert main(arguments) == 0
    assert "processor" in json.loads(capsys.readouterr().out)
    assert questions["doctor"]["validations"] == {"required": True}


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"NUMBA_NUM_THREADS": "4"}, "4")])
def test_lookup_in_the_suite_has_one_thread_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], threads: str
) -> None:
    """Beside one busy core it is twenty times slower with two."""
    monkeypatch.setattr(os, "environ", given)
    runpy.run_path(str(ROOT / "tests" / "conftest.py"))
    assert given["NUMBA_NUM_THREADS"] == threads
