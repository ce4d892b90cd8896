"""Scenario files are found in files and folders, in a fixed order, each once, and no two have one name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.workloads.conftest import refusal_of

from pytest_specdec.workloads.scenario import discover


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder `s` with b.toml, a.toml and a file that is no scenario; the current folder is its parent."""
    scenarios = tmp_path / "s"
    scenarios.mkdir()
    for name in ("b.toml", "a.toml", "prompts.txt"):
        (scenarios / name).touch()
    return scenarios


def error_of(*paths: str) -> str:
    return refusal_of(discover, paths)


def test_a_folder_gives_its_toml_files_by_name(folder: Path) -> None:
    """Paths are as they were given."""
    assert discover(["s"]) == [Path("s/a.toml"), Path("s/b.toml")]
    assert discover([folder]) == [folder / "a.toml", folder / "b.toml"]


def test_a_file_stands_for_itself_and_counts_once(folder: Path) -> None:
    """Named again as part of its folder, it is not another scenario of the same name."""
    assert [path.name for path in discover(["s/b.toml", "s", folder])] == ["b.toml", "a.toml"]


def test_nothing_is_found_where_nothing_is_asked() -> None:
    """An empty list of paths is no mistake of a path."""
    assert discover([]) == []


def test_a_path_that_does_not_exist(folder: Path) -> None:
    """It is named."""
    assert error_of("s", "t") == "t: no such file or folder: name a scenario file or a folder of them"


def test_a_folder_without_scenarios(folder: Path) -> None:
    """Finding nothing is not success."""
    (folder / "t").mkdir()
    assert error_of("s/t") == "s/t: a folder without *.toml: put a scenario file there, or name another folder"


def test_two_scenarios_of_one_name(folder: Path) -> None:
    """By file name, and by the key `name`."""
    (folder.parent / "a.toml").touch()
    assert error_of("s", "a.toml") == "a.toml: s/a.toml is also named 'a': give one of them another `name`"
    (folder / "b.toml").write_text('name = "a"')
    assert error_of("s") == "s/b.toml: s/a.toml is also named 'a': give one of them another `name`"
    (folder / "a.toml").write_text('name = "c"')
    assert len(discover(["s"])) == 2


def test_a_broken_file_is_found_all_the_same(folder: Path) -> None:
    """What is wrong with it is told when it is loaded, not instead of the other scenarios."""
    (folder / "a.toml").write_text("name = ")
    assert len(discover(["s"])) == 2


def test_reading_scenarios_imports_no_engine() -> None:
    """Scenarios are read while tests are collected, so that must be cheap."""
    engines = "{'torch', 'vllm', 'transformers'}"
    code = f"import sys, pytest_specdec.workloads.scenario; print(sorted({engines} & set(sys.modules)))"
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
