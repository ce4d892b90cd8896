"""A project of its own for each test: its test file uses the plugin's fixtures, and the fake engine answers in no time.

The project has an ini file that names the fake engine and its clock, a scenario of two prompts, and a conftest that
registers the faults of tests/mutants and notes each engine as it is loaded. `run` starts pytest in it within this
process; `run_apart` in a fork of another, where signals, threads or pytest-xdist matter; `run_afresh` by an interpreter
of its own, where imports or hashing do. Each costs several times what the one before it does.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import default_plugins
from tests.plugin.forks import answers_known, prepare
from tests.plugin.gates import INI

import pytest_specdec
from pytest_specdec.engines.fake import TIME
from pytest_specdec.record import Record, from_json

PLUGINS = ("-p", "benchmark", "-p", "xdist", "-p", "pytest_specdec.plugin", "-p", "no:cacheprovider")
USED_BY_EVERY_RUN = ("execnet", "faults", "rich.console", "rich.table", "scipy.special", "xdist.plugin")
IMPORTED_BEFORE = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")
OUTER_VARIABLES = (
    "CI",
    "GITHUB_ACTIONS",
    "GITHUB_STEP_SUMMARY",
    "GITHUB_WORKSPACE",
    "PYTEST_ADDOPTS",
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_WORKER_COUNT",
)

SCENARIO = """
source = { format = "ids", prompts = [[5, 9], [8, 12, 4]] }
max_tokens = 8
concurrency = 2
rounds = 2
"""
FAULTS = Path(__file__).parents[1] / "mutants"
CONFTEST = f"""
import os
import sys
from pathlib import Path

import pytest

def pytest_benchmark_generate_machine_info():
    return {{}}

def pytest_benchmark_generate_commit_info(config):
    return {{}}

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_specdec_start_engine(spec):
    sys.path.append({str(FAULTS)!r})
    import faults
    with Path(__file__).with_name("loads.txt").open("a") as loads:
        loads.write(f"{{os.environ.get('PYTEST_XDIST_WORKER', 'main')}} {{spec.key}} {{spec.label}}\\n")
    return (yield)
"""
TESTS = """
import pytest

pytestmark = pytest.mark.specdec(target="t", draft="d", scenario="scenarios/short.toml")
"""


# What makes checkpoints has torch, and is a process of its own.
OF_OTHER_PROCESSES = ("__main__", "models.checkpoint", "models.circuit")


class Forks:
    """A process that runs pytest in forks of itself."""

    def __init__(self) -> None:
        command = [sys.executable, Path(__file__).with_name("forks.py"), *_needed_by_runs()]
        path = os.pathsep.join([str(FAULTS), os.environ["PYTHONPATH"]])
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, folder: Path, options: tuple[str, ...]) -> pytest.RunResult:
        """Run pytest there."""
        files = [folder / name for name in ("stdout", "stderr")]
        for file in files:
            file.write_text("")
        told = {
            "folder": str(folder),
            "environment": dict(os.environ),
            "options": [*options, *IMPORTED_BEFORE],
            "files": [*map(str, files)],
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(told), file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        return pytest.RunResult(status, *(file.read_text().splitlines() for file in files), duration=0.0)

    def close(self) -> None:
        """End it."""
        self._process.communicate()


class Project:
    """The inner project: files go in, a run's result, its JSON and its loads come out."""

    def __init__(self, pytester: pytest.Pytester, forks: Callable[[], Forks]) -> None:
        self.path = pytester.path
        self._pytester = pytester
        self._forks = forks
        self.write("pytest.ini", INI)
        self.scenario(SCENARIO)
        self.conftest("")

    def write(self, name: str, text: str) -> Path:
        """Put a file into the project."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
        return path

    def tests(self, source: str, header: str = TESTS) -> None:
        """The project's test file: by default its tests have the target t, the draft d and the scenario short."""
        self.write("test_it.py", textwrap.dedent(header) + textwrap.dedent(source))

    def conftest(self, source: str) -> None:
        """What the project's conftest has beyond noting the loads."""
        self.write("conftest.py", CONFTEST + textwrap.dedent(source))

    def scenario(self, text: str, name: str = "short") -> None:
        """A scenario file in the folder `scenarios`."""
        self.write(f"scenarios/{name}.toml", text)

    def run(self, *options: str) -> pytest.RunResult:
        """Run pytest here, in this process."""
        return self._pytester.runpytest_inprocess(*PLUGINS, *options)

    def run_apart(self, *options: str) -> pytest.RunResult:
        """Run pytest here, in a forked process."""
        return self._forks().run(self.path, (*PLUGINS, *options))

    def run_afresh(self, *options: str) -> pytest.RunResult:
        """Run pytest here, by a new interpreter."""
        return self._pytester.runpytest_subprocess(*PLUGINS, *options)

    def ids(self, *options: str) -> list[str]:
        """The collected tests in the order they would run, without the file's name."""
        lines = self.run("--collect-only", "-q", *options).outlines
        return [line.partition("::")[2] for line in lines if line.startswith("test_it.py::")]

    def benchmarks(self, *options: str) -> dict[str, dict[str, Any]]:
        """Run, and return what pytest-benchmark wrote, by the test's name."""
        self.run("--benchmark-json=out.json", *options)
        return {bench["name"]: bench for bench in strict_json(self.path / "out.json")["benchmarks"]}

    def records(self, *options: str) -> dict[str, Record]:
        """Run, and return the records in pytest-benchmark's JSON, by the test's name."""
        return {name: from_json(bench["extra_info"]["specdec"]) for name, bench in self.benchmarks(*options).items()}

    def loads(self) -> list[str]:
        """The label of each engine that was loaded or tried, in order."""
        return [label for _, _, label in self.loads_by_worker()]

    def loads_by_worker(self) -> list[tuple[str, str, str]]:
        """(pytest-xdist's worker or "main", engine key, label) of each engine that was loaded or tried."""
        noted = self.path / "loads.txt"
        lines = noted.read_text().splitlines() if noted.exists() else []
        return [(worker, key, label) for worker, key, label in map(str.split, lines)]


def strict_json(path: Path) -> Any:
    """A JSON file, read as the standard has it: NaN and Infinity are refused."""
    return json.loads(path.read_text(), parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture(scope="session")
def _prepared() -> Iterator[None]:
    """Runs within this process forget what they imported; what most of them need stays: this package, above all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FAULTS)
        prepare(_needed_by_runs())
        yield


def _needed_by_runs() -> list[str]:
    ours = [module.name for module in pkgutil.walk_packages(pytest_specdec.__path__, "pytest_specdec.")]
    pytests = [f"_pytest.{name}" for name in default_plugins]
    return [*pytests, *USED_BY_EVERY_RUN, *(name for name in ours if not name.endswith(OF_OTHER_PROCESSES))]


@pytest.fixture(scope="session")
def _forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture
def project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, _prepared: None
) -> Iterator[Project]:
    """An empty project, out of reach of this run's settings; its runs have this run's package and no other plugins."""
    for name in [name for name in os.environ if name.startswith("SPECDEC_") or name in OUTER_VARIABLES]:
        monkeypatch.delenv(name)
    root = str(Path(pytest_specdec.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", root, prepend=os.pathsep)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(TIME, "now", 0.0)  # after much time a round's is rounded otherwise
    with answers_known():
        yield Project(pytester, lambda: request.getfixturevalue("_forks"))
