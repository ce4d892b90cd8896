"""What is built is what is tested, under pins that cover it, and a check run that tested nothing fails."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import pytest_specdec.plugin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def distribution_name(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def pinned_names() -> list[str]:
    lines = (ROOT / ".ci" / "constraints-cpu.txt").read_text().splitlines()
    return [distribution_name(line) for line in lines if line and not line.startswith("#")]


def tox_environment(name: str) -> configparser.SectionProxy:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    return tox[f"testenv:{name}"]


def extras_of_the_tests() -> list[str]:
    extras = re.search(r"--extras (\S+)", tox_environment("tests")["commands_pre"])
    assert extras is not None
    return extras.group(1).split(",")


def test_every_dependency_of_the_tests_is_pinned() -> None:
    requirements = list(PROJECT["dependencies"])
    for extra in extras_of_the_tests():
        requirements += PROJECT["optional-dependencies"][extra]
    needed = {distribution_name(one) for one in requirements if "python_version <" not in one}
    assert needed - set(pinned_names()) == set()


def test_the_engines_are_set_up_where_tox_shows_what_is_printed() -> None:
    """tox hides the output of an install command, and shows that of a command as it comes."""
    tests = tox_environment("tests")
    assert ("engines.py" in tests["commands_pre"], "engines.py" in tests["install_command"]) == (True, False)


def test_no_distribution_is_pinned_twice() -> None:
    names = pinned_names()
    assert sorted(names) == sorted(set(names))


def test_the_plugin_is_registered_under_its_module_path() -> None:
    assert PROJECT["entry-points"]["pytest11"] == {"pytest_specdec.plugin": pytest_specdec.plugin.__name__}


def test_the_tests_run_against_the_installed_wheel() -> None:
    try:
        installed = metadata.distribution("pytest-specdec")
    except metadata.PackageNotFoundError:
        pytest.skip("the package is not installed here; `tox -e tests` builds and installs it")
    if '"editable": true' in (installed.read_text("direct_url.json") or ""):
        pytest.skip("the package is installed in place; `tox -e tests` builds and installs a wheel")
    files = {Path(str(file.locate())) for file in installed.files or []}
    assert Path(pytest_specdec.plugin.__file__) in files
    assert ROOT / "plugins" not in map(Path, sys.path)


def run_checks(folder: Path, tox: str) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` with `tox`, a shell script, standing for the real one."""
    folder.joinpath("tox").write_text(f"#!/bin/sh\n{tox}\n")
    folder.joinpath("tox").chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(ROOT / ".ci" / "run")]
    return subprocess.run(
        command,
        check=False,
        env={**os.environ, "PATH": path, "CI": "true"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_the_check_run_passes_and_ends_with_pytests_closing_line(tmp_path: Path) -> None:
    closing = "=========== 3 passed, 1 skipped in 2.10s ==========="
    done = run_checks(tmp_path, f"echo '{closing}'; echo '  tests: OK'")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, closing)


@pytest.mark.parametrize(
    "tox",
    [
        pytest.param("echo '=== no tests ran in 0.01s ==='", id="no tests"),
        pytest.param("echo '=== 4 skipped in 0.01s ==='", id="all skipped"),
        pytest.param("true", id="silence"),
        pytest.param("echo '=== 1 failed, 3 passed in 1.00s ==='; exit 1", id="a failure"),
        pytest.param("echo '=== 3 passed in 1.00s ==='; [ $3 != lint ]", id="lint"),
    ],
)
def test_the_check_run_fails(tmp_path: Path, tox: str) -> None:
    assert run_checks(tmp_path, tox).returncode != 0
