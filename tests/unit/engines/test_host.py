"""The worker process, with a backend of a few lines: what crosses, what an error says, that nothing remains of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from pytest_specdec.engines import host, process_group
from pytest_specdec.engines.host import WorkerEngine
from pytest_specdec.engines.process_group import group_is_gone, is_alive, live_members
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineDied, EngineError, Unsupported
from pytest_specdec.workloads.workload import Request, Workload

BACKEND = '''
import os, signal, subprocess, sys, time

INTERRUPTS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.kill(int(sys.argv[1]), signal.SIGUSR1))
print(flush=True)
time.sleep(600)
"""

def load(config):
    if config["target"] == "missing":
        raise FileNotFoundError("no model at missing")
    if config["target"] == "with-child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    if config["target"] == "with-own-group":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], preexec_fn=os.setpgrp)
    if config["target"] == "interrupts":
        command = [sys.executable, "-c", INTERRUPTS, os.environ["PYTEST_PID"]]
        subprocess.Popen(command, stdout=subprocess.PIPE).stdout.readline()
    if config["target"] == "slow":
        time.sleep(3600)
    return Backend(config)

REFUSALS = ("thirteen is not supported",)

class Backend:
    def __init__(self, config):
        self.config = config
    def describe(self):
        print("described itself")
        return {"vocabulary": 100, "context": 64, "device": "cpu", "versions": {"toy": os.environ.get("TOY", "1")}}
    def encode_messages(self, conversations):
        return [[len(each["role"] + each["content"]) for each in talk] for talk in conversations]
    def prepare(self, requests, concurrency, keeps_prefix_cache, arrivals_s):
        self.requests = requests
        if requests[0]["prompt_ids"] == [13]:
            raise ValueError("thirteen is not supported by this engine")
    def run(self):
        token = self.requests[0]["prompt_ids"][0]
        if token == 9:
            print("about to die")
            os._exit(9)
        if token == 8:
            time.sleep(3600)
        if token == 7:
            raise RuntimeError("bad luck")
    def collect(self):
        rows = [dict(prompt_ids=r["prompt_ids"], token_ids=[1, 2], finish_reason="length", chunks=[(0.5, 2)], text=None)
                for r in self.requests]
        return {"generations": rows, "speculation": None, "seconds": 0.5}
    def score(self, sequences):
        return [[(0.0, 10.0, token) for token in output] for _, output, _ in sequences]
    def close(self):
        if self.config["target"] == "interrupts":
            os.kill(int(os.environ["PYTEST_PID"]), signal.SIGUSR1)
            time.sleep(600)
