"""A session that ends before its time: what was measured is saved and shown, and it is said that gates are missing.

The inner project has three gates, γ = 2, 3 and 4. Its engine, or a hook of its conftest, sends SIGTERM to pytest at the
moment that the test names.
"""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytest_benchmark.utils import get_machine_id
from tests.plugin.conftest import Project
from tests.plugin.gates import gate

from pytest_specdec.engines.process_group import live_members
from pytest_specdec.history.history import run_path
from pytest_specdec.history.saved import UnreadableRun, all_paths, paths_in, read_run, unfinished_line, unfinished_name
from pytest_specdec.interruption import Unfinished
from pytest_specdec.record import Record, to_json

TERMINATED = 128 + signal.SIGTERM
EARLIER = b'{"benchmarks": []}\r\n'
GATES = gate(gamma=[2, 3, 4], speculative_options={"fault": "wrong token"})
AT_A_MOMENT = """
import signal
from dataclasses import replace
from pytest_specdec.engines.fake import FakeEngine

MOMENTS = os.environ["MOMENTS"].split(", ")
GAMMAS = []

def at(moment, gamma=""):
    if f"{moment} {gamma}".strip() in MOMENTS:
        os.kill(os.getpid(), signal.SIGTERM)

class Engine(FakeEngine):
    def prepare(self, workload):
        at("prepare", self.spec.gamma)
        super().prepare(workload)

    def run(self):
        try:
            at("swallowed in run", self.spec.gamma)
        except KeyboardInterrupt:
            pass
        at("run", self.spec.gamma)
        super().run()

    def collect(self):
        at("collect", self.spec.gamma)
        return super().collect()

    def score(self, requests, outputs):
        at("score", GAMMAS[-1])
        return [[replace(score, gap=0.0) for score in row] for row in super().score(requests, outputs)]

@pytest.hookimpl(specname="pytest_specdec_start_engine")
def pytest_start(spec):
    at("load", spec.gamma)
    return Engine(spec)

def pytest_collection_modifyitems():
    at("collection")

def pytest_keyboard_interrupt():
    at("told")

def pytest_runtest_setup(item):
    GAMMAS.append(item.callspec.params["spec_engine"].gamma)

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown():
    at("teardown", GAMMAS[-1])

def pytest_runtest_logfinish():
    at("after", GAMMAS[-1])

def pytest_benchmark_update_json():
    at("writing")

@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary():
    at("summary")
"""
MOMENTS = {
    "collection, told": (0, "partial: ended by SIGTERM before a gate had run"),
    "load 2": (0, "partial: ended by SIGTERM after 0 of 3 gates"),
    "prepare 3": (1, "partial: ended by SIGTERM after 1 of 3 gates"),
    "run 3": (1, "partial: ended by SIGTERM after 1 of 3 gates"),
    "collect 3": (1, "partial: ended by SIGTERM after 1 of 3 gates"),
    "score 3": (1, "partial: ended by SIGTERM after 1 of 3 gates"),
    "after 2": (1, "partial: ended by SIGTERM after 1 of 3 gates"),
    "swallowed in run 3": (2, "partial: ended by SIGTERM after 2 of 3 gates"),
    "teardown 4": (3, "ended by SIGTERM after 3 of 3 gates"),
    "writing, summary": (3, "ended by SIGTERM after 3 of 3 gates"),
    "run 3, writing, summary": (1, "partial: ended by SIGTERM after 1 of 3 gates"),
}
FAILS_AFTER_ITS_GATE = """
@pytest.mark.specdec(gamma=[2, 3])
def test_it(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)
    assert spec_engine.gamma == 2
"""
TERMINATES_BEFORE_THE_REPORT = """
import signal

def pytest_runtest_makereport(call):
    if call.excinfo:
        os.kill(os.getpid(), signal.SIGTERM)
"""
KILLED_ONCE = """
import signal

def pytest_runtest_call(item):
    if "PLACE" in item.name and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
ONE_BEFORE_AND_ONE_IN_A_WORKER = """
def test_before(specdec, ar_engine, scenario):
    specdec(ar_engine, scenario)

@pytest.mark.specdec(target="worker")
def test_it(specdec, ar_engine, scenario):
    specdec(ar_engine, scenario)
