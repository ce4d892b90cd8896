"""What a release holds: `tox -e build` builds it, names its folder in DIST, and installs the wheel before this runs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import pytest

import pytest_specdec

ROOT = Path(__file__).parents[2]
DIST = Path(os.environ.get("DIST", ""))
VERSION = pytest_specdec.__version__
NAME = f"pytest_specdec-{VERSION}"
WHEEL = f"{NAME}-py3-none-any.whl"
SDIST = f"{NAME}.tar.gz"
NEEDED = (
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
    "tox.ini",
    "conftest.py",
    "action.yml",
    "Containerfile",
)

pytestmark = pytest.mark.skipif("DIST" not in os.environ, reason="`tox -e build` builds what is looked at here")


def in_wheel() -> set[str]:
    with zipfile.ZipFile(DIST / WHEEL) as wheel:
        return set(wheel.namelist())


def in_sdist() -> set[str]:
    """The files, without the folder that holds them all."""
    with tarfile.open(DIST / SDIST) as sdist:
        return {member.name.removeprefix(f"{NAME}/") for member in sdist if member.isfile()}


def in_tree(folder: str) -> set[str]:
    """The files of a folder of the repository, without what Python and pytest leave there."""
    names = (path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file())
    return {name for name in names if not name.endswith(".pyc") and "/." not in name}


def test_a_release_is_one_wheel_and_one_sdist_of_the_packages_version() -> None:
    """The version stands in the package, and nowhere else."""
    assert sorted(path.name for path in DIST.iterdir()) == sorted((WHEEL, SDIST))


def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    """Every file of it, templates too, and the example that `pytest-specdec demo` copies; no test, no document."""
    package = {name.removeprefix("plugins/") for name in in_tree("plugins/pytest_specdec")}
    package |= {f"pytest_specdec/{name}" for name in in_tree("examples") - in_tree("examples/another-engine")}
    rest = ("METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE", "RECORD")
    assert in_wheel() == package | {f"{NAME}.dist-info/{name}" for name in rest}


def test_the_sdist_holds_what_it_is_built_and_tested_with() -> None:
    """So that a distributor can run the tests of what it packages."""
    wanted = {*NEEDED, *in_tree("plugins"), *in_tree("tests"), *in_tree("examples"), *in_tree("scenarios")}
    assert wanted - in_sdist() == set()


def test_the_sdist_holds_no_results() -> None:
    """They are evidence of one day on one machine, and larger than all the rest."""
    assert [name for name in in_sdist() if name.startswith("docs/evidence/results")] == []


def test_neither_holds_what_a_run_leaves_behind() -> None:
    """No cache of pytest, no saved run, no compiled file."""
    left = (".pytest_cache", ".benchmarks", "__pycache__", ".hypothesis")
    assert [name for name in in_wheel() | in_sdist() if {*left} & {*name.split("/")}] == []


def test_the_container_installs_from_the_files_that_it_copies(tmp_path: Path) -> None:
    """Its lines as written, in a folder in place of the root; without what the package depends on."""
    lines = [shlex.split(line, comments=True) for line in (ROOT / "Containerfile").read_text("utf-8").splitlines()]
    for *names, target in (words[1:] for words in lines if words[:1] == ["COPY"]):
        for path in map(ROOT.joinpath, names):
            place = tmp_path / target.lstrip("/")
            copy = partial(shutil.copytree, dirs_exist_ok=True) if path.is_dir() else shutil.copy
            place.mkdir(parents=True, exist_ok=True)
            copy(path, place)
    (command,) = (words[1:] for words in lines if words[:1] == ["RUN"])
    there = [word.replace("/package", str(tmp_path / "package")).replace("${EXTRAS}", "vllm") for word in command]
    only = ["--no-deps", "--target", str(tmp_path / "installed")]
    subprocess.run([sys.executable, "-m", *there, *only], check=True)
    installed = {path.relative_to(tmp_path / "installed").as_posix() for path in (tmp_path / "installed").rglob("*")}
    assert in_wheel() - installed == set()