'''

Start = Callable[..., WorkerEngine]
AMPLE = 600.0


class Patient(WorkerEngine):
    """A worker whose interpreter may take its time to start; the limit of loading is for loading."""

    def _receive(self, timeout: float, doing: str) -> Any:
        return super()._receive(AMPLE if doing == "starting" else timeout, doing)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a worker with the toy backend; all are closed in the end, and may take their time to end."""
    monkeypatch.setattr(host, "backend_source", lambda backend: BACKEND)
    monkeypatch.setattr(process_group, "GRACE_SECONDS", AMPLE)
    started: list[WorkerEngine] = []

    def start(target: str = "toy", load_timeout: float = AMPLE, **fields: object) -> WorkerEngine:
        spec = EngineSpec(backend="vllm", target=target, **fields)  # type: ignore[arg-type]
        started.append(Patient(spec, load_timeout, AMPLE, resolve=lambda model: model))
        return started[-1]

    yield start
    for engine in started:
        engine.close()


def workload(first: int) -> Workload:
    return Workload("w", (Request((first,), 2),), 1)


def group(engine: WorkerEngine) -> int:
    assert engine.description.pid is not None
    return engine.description.pid


def test_a_run_crosses_as_plain_values(start: Start) -> None:
    engine = start()
    engine.prepare(workload(5))
    engine.run()
    run = engine.collect()
    assert (run.generations[0].prompt_ids, run.generations[0].token_ids, run.tokens) == ((5,), (1, 2), 2)
    assert engine.score([Request((5,), 2)], [(1, 2)])[0][1].argmax == 2


def test_conversations_cross_as_plain_values(start: Start) -> None:
    asked = [[{"role": "user", "content": "ab"}], [{"role": "system", "content": "c"}, {"role": "user", "content": ""}]]
    assert start().encode_messages(asked) == [[6], [7, 4]]


def test_the_environment_is_set_before_the_engine_is_loaded(start: Start) -> None:
    assert start(environment={"TOY": "set"}).description.versions == {"toy": "set"}


def test_the_worker_leads_a_process_group_of_its_own(start: Start) -> None:
    assert os.getpgid(group(start())) not in (os.getpgrp(), os.getpid())


def test_an_engine_that_does_not_load_says_why_and_leaves_nothing(start: Start) -> None:
    with pytest.raises(
        EngineError, match=r"engine missing-target \(vllm\) failed while loading: FileNotFoundError: no model"
    ):
        start("missing")


def test_a_refusal_in_words_is_told_apart_from_a_fault(start: Start) -> None:
    with pytest.raises(Unsupported, match="refuses: ValueError: thirteen is not supported by this engine"):
        start().prepare(workload(13))


def test_an_error_in_a_call_leaves_the_engine_usable(start: Start) -> None:
    engine = start(speculative_options={"tried": 1})
    engine.prepare(workload(7))
    with pytest.raises(EngineError, match=r"failed while run: RuntimeError: bad luck; .* = \{'tried': 1\}"):
        engine.run()
    engine.prepare(workload(5))
    engine.run()
    assert engine.collect().tokens == 2


def test_a_worker_that_dies_is_one_error_with_its_last_words(start: Start) -> None:
    engine = start()
    engine.prepare(workload(9))
    with pytest.raises(EngineDied, match=r"(?s)died while run.*about to die"):
        engine.run()


@pytest.mark.parametrize("target", ["with-child", "with-own-group"])
def test_a_killed_worker_takes_its_children_with_it(start: Start, target: str) -> None:
    """Also one that has left its process group, as Ray's actors do."""
    engine = start(target)
    assert len(live_members(group(engine))) == 2
    os.kill(group(engine), signal.SIGKILL)
    with pytest.raises(EngineDied, match=r"died while prepare"):
        engine.prepare(workload(5))
    assert live_members(group(engine)) == []


def test_a_call_past_its_limit_ends_the_process_group(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start()
    engine.prepare(workload(8))
    monkeypatch.setattr(engine, "_timeout", 0.5)
    with pytest.raises(EngineDied, match=r"gave no answer within 0\.5 s while run; it was ended"):
        engine.run()
    assert live_members(group(engine)) == []


def test_loading_past_its_limit_ends_the_process_group(start: Start) -> None:
    before = _python_children()
    with pytest.raises(EngineDied, match=r"gave no answer within 0\.2 s while loading"):
        start("slow", load_timeout=0.2)
    assert _python_children() <= before


@pytest.mark.parametrize("target", ["with-child", "with-own-group"])
def test_close_ends_the_worker_and_what_it_started(start: Start, target: str) -> None:
    engine = start(target)
    assert len(live_members(group(engine))) == 2
    engine.close()
    assert live_members(group(engine)) == []
    engine.close()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def interrupted_by_sigusr1() -> Iterator[None]:
    """KeyboardInterrupt, as often as it comes."""
    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_one_that_is_interrupted_before_it_waits_is_busy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decodes and would not answer: it is ended without being asked to close."""
    engine = start()
    engine.prepare(workload(8))
    with monkeypatch.context() as before_it_waits:
        before_it_waits.setattr(engine, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.run()
    asked: list[object] = []
    monkeypatch.setattr(engine._channel, "send", asked.append)
    engine.close()
    assert (asked, live_members(group(engine))) == ([], [])


@pytest.mark.usefixtures("interrupted_by_sigusr1")
def test_an_end_that_is_interrupted_is_an_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """First while the worker takes leave, and again while its child has SIGTERM: then SIGKILL, without a wait."""
    engine = start("interrupts", environment={"PYTEST_PID": str(os.getpid())})
    try:
        with monkeypatch.context() as patched:
            patched.setattr("pytest_specdec.engines.process_group.GRACE_SECONDS", 600)
            with pytest.raises(KeyboardInterrupt):
                engine.close()
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert live_members(group(engine)) == []


def test_a_process_that_outlives_its_engine_is_an_error_that_names_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds of the memory would break every later test, far from its cause."""
    engine = start()
    with monkeypatch.context() as patched:
        patched.setattr(host, "GRACE_SECONDS", 0.2)
        patched.setattr(host, "live_members", lambda group: [4711])
        with pytest.raises(EngineError, match="was ended and still runs, process 4711"):
            engine.close()


def test_a_closed_worker_is_no_zombie(start: Start) -> None:
    engine = start()
    engine.close()
    assert not psutil.pid_exists(group(engine))


def test_an_interpreter_that_is_not_there_is_named(start: Start) -> None:
    with pytest.raises(
        EngineError, match=r"no worker could be started for toy-target as popen//python=/no/such/python"
    ):
        start(python="/no/such/python")


PARENT = textwrap.dedent(
    """
    import signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and a shell's & have both ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    from pytest_specdec.engines import host
    from pytest_specdec.engines.host import WorkerEngine
    from pytest_specdec.engines.spec import EngineSpec
    from pytest_specdec.workloads.workload import Request, Workload
    host.backend_source = lambda backend: open(sys.argv[1]).read()
    engine = WorkerEngine(EngineSpec(backend="vllm", target=sys.argv[2]), 600, 600, lambda model: model)
    try:
        print(engine.description.pid, flush=True)
        engine.prepare(Workload("w", (Request((8,), 2),), 1))
        engine.run()
    finally:
        engine.close()
    """
)


@pytest.mark.parametrize("target", ["with-child", "with-own-group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGHUP], ids=lambda number: number.name)
def test_nothing_remains_when_the_parent_is_interrupted_or_killed(
    number: signal.Signals, target: str, tmp_path: Path
) -> None:
    """Ctrl-C is handled by closing; after SIGKILL of the parent the worker ends its own group."""
    (tmp_path / "backend.py").write_text(BACKEND)
    command = [sys.executable, "-c", PARENT, str(tmp_path / "backend.py"), target]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert len(live_members(worker)) == 2
    parent.send_signal(number)
    parent.wait(AMPLE)
    assert group_is_gone(worker, AMPLE)


STARTS_A_SERVER = """
import time
from pytest_specdec.engines.server.process import ServerProcess
print(ServerProcess(["sleep", "600"], {}, "t").group, flush=True)
time.sleep(600)
"""


def test_a_server_s_command_ends_when_who_started_it_is_killed() -> None:
    """It knows nothing of its own of pytest: what stands between ends the group."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", STARTS_A_SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert live_members(group)
        parent.kill()
    assert group_is_gone(group, AMPLE)


def _python_children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE}


@pytest.mark.parametrize(("refusal", "alive"), [("NoSuchProcess", False), ("AccessDenied", True)])
def test_what_may_not_be_looked_at_lives(monkeypatch: pytest.MonkeyPatch, refusal: str, alive: bool) -> None:
    """Else what another user runs in an engine's group would be left."""
    monkeypatch.setattr(psutil.Process, "status", Mock(side_effect=getattr(psutil, refusal)(os.getpid())))
    assert is_alive(os.getpid()) is alive