"""
WORKER = """
from xdist.workermanage import NodeManager
from pytest_specdec.engines.host import WorkerEngine

NodeManager.EXIT_TIMEOUT = 0.5  # a worker that waits for its engine is killed then

IN_XDIST_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not IN_XDIST_WORKER:
    os.setpgrp()

@pytest.hookimpl(specname="pytest_specdec_start_engine")
def pytest_start(spec):
    if spec.target == "worker":
        spec.environment["SESSION"] = str(os.getppid() if IN_XDIST_WORKER else os.getpid())
        return WorkerEngine(spec, 600, 600, str, Path(__file__).with_name("backend.py").read_text())
"""
BACKEND = """
import os, signal, time
from pathlib import Path

def at(moment):
    if moment == os.environ["MOMENT"]:
        getattr(os, os.environ["KILL"])(int(os.environ["SESSION"]), signal.SIGTERM)
        time.sleep(600)

def load(config):
    Path("groups", str(os.getpid())).touch()
    at("load")
    return Backend()

class Backend:
    def describe(self):
        return {"vocabulary": 103, "context": 512, "device": "cpu", "versions": {}}

    def prepare(self, *_):
        pass

    def run(self):
        at("run")
"""
RUNS_IN_ONE_PROCESS = """
import signal, threading
import pytest

def run(*options):
    pytest.main(["-q", "-s", "-p", "benchmark", "-p", "pytest_specdec.plugin", "-p", "no:cacheprovider", *options])
    print("after:", getattr(signal.getsignal(signal.SIGTERM), "name", "handled"))

run()
run("--pdb")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
run()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
TELLS_THE_HANDLER = """
import signal

def test_it():
    print("within:", getattr(signal.getsignal(signal.SIGTERM), "name", "handled"))
"""
FORKS = """
import multiprocessing, signal

def wait(ready):
    ready.set()
    while True:
        signal.pause()

def test_it():
    forking = multiprocessing.get_context("fork")
    ready = forking.Event()
    child = forking.Process(target=wait, args=(ready,))
    child.start()
    ready.wait()
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM
"""


