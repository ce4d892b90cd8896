"""Every command of README and of the quick starts is run, or stands here with the reason why it is not."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_specdec

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/zh/quickstart.md", "examples/README.md")
BLOCK = re.compile(r"^```(?:sh|bash|shell|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = {
    "pip install pytest-specdec": "it is the package that is tested here",
    "pip install 'pytest-specdec[vllm]'": "an engine, several gigabytes",
    "pytest test_speculation.py --benchmark-autosave": "needs that engine, a GPU and the models",
    "pip install tox": "tox runs this test",
    "pytest-specdec demo": "tests/plugin/test_example.py runs it",
    "pytest test_exact.py": "tests/plugin/test_example.py runs it",
    "pytest test_faulty.py": "tests/plugin/test_example.py runs it",
    "tox -e bench": "needs engines",
    "tox -e tests": "runs this test",
}
SHIM = '#!/bin/sh\nexec {} -m {} "$@"\n'


def commands(block: str) -> tuple[str, ...]:
    """The lines of a block without what a comment says of them."""
    return tuple(shlex.join(words) for line in block.splitlines() if (words := shlex.split(line, comments=True)))


def blocks(page: str) -> list[tuple[str, ...]]:
    return [commands(found) for found in BLOCK.findall((ROOT / page).read_text("utf-8"))]


def run(command: str, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """One command there, as on a machine that has this package and nothing more."""
    names = [name for name in os.environ if not name.startswith(("SPECDEC_", "PYTEST_", "GITHUB_")) and name != "CI"]
    path = os.pathsep.join(filter(None, [str(Path(pytest_specdec.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    ours = {
        "PATH": os.pathsep.join([str(home), os.environ["PATH"]]),
        "PYTHONPATH": path,
        "PYTEST_ADDOPTS": "-p benchmark -p pytest_specdec.plugin",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    environment = {name: os.environ[name] for name in names} | ours
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of programs that are this interpreter's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program, module in (("pytest", "pytest"), ("pytest-specdec", "pytest_specdec")):
        shim = folder / program
        shim.write_text(SHIM.format(sys.executable, module))
        shim.chmod(0o755)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with tests of its own: the example."""
    hidden = shutil.ignore_patterns("__pycache__", ".*")
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "project", ignore=hidden))


@pytest.mark.parametrize("block", dict.fromkeys(block for page in PAGES for block in blocks(page)), ids=" ; ".join)
def test_what_is_written_can_be_run(block: tuple[str, ...], folder: Path, home: Path) -> None:
    """Line by line in one folder without the faulty engine, each with exit code 0."""
    (folder / "test_faulty.py").unlink()
    for command in block:
        if command not in NOT_RUN:
            ran = run(command, folder, home)
            assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"


def test_no_command_is_left_out_that_is_not_written() -> None:
    """A reason without its command is out of date."""
    assert set(NOT_RUN) - {command for page in PAGES for block in blocks(page) for command in block} == set()


def test_the_quick_starts_say_the_same() -> None:
    """A translation has README's commands, and no others."""
    assert [block for block in blocks("docs/zh/quickstart.md") if block not in blocks("README.md")] == []


def test_a_command_that_does_not_work_is_found(folder: Path, home: Path) -> None:
    """The check itself."""
    assert commands("pytest-specdec demonstrate  # a command of no release\n") == ("pytest-specdec demonstrate",)
    assert run("pytest-specdec demonstrate", folder, home).returncode == 2
