"""One import for all engines of a backend: workers are forked from a process that has done it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_specdec import hardware
from pytest_specdec.engines import fork_server, host
from pytest_specdec.engines.host import WorkerEngine
from pytest_specdec.engines.spec import EngineSpec

BACKEND = """
import os
from pathlib import Path

def preload():
    with Path({noted!r}).open("a") as noted:
        noted.write(f"{{os.getpid()}} {{os.environ.get('SHADE')}}\\n")

def load(config):
    return Backend()

class Backend:
    def describe(self):
        return {{"vocabulary": 100, "context": 64, "device": "cpu", "versions": {{"parent": str(os.getppid())}}}}
    def encode_messages(self, conversations):
        return []
    def close(self):
        pass
"""


@pytest.fixture
def preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file in which each import is noted."""
    noted = tmp_path / "preloaded"
    monkeypatch.setattr(host, "backend_source", lambda backend: BACKEND.format(noted=str(noted)))
    monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: False)
    yield noted
    fork_server.close_all()


def worker(**environment: str) -> WorkerEngine:
    """An engine that has been started."""
    spec = EngineSpec(backend="vllm", target="toy", environment=environment)
    return WorkerEngine(spec, 600, 600, resolve=lambda model: model)


def parent_of_a_worker(**environment: str) -> int:
    """Start an engine and end it; the process that its worker came from."""
    engine = worker(**environment)
    engine.close()
    return int(engine.description.versions["parent"])


def imports(noted: Path) -> list[tuple[int, str]]:
    """Process and environment of each import."""
    return [(int(pid), shade) for pid, shade in map(str.split, noted.read_text().splitlines())]


def test_a_second_engine_costs_no_second_import(preloaded: Path) -> None:
    first, second = parent_of_a_worker(), parent_of_a_worker()
    assert first == second != os.getpid()
    assert imports(preloaded) == [(first, "None")]


def test_another_environment_is_imported_anew(preloaded: Path) -> None:
    """What is set before the import decides how an engine decodes."""
    first, second = parent_of_a_worker(), parent_of_a_worker(SHADE="blue")
    assert imports(preloaded) == [(first, "None"), (second, "blue")]


def test_threads_are_set_after_the_import(preloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that differ by OMP_NUM_THREADS alone share one import, and torch has as many threads in each."""
    pytest.importorskip("torch")
    told = host.backend_source("vllm").replace("def preload():", "import torch\n\ndef preload():")
    told = told.replace("str(os.getppid())", "str(torch.get_num_threads())")
    monkeypatch.setattr(host, "backend_source", lambda backend: told)
    threads = [parent_of_a_worker(OMP_NUM_THREADS=number) for number in ("3", "5", "3")]
    assert (threads, len(imports(preloaded))) == ([3, 5, 3], 1)


def test_threads_by_level_are_set_before_the_import(preloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP reads such a list itself, when it is loaded."""
    told = host.backend_source("vllm").replace("SHADE", "OMP_NUM_THREADS")
    monkeypatch.setattr(host, "backend_source", lambda backend: told)
    server = parent_of_a_worker(OMP_NUM_THREADS="2,1")
    assert imports(preloaded) == [(server, "2,1")]


def test_a_server_whose_place_was_taken_ends_after_its_last_worker(preloaded: Path) -> None:
    """The engine that it had forked lives on, as the reference beside another interpreter or environment."""
    reference = worker()
    server = psutil.Process(int(reference.description.versions["parent"]))
    parent_of_a_worker(SHADE="blue")
    assert reference.encode_messages([]) == []
    reference.close()
    server.wait(600)


def test_a_server_that_was_killed_is_started_anew(preloaded: Path) -> None:
    first = parent_of_a_worker()
    psutil.Process(first).kill()
    psutil.Process(first).wait(60)
    assert parent_of_a_worker() != first


def test_nothing_of_it_remains(preloaded: Path) -> None:
    first = parent_of_a_worker()
    fork_server.close_all()
    assert not psutil.pid_exists(first)


def test_where_there_may_be_a_gpu_nothing_is_forked(preloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has touched CUDA must not be; the worker is then a child of this process."""
    monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: True)
    assert parent_of_a_worker() == os.getpid()
    assert not preloaded.exists()


def test_what_cannot_be_imported_is_the_engine_s_own_error(preloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server outlives it; the worker meets it where it is told."""
    source = host.backend_source("vllm").replace("def preload():", "def preload():\n    import no_such_package")
    monkeypatch.setattr(host, "backend_source", lambda backend: source)
    assert psutil.Process(parent_of_a_worker()).cmdline()[0] == sys.executable
