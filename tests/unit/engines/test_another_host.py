"""An engine on another machine, reached by ssh: here a command of that name that runs the remote command locally.

It gives the command an environment and a folder for temporary files of its own, as another machine does, and stays the
parent of the worker, as the process that holds the connection does there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.unit.engines.test_host import AMPLE, BACKEND, workload

from pytest_specdec.engines import host
from pytest_specdec.engines.host import WorkerEngine
from pytest_specdec.engines.spec import EngineSpec, interpreters_here
from pytest_specdec.errors import EngineDied, EngineError
from pytest_specdec.hardware import missing
from pytest_specdec.telemetry.energy import RemoteMeter, meter_for
from pytest_specdec.telemetry.monitor import PeakMemory, subject_here

SSH = """#!/bin/sh
echo "$$ $*" >> {folder}/calls.txt
for command; do :; done
env -i PATH="$PATH" HOME="$HOME" TMPDIR={folder}/there sh -c "exec $command"
"""
SPEC = EngineSpec(
    backend="vllm", target="t", gateway="ssh=there", python=sys.executable, environment={"TOY": "2"}, method="none"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the ssh command: its calls, and the other machine's folder for temporary files."""
    (tmp_path / "there").mkdir()
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(SSH.format(folder=tmp_path))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(host, "backend_source", lambda backend: BACKEND)
    return tmp_path


@pytest.fixture
def engine(folder: Path) -> Iterator[WorkerEngine]:
    """A loaded engine over there."""
    loaded = WorkerEngine(SPEC, AMPLE, AMPLE, resolve=lambda model: model)
    yield loaded
    loaded.close()


def has_ended(pid: int, within_seconds: float = AMPLE) -> bool:
    """Whether the process ends, if it is given time."""
    deadline = time.monotonic() + within_seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def calls(folder: Path) -> list[list[str]]:
    """Process id and arguments of each ssh."""
    return [line.split(maxsplit=3) for line in (folder / "calls.txt").read_text().splitlines()]


def test_it_decodes_there(engine: WorkerEngine, folder: Path) -> None:
    """Reached by the gateway's words, with the interpreter and environment of the specification."""
    engine.prepare(workload(3))
    engine.run()
    assert engine.collect().generations[0].token_ids == (1, 2)
    assert engine.description.versions == {"toy": "2"}
    ((_, compress, where, command),) = calls(folder)
    assert (compress, where, command.split()[0]) == ("-C", "there", sys.executable)


def test_its_log_stays_there(engine: WorkerEngine, folder: Path) -> None:
    """This machine's folders mean nothing over there; an error says where to look."""
    (log,) = (folder / "there").glob("specdec-*.log")
    assert "described itself" in log.read_text()
    engine.prepare(workload(7))
    with pytest.raises(EngineError, match=r"RuntimeError: bad luck\nits log is at ssh=there: specdec-\*\.log"):
        engine.run()


def test_the_meter_works_beside_it(engine: WorkerEngine, folder: Path) -> None:
    """By a second connection; memory of another machine is not told from here."""
    meter = meter_for(engine)
    assert isinstance(meter, RemoteMeter)
    meter.start()
    meter.begin_round()
    meter.end_round()
    figures = meter.stop(10)
    assert figures.scope or figures.joules.reason
    assert "failed" not in (figures.joules.reason or "")
    assert [where for _, _, where, _ in calls(folder)] == ["there", "there"]
    memory = PeakMemory(subject_here(engine))
    memory.start()
    assert memory.stop({}).peak_host_bytes.value is None


def test_it_ends_when_it_is_closed(engine: WorkerEngine) -> None:
    """Asked to, over there."""
    assert engine.description.pid is not None
    engine.close()
    assert has_ended(engine.description.pid)


def test_it_ends_when_the_connection_does_although_it_is_busy(
    engine: WorkerEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time limit over there would end it."""
    assert engine.description.pid is not None
    engine.prepare(workload(8))
    monkeypatch.setattr(engine, "_timeout", 0.5)
    with pytest.raises(EngineDied, match=r"gave no answer within 0\.5 s while run"):
        engine.run()
    assert not has_ended(engine.description.pid, within_seconds=0)
    os.kill(int(calls(folder)[0][0]), signal.SIGKILL)
    assert has_ended(engine.description.pid)


def test_what_is_missing_here_may_be_there() -> None:
    """Neither this machine's packages nor its interpreter are asked for."""
    there = EngineSpec(backend="vllm", target="t", gateway="ssh=there", python="/no/python")
    assert list(missing([], interpreters_here([there]))) == []


def test_a_host_that_cannot_be_reached_is_an_engine_error(folder: Path) -> None:
    """With the gateway in it."""
    (folder / "bin" / "ssh").write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 255\n")
    with pytest.raises(EngineError, match=r"no worker could be started for t-target as ssh=there//python="):
        WorkerEngine(SPEC, AMPLE, AMPLE, resolve=lambda model: model)
