"""The engine "mutant": Transformers in a worker, with a fault that each of its specifications names.

Importing torch takes longer than any trial, so all mutants share one worker, which becomes the mutant that is awake.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_specdec.engines.host import WorkerEngine, backend_source
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.settings import Settings
from pytest_specdec.workloads.workload import Workload

# Workers of pytest-xdist share the cores: with a thread for each core in each engine, they wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
MUTATIONS = Path(__file__).with_name("mutations.py")
SEAM = "TransformersBackend.become = become"


def mutable_source() -> str:
    """The Transformers backend and, after it, the mutations and the way into them."""
    later = MUTATIONS.read_text("utf-8").replace("from __future__ import annotations\n", "")
    return "\n".join([backend_source("transformers"), later, SEAM])


class MutantWorker(WorkerEngine):
    """A worker whose backend is the Transformers backend and, after it, the mutations."""

    def become(self, fault: str | None) -> None:
        """Turn into this mutant, or into a sound engine."""
        self._call("become", fault)


class Mutant:
    """One specification's share of a worker. Its end is not the worker's."""

    score_in_steps = None

    def __init__(self, spec: EngineSpec, worker: MutantWorker) -> None:
        self.spec = spec
        self.description = worker.description
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        """All else as the worker does."""
        return getattr(self._worker, name)

    def prepare(self, workload: Workload) -> None:
        """Become this mutant, and send the requests."""
        self._worker.become(self.spec.speculative_options.get("fault"))
        self._worker.prepare(workload)

    def close(self) -> None:
        """Nothing: the worker ends with the session."""


class Starter:
    """Answers to the engine "mutant", and ends what it started."""

    def __init__(self) -> None:
        self._workers: dict[str, MutantWorker] = {}

    def start(self, spec: EngineSpec, settings: Settings) -> Mutant:
        """A mutant, in the worker of its sound twin."""
        sound = replace(spec, backend="transformers", speculative_options={})
        if sound.key not in self._workers:
            self._workers[sound.key] = MutantWorker(
                sound, settings.load_timeout, settings.timeout, str, mutable_source()
            )
        return Mutant(spec, self._workers[sound.key])

    def close(self) -> None:
        """End every worker."""
        for worker in self._workers.values():
            worker.close()


STARTER = Starter()


def pytest_specdec_start_engine(spec: EngineSpec, settings: Settings) -> Mutant | None:
    """Start a mutant."""
    return STARTER.start(spec, settings) if spec.backend == "mutant" else None


def pytest_unconfigure() -> None:
    """End the workers."""
    STARTER.close()
