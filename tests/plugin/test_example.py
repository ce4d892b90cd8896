"""The example project does what its README says: run as a user would, with nothing but the package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

EXAMPLE = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(project: Project) -> Project:
    """A copy of the example, with its own ini file, and no conftest."""
    (project.path / "conftest.py").unlink()
    shutil.copytree(EXAMPLE, project.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return project


def read_records(example: Project) -> list[dict[str, Any]]:
    """The records that pytest-benchmark wrote."""
    saved = json.loads((example.path / "out.json").read_text())
    return [each["extra_info"]["specdec"] for each in saved["benchmarks"]]


def test_a_sound_engine_is_green(example: Project) -> None:
    """The target alone and each γ, with figures that pytest-benchmark keeps."""
    result = example.run_afresh("test_exact.py", "--benchmark-json=out.json")
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.OK
    assert [(each["gate"], each["verdict"]["outcome"], each["asked"]["gamma"]) for each in read_records(example)] == [
        ("green", "identical", None),
        ("green", "identical", 2),
        ("green", "identical", 4),
    ]


def test_a_faulty_engine_is_red(example: Project) -> None:
    """By the name of what it did, with the token where it began, and without a figure."""
    result = example.run_apart("test_faulty.py", "--benchmark-json=out.json")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["divergent: * of 40 generations on numbers", "  first difference at token *"])
    assert read_records(example) == []
