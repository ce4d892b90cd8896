"""The example does as its README says, by `pytest-specdec demo` too; what `pytest-specdec init` writes is collected."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.plugin.conftest import Project

import pytest_specdec
from pytest_specdec import first_project
from pytest_specdec.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples"
TO_FILE = '#!/bin/sh\nprintf %s "$1" > "$(dirname "$0")/opened"\n'


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
    """With figures that pytest-benchmark keeps."""
    result = example.run_apart("test_exact.py", "--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    assert [(each["gate"], each["verdict"]["outcome"], each["asked"]["gamma"]) for each in read_records(example)] == [
        ("green", "identical", 4)
    ]


def test_a_faulty_engine_is_red(example: Project) -> None:
    """By the name of what it did, with the token where it began, and without a figure."""
    result = example.run_apart("test_faulty.py", "--benchmark-json=out.json")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["divergent: * of 20 generations on numbers", "  first difference at token *"])
    assert read_records(example) == []


@dataclass(frozen=True)
class Demo:
    """What the command gave."""

    folder: Path
    status: int
    lines: list[str]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """`pytest-specdec demo --open` as a user runs it, in an environment that would set up pytest in another way."""
    home = tmp_path_factory.mktemp("demo")
    browser = home / "browser"
    browser.write_text(TO_FILE)
    browser.chmod(0o755)
    root = str(Path(pytest_specdec.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    unwelcome = {"SPECDEC_GAMMA": "7", "PYTEST_ADDOPTS": "--collect-only", "GITHUB_STEP_SUMMARY": str(home / "summary")}
    environment = {**os.environ, **unwelcome, "PYTHONPATH": path, "BROWSER": f"{browser} %s"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "pytest_specdec", "demo", str(home / "new"), "--open"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return Demo(home / "new", ran.returncode, ran.stdout.splitlines())


def test_the_demo_goes_as_it_foretells(demo: Demo) -> None:
    """One green gate, one red one with window, gap and hint, the table and the decision, and what to do next."""
    assert demo.status == 0
    pytest.LineMatcher(demo.lines).fnmatch_lines(
        [
            "divergent: 5 divergent, 15 identical of 20 generations on numbers",
            "request 2, *: token 6 is 4.188 below the target's argmax 25 (67 ULPs)*",
            "  target only  * [[]25] *",
            "  this engine  * [[]3] *",
            "  hint: *",
            "bug report: bug-reports/*.py",
            "*numbers*draft_model*2*divergent*",
            "*numbers*draft_model*4*identical*",
            "  γ = 2 (draft_model arithmetic-draft) is red: divergent; use γ = 4 *",
            "*1 failed, 1 passed*",
            "As foretold: *",
            "What to do next: *",
        ]
    )


def test_what_the_demo_names_is_there(demo: Demo) -> None:
    """The report, opened as asked, and a script that shows the fault; the summary of a job it runs in is left alone."""
    (report,) = (Path(line.split(": ")[1]) for line in demo.lines if line.startswith("All figures"))
    assert report.parent == demo.folder
    assert "divergent" in report.read_text()
    assert (demo.folder.parent / "opened").read_text() == report.as_uri()
    (script,) = (line.rpartition(": python ")[2] for line in demo.lines if ": python " in line)
    assert subprocess.run([sys.executable, script], capture_output=True, check=False).returncode == 1
    assert not (demo.folder.parent / "summary").exists()


def test_the_demo_s_project_is_the_example(demo: Demo) -> None:
    """One source: a file of the example that the demo does not bring is missed here."""
    files = [path.name for path in EXAMPLE.iterdir() if path.is_file()]
    assert {name: (demo.folder / name).read_bytes() for name in files} == {
        name: (EXAMPLE / name).read_bytes() for name in files
    }


def test_the_demo_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even an empty folder: the error asks for a new one."""
    assert main(["demo", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} is there already, and nothing is overwritten: name a new folder\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_goes_otherwise_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here the fault that should be red is mended."""
    mended = tmp_path / "examples"
    shutil.copytree(EXAMPLE, mended, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    faulty = mended / "test_faulty.py"
    faulty.write_text(faulty.read_text().replace(', speculative_options={"fault": "wrong token"}', ""))
    monkeypatch.setattr(first_project, "EXAMPLES", (mended,))
    monkeypatch.setenv("PYTHONPATH", str(Path(pytest_specdec.__file__).parents[1]), prepend=os.pathsep)
    assert main(["demo", str(tmp_path / "new")]) == 1
    assert "Not as foretold: {'test_exact': 'passed', 'test_faulty': 'passed'}" in capsys.readouterr().out


MODELS = ("--target", "org/target", "--gamma", "2,4")


@pytest.mark.parametrize(
    ("engine", "more", "gates"),
    [
        ("vllm", ("--draft", "org/draft"), ["target-target", "target-draft_model-g2", "target-draft_model-g4"]),
        ("vllm", ("--draft", "org/head", "--method", "eagle"), ["target-target", "target-eagle-g2", "target-eagle-g4"]),
        ("transformers", (), ["target-target", "target-prompt_lookup-g2", "target-prompt_lookup-g4"]),
    ],
)
def test_what_init_writes_is_collected(
    project: Project, capsys: pytest.CaptureFixture[str], engine: str, more: tuple[str, ...], gates: list[str]
) -> None:
    """The target alone, and a gate for each γ, as the printed command plans them; nothing is loaded."""
    assert main(["init", "tests", "--engine", engine, *MODELS, *more]) == 0
    (printed,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("What would run:"))
    result = project.run(*printed.split()[4:])
    planned = [line.split() for line in result.outlines if line.endswith(": prompts")]
    assert [(words[0], words[1]) for words in planned] == [(gate, f"({engine},") for gate in gates]
    assert project.loads() == []


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If one file is there, neither is written."""
    (tmp_path / "prompts.toml").write_text("mine")
    assert main(["init", str(tmp_path), "--engine", "vllm", *MODELS]) == 2
    assert "prompts.toml: there already, and nothing is overwritten" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"prompts.toml": "mine"}
    assert main(["init", str(tmp_path / "prompts.toml"), "--engine", "vllm", *MODELS]) == 2
    assert f"{tmp_path / 'prompts.toml'} is a file: name a folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["demo"], ["init", "--engine", "vllm", *MODELS]], ids=["demo", "init"])
def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Below a file there is none."""
    (tmp_path / "file").write_text("mine")
    assert main([*command, str(tmp_path / "file" / "tests")]) == 2
    assert re.search(r"file/tests\S* cannot be written: Not a directory", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("--method", "eagle"), "method 'eagle' drafts with a model of its own: name it as the draft"),
        (("--draft", "org/draft", "--method", "egle"), "vllm has no method 'egle'; did you mean 'eagle'?"),
        (("--method", "prompt_lookup"), "vllm has no method 'prompt_lookup'; `pytest-specdec methods` lists"),
        (("--draft", "org/draft", "--method", "none"), "method 'none' does not speculate"),
        (("--draft", "constructed:nowhere"), "constructed:nowhere"),
    ],
)
def test_init_refuses_what_collection_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: tuple[str, ...], words: str
) -> None:
    """By the same words, and writes nothing."""
    assert main(["init", str(tmp_path), "--engine", "vllm", *MODELS, *wrong]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
