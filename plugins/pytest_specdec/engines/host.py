"""The pytest side of an engine in a worker process: starts it, talks to it, and makes sure that nothing of it remains.

execnet carries the conversation, over a pipe to a child process or over ssh to another machine. Every wait has a limit.
When the worker dies, hangs or reports an error, the caller gets one EngineError with the engine's own last words.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.process_group import GRACE_SECONDS, end_group, last_words, live_members
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineDied, EngineError, Unsupported
from pytest_specdec.generation import Ranking, Run, Score, rankings_from_wire, scores_from_wire
from pytest_specdec.workloads.workload import Request, Workload

SAID_FIRST_SECONDS = 1.0


class WorkerEngine:
    """An engine that lives in a worker process; what its methods are for, the protocol `Engine` says."""

    def __init__(
        self,
        spec: EngineSpec,
        load_timeout: float,
        timeout: float,
        resolve: Callable[[str], str],
        source: str | None = None,
    ) -> None:
        """Start the worker and load the engine. Raises EngineError.

        `load_timeout`, `timeout`: limits in seconds for loading and for each call. `resolve` turns a model reference
        into what the engine can open. `source`: the text of the backend's module, by default that of `spec.backend`.
        """
        self.spec = spec
        self._timeout = timeout
        self._log = Path(tempfile.mkdtemp(prefix="specdec-")) / "engine.log"
        self._group: int | None = None
        self._busy = True
        start = {
            "backend": spec.backend,
            "source": backend_source(spec.backend) if source is None else source,
            "config": spec.config(resolve),
            "environment": dict(spec.environment),
            "log": str(self._log) if spec.gateway is None else None,
        }
        self._gateways, self._channel = _open_worker(spec)
        try:
            self._channel.send(start)
            self._group = self._receive(load_timeout, "starting")
            self.description = Description(pid=self._group, **self._receive(load_timeout, "loading"))
        except BaseException:
            self.close()
            raise

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in self._call("encode", list(texts))]

    def encode_messages(self, conversations: Sequence[Sequence[Mapping[str, str]]], **template: Any) -> list[list[int]]:
        told = [[dict(message) for message in conversation] for conversation in conversations]
        return [list(ids) for ids in self._call("encode_messages", told, *([template] if template else []))]

    def decode(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Sequence[str | None]:
        asked = _asked(requests, outputs, lambda each: bool(each.sampling.get("skip_special_tokens", True)))
        return list(self._call("decode", asked))

    def prepare(self, workload: Workload) -> None:
        requests = [request.wire() for request in workload.requests]
        how = workload.concurrency, workload.finds_prefix_cache, list(workload.arrivals_s)
        self._call("prepare", requests, *how)

    def run(self) -> None:
        """Decode: one word to the worker, one word back."""
        self._call("run")

    def collect(self) -> Run:
        return Run.from_wire(self._call("collect"))

    def score(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> tuple[tuple[Score, ...], ...]:
        return scores_from_wire(self._call("score", _asked(requests, outputs, self.description.withheld)))

    def score_in_steps(
        self, requests: Sequence[Request], outputs: Sequence[Sequence[int]], step: int, at_once: int
    ) -> tuple[tuple[Score, ...], ...] | None:
        """The same in passes over `step` tokens of each of `at_once` outputs; None where the backend cannot."""
        told = self._call("score", _asked(requests, outputs, self.description.withheld), step, at_once)
        return None if told is None else scores_from_wire(told)

    def rank(
        self, requests: Sequence[Request], outputs: Sequence[Sequence[int]], most: int
    ) -> tuple[tuple[Ranking, ...], ...]:
        pairs = zip(requests, outputs, strict=True)
        asked = [(list(request.prompt_ids), list(output)) for request, output in pairs]
        return rankings_from_wire(self._call("rank", asked, most))

    def park(self) -> None:
        self._call("park")

    def wake(self) -> None:
        self._call("wake")

    def close(self) -> None:
        """End the worker: ask it, unless it is busy or hung, and then end its process group. Safe to call twice.

        The group ends also where this is interrupted.
        """
        try:
            if not self._busy:
                with contextlib.suppress(Exception):
                    self._channel.send(("close", ()))
                    self._channel.receive(GRACE_SECONDS)
        finally:
            if self._group is None:  # interrupted before that was heard, which the worker says first
                with contextlib.suppress(Exception):
                    self._group = self._receive(SAID_FIRST_SECONDS, "starting")
            self._end_process_group()
            with contextlib.suppress(Exception):
                self._gateways.terminate(timeout=GRACE_SECONDS)
        self._refuse_leak()

    def _refuse_leak(self) -> None:
        """Raise EngineError if a process of the engine outlived SIGKILL: later engines would miss its memory."""
        left = [] if self._group is None or self.spec.gateway is not None else live_members(self._group)
        if left:
            raise EngineError(
                f"engine {self.spec.label} ({self.spec.backend}) was ended and still runs, process {left[0]} of "
                f"{len(left)}: what it holds of the device's memory every later test lacks; end it before measuring on"
            )

    def _call(self, command: str, *arguments: Any) -> Any:
        self._busy = True  # from here on, not from the wait on: an interruption may come between
        try:
            self._channel.send((command, arguments))
        except OSError as error:
            raise self._death(command) from error
        return self._receive(self._timeout, command)

    def _receive(self, timeout: float, doing: str) -> Any:
        self._busy = True
        try:
            kind, value = self._channel.receive(timeout)
            self._busy = False
        except self._channel.TimeoutError:
            self._end_process_group()
            raise EngineDied(
                self._message(f"gave no answer within {timeout:g} s while {doing}; it was ended")
            ) from None
        except self._channel.RemoteError as error:
            raise EngineDied(
                self._message(f"lost its worker while {doing}: {str(error).strip().splitlines()[-1]}")
            ) from error
        except (EOFError, OSError) as error:
            raise self._death(doing) from error
        if kind == "unsupported":
            raise Unsupported(f"{self.spec.label} ({self.spec.backend}) refuses: {value}")
        if kind == "error":
            raise EngineError(self._message(f"failed while {doing}: {value}"))
        return value

    def _death(self, doing: str) -> EngineDied:
        self._end_process_group()
        return EngineDied(self._message(f"died while {doing}"))

    def _message(self, what: str) -> str:
        options = f"; speculative_options = {self.spec.speculative_options}" if self.spec.speculative_options else ""
        message = f"engine {self.spec.label} ({self.spec.backend}) {what}{options}"
        if self.spec.gateway is not None:
            return (
                f"{message}\nits log is at {self.spec.gateway}: specdec-*.log in the folder for temporary files there"
            )
        return f"{message}\n{last_words(self._log)}"

    def _end_process_group(self) -> None:
        if self._group is not None and self.spec.gateway is None:
            end_group(self._group)


def _asked(
    requests: Sequence[Request], outputs: Sequence[Sequence[int]], told: Callable[[Request], Any]
) -> list[tuple[list[int], list[int], Any]]:
    pairs = zip(requests, outputs, strict=True)
    return [(list(request.prompt_ids), list(output), told(request)) for request, output in pairs]


def backend_source(backend: str) -> str:
    """The text of the backend's module, which runs in the worker and nowhere else."""
    return Path(__file__).with_name(f"{backend}.py").read_text("utf-8")


def _open_worker(spec: EngineSpec) -> tuple[Any, Any]:
    import execnet

    from pytest_specdec.engines import worker
    from pytest_specdec.engines.fork_server import command_for
    from pytest_specdec.hardware import INSTALL, has_nvidia_driver

    where = spec.gateway or "popen"
    python = spec.python or (sys.executable if spec.gateway is None else "python3")
    command, group = python, execnet.Group()
    try:
        if spec.backend in INSTALL and spec.gateway is None and not has_nvidia_driver():
            command = command_for(python, spec.backend, backend_source(spec.backend), spec.environment)
        gateway = group.makegateway(f"{where}//python={command}")
    except Exception as error:
        raise EngineError(
            f"no worker could be started for {spec.label} as {where}//python={python}: {error}"
        ) from error
    return group, gateway.remote_exec(worker)