def what_is_saved(file: Path) -> tuple[list[int], dict[str, object] | None]:
    """The γ of each gate in a file of pytest-benchmark's, and what it says of missing ones."""
    content = json.loads(file.read_text())
    return [bench["extra_info"]["specdec"]["asked"]["gamma"] for bench in content["benchmarks"]], content.get("specdec")


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_had_finished_is_saved_and_shown(project: Project, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """In both files of pytest-benchmark's and in the table, and no other; an earlier run stays, byte for byte."""
    finished, words = MOMENTS[moment]
    monkeypatch.setenv("MOMENTS", moment)
    project.conftest(AT_A_MOMENT)
    project.tests(GATES)
    storage = project.path / ".benchmarks" / get_machine_id()
    storage.mkdir(parents=True)
    (storage / "0001_earlier.json").write_bytes(EARLIER)
    result = project.run_apart("--benchmark-json=out.json", "--benchmark-autosave")
    saved = [path for path in (project.path / "out.json", *storage.glob("0002_*.json")) if path.exists()]
    said = {"partial": True, "reason": words.removeprefix("partial: ")} if words.startswith("partial") else None
    assert result.ret == TERMINATED
    assert [what_is_saved(file) for file in saved] == [([2, 3, 4][:finished], said)] * (2 if finished else 0)
    assert (storage / "0001_earlier.json").read_bytes() == EARLIER
    assert [line for line in result.outlines if line in {told for _, told in MOMENTS.values()}] == [words]
    assert len([line for line in result.outlines if line.strip().startswith("short ")]) == finished


@pytest.mark.parametrize(("place", "passed"), [("g4", [2, 3]), ("behind", [2, 3, 4])])
def test_a_session_that_is_killed_leaves_the_gates_that_had_passed(
    project: Project, place: str, passed: list[int]
) -> None:
    """A resumed session takes them up, and so do the commands on all that is saved; an orderly end leaves no file."""
    project.conftest(KILLED_ONCE.replace("PLACE", place))
    project.tests(gate(gamma=[2, 3, 4]) + "\ndef test_behind():\n    pass\n")
    storage = project.path / ".benchmarks"
    project.run_apart("--benchmark-autosave")
    (killed,) = all_paths(storage)
    assert (gammas(killed), read_run(killed).partial) == (passed, f"unfinished, {len(passed)} gates had passed")
    result = project.run_apart("--benchmark-autosave", "--specdec-resume")
    result.assert_outcomes(passed=4 - len(passed), skipped=len(passed))
    assert result.stdout.str().count(f"run {killed.stem}") == len(passed)
    assert sorted(gamma for path in paths_in(storage) for gamma in gammas(path)) == [2, 3, 4]
    assert all_paths(storage)[0] == killed == run_path(killed.stem, storage)


def gammas(run: Path) -> list[int | None]:
    """Those of the records in a file."""
    return [record.asked.gamma for record in read_run(run).records]


def test_what_has_failed_or_is_not_saved_leaves_nothing_behind(project: Project) -> None:
    """Of two gates one fails after its verdict; without pytest-benchmark's timing there is no run to save."""
    project.conftest(KILLED_ONCE.replace("PLACE", "behind"))
    project.tests(FAILS_AFTER_ITS_GATE + "\ndef test_behind():\n    pass\n")
    project.run_apart("--benchmark-autosave", "--benchmark-disable")
    assert all_paths(project.path / ".benchmarks") == []
    (project.path / "killed").unlink()
    project.run_apart("--benchmark-save=named")
    (killed,) = all_paths(project.path / ".benchmarks")
    assert (gammas(killed), read_run(killed).partial) == ([2], "unfinished, 1 gate had passed")


def test_the_line_that_was_being_written_may_be_cut_off(tmp_path: Path) -> None:
    """The lines before it count; a run that was saved later is newer."""
    storage = tmp_path / get_machine_id()
    storage.mkdir()
    file = storage / unfinished_name(tmp_path)
    whole = unfinished_line("test_it.py::test_it", json.dumps(to_json(Record())))
    file.write_text(whole + whole[:100])
    assert [record.place.test for record in read_run(file).records] == ["test_it.py::test_it"]
    (storage / "0001_later.json").write_bytes(EARLIER)
    assert [path.name for path in all_paths(tmp_path)] == [file.name, "0001_later.json"]
    assert unfinished_name(tmp_path).startswith("unfinished_0001_")


@pytest.mark.parametrize("line", ["[]", "3", "{}", '{"datetime": 3}'])
def test_a_line_that_is_whole_and_no_record_is_named(tmp_path: Path, line: str) -> None:
    """No kill leaves it: it is somebody else's, wherever it stands."""
    file = tmp_path / unfinished_name(tmp_path)
    whole = unfinished_line("test_it.py::test_it", json.dumps(to_json(Record())))
    for lines, number, told in ((whole + line, 2, line), (f"{line}\n{whole}", 1, line), (f"{{\n{whole}", 1, "{")):
        file.write_text(lines)
        with pytest.raises(UnreadableRun, match=re.escape(f"{file}:{number}: {told} is no record of a gate")):
            read_run(file)


def test_a_storage_that_cannot_be_written_ends_no_session(tmp_path: Path) -> None:
    """pytest-benchmark tells it when it saves the run."""
    (tmp_path / "storage").touch()
    storage = SimpleNamespace(get=(tmp_path / "storage").joinpath, path=tmp_path / "storage")
    session = SimpleNamespace(disabled=False, save="named", autosave=None, storage=storage)
    unfinished = Unfinished(SimpleNamespace(_benchmarksession=session))  # type: ignore[arg-type]
    unfinished.add("test_it.py::test_it", "{}")
    unfinished.remove()


def test_a_test_that_has_failed_is_left_out_though_nothing_has_reported_it(project: Project) -> None:
    """Its gate was green and its own assert was not: SIGTERM comes before the report, from which others learn that."""
    project.conftest(TERMINATES_BEFORE_THE_REPORT)
    project.tests(FAILS_AFTER_ITS_GATE)
    result = project.run_apart("--benchmark-json=out.json")
    reason = "ended by SIGTERM after 1 of 2 gates"
    assert result.ret == TERMINATED
    assert what_is_saved(project.path / "out.json") == ([2], {"partial": True, "reason": reason})


def test_a_run_that_stops_at_a_failure_is_partial_too(project: Project) -> None:
    """With -x the red gate is the last: the saved run, the line under the table and the report say so."""
    project.tests(GATES)
    result = project.run("-x", "--benchmark-json=out.json", "--specdec-report=out.md")
    reason = "ended (stopping after 1 failures) after 1 of 3 gates"
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert what_is_saved(project.path / "out.json") == ([], {"partial": True, "reason": reason})
    assert f"partial: {reason}" in result.outlines
    assert f"partial: {reason}" in (project.path / "out.md").read_text()


@pytest.mark.parametrize("moment", ["load", "run"])
def test_no_process_of_a_busy_engine_is_left(project: Project, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """pytest waits for its worker, which says nothing for ten minutes: it has ended when pytest has."""
    result, groups = ended_from_a_worker(project, monkeypatch, moment, "kill")
    assert result.ret == TERMINATED
    assert "partial: ended by SIGTERM after 1 of 2 gates" in result.outlines
    assert [live_members(group) for group in groups] == [[]]


@pytest.mark.parametrize("kill", ["kill", "killpg"])
def test_nothing_is_left_under_pytest_xdist(project: Project, monkeypatch: pytest.MonkeyPatch, kill: str) -> None:
    """Whether its controller alone is told or all its processes: workers and engines end, and the table is printed."""
    result, groups = ended_from_a_worker(project, monkeypatch, "run", kill, "-n", "1")
    assert result.ret == TERMINATED
    assert "partial: ended by SIGTERM after 1 gate" in result.outlines
    assert [gone_in_time(group) for group in groups] == [True]


def ended_from_a_worker(
    project: Project, monkeypatch: pytest.MonkeyPatch, moment: str, kill: str, *options: str
) -> tuple[pytest.RunResult, list[int]]:
    """A gate passes on the fake engine, and the next one's worker sends SIGTERM; the workers' process groups."""
    monkeypatch.setenv("MOMENT", moment)
    monkeypatch.setenv("KILL", kill)
    project.write("backend.py", BACKEND)
    project.conftest(WORKER)
    project.tests(ONE_BEFORE_AND_ONE_IN_A_WORKER)
    (project.path / "groups").mkdir()
    result = project.run_apart(*options)
    return result, [int(path.name) for path in (project.path / "groups").iterdir()]


def gone_in_time(group: int) -> bool:
    """Whether nothing of a process group lives a minute after pytest at the latest."""
    deadline = time.monotonic() + 60
    while live_members(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not live_members(group)


@pytest.mark.filterwarnings("ignore:Not saving anything")
def test_a_run_that_measures_nothing_leaves_no_empty_json(project: Project) -> None:
    """pytest-benchmark before 5.3 makes the file when it starts, and no reader could do anything with it."""
    project.conftest("def pytest_sessionstart():\n    Path('out.json').touch()\n")
    project.tests(f"@pytest.mark.skip\n{GATES.strip()}")
    result = project.run("--benchmark-json=out.json")
    assert "nothing was measured, so there is no out.json" in result.outlines
    assert not (project.path / "out.json").exists()


def test_sigterm_is_handled_where_nobody_else_does(project: Project, pytester: pytest.Pytester) -> None:
    """In the main thread, where it has its default, which comes back; not where pdb waits, or where it is ignored."""
    project.tests(TELLS_THE_HANDLER, header="")
    result = pytester.runpython(project.write("runs.py", RUNS_IN_ONE_PROCESS))
    said = [line.split() for line in result.outlines if line.startswith(("within:", "after:"))]
    assert [(within[1], after[1]) for within, after in zip(said[::2], said[1::2], strict=True)] == [
        ("handled", "SIG_DFL"),
        ("SIG_DFL", "SIG_DFL"),
        ("SIG_IGN", "SIG_IGN"),
        ("SIG_DFL", "SIG_DFL"),
    ]


def test_a_process_that_a_test_forks_ends_by_sigterm_as_ever(project: Project) -> None:
    """It has inherited the handler, and is no session."""
    project.tests(FORKS, header="")
    project.run_apart().assert_outcomes(passed=1)
