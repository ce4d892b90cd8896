"""A server that is started here: its command line, its process group, its log, and whether it still lives.

Speculation is set apart from the rest of the command, so that the target alone is the same command without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from pytest_specdec.engines import worker
from pytest_specdec.engines.process_group import end_group, last_words
from pytest_specdec.engines.server.dialects import VLLM
from pytest_specdec.engines.server.plan import ServerPlan
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.engines.vllm import ADAPTER, speculative_config
from pytest_specdec.errors import EngineDied, EngineError

FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.02, 0.2
HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
_given: set[int] = set()
VLLM_SERVER = ("-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--host", "{host}", "--port", "{port}")
AS_IT_IS_WRITTEN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def command_line(plan: ServerPlan, spec: EngineSpec, places: Mapping[str, object], on_cpu: bool) -> list[str]:
    """The command with its placeholders filled: {model}, {draft}, {host}, {port}, {metrics_port}, {method}, {gamma}."""
    parts = list(plan.command) if plan.command is not None else [spec.python or sys.executable, *VLLM_SERVER]
    if plan.dialect is VLLM:
        parts += flags(_vllm_options(plan, spec, on_cpu), parts)
    if spec.speculates:
        parts += _speculation(plan, spec, places)
    return [fill(part, places) for part in parts]


def _vllm_options(plan: ServerPlan, spec: EngineSpec, on_cpu: bool) -> dict[str, Any]:
    """vLLM's own options: greedy decoding that repeats itself, raw logits where the target alone is rated."""
    options: dict[str, Any] = {} if spec.speculates else {"logprobs_mode": "raw_logits"}
    if plan.command is None:
        options |= {"dtype": spec.dtype, "seed": 0, "enable_prefix_caching": False}
        options |= {"enable_prompt_tokens_details": True}  # how many of them were cached
        options |= {"max_model_len": spec.max_model_len} if spec.max_model_len else {}
        options |= {"enforce_eager": True} if on_cpu else {}
        options |= {"chat_template": AS_IT_IS_WRITTEN} if plan.by_chat and plan.as_text else {}
    said = {name: value for name, value in spec.options.items() if name != ADAPTER}
    adapted = {"enable_lora": True, "lora_modules": [f"{ADAPTER}={spec.adapter}"]} if spec.adapter else {}
    return options | adapted | said


def flags(options: Mapping[str, Any], said: Sequence[str]) -> list[str]:
    """Options as a command line has them, less those that it has already."""
    return [part for name, value in options.items() for part in _flag(name, value, said)]


def _flag(name: str, value: Any, said: Sequence[str]) -> Iterator[str]:
    flag = f"--{name.replace('_', '-')}"
    if any(part == flag or part.startswith(f"{flag}=") for part in said):
        return
    if isinstance(value, bool):
        yield flag if value else f"--no-{name.replace('_', '-')}"
    elif isinstance(value, (list, tuple)):
        yield from (flag, *map(str, value))
    else:
        yield from (flag, json.dumps(value) if isinstance(value, Mapping) else str(value))


def _speculation(plan: ServerPlan, spec: EngineSpec, places: Mapping[str, object]) -> list[str]:
    if plan.speculation is not None:
        return list(plan.speculation)
    if plan.dialect is not VLLM:
        return []
    draft = str(places["draft"])  # where one is named
    return ["--speculative-config", json.dumps(speculative_config(spec.config(lambda _: draft)))]


def fill(part: str, places: Mapping[str, object]) -> str:
    """The part with placeholders replaced; other braces, as in JSON, stay."""
    for name, value in places.items():
        part = part.replace("{" + name + "}", str(value))
    return part


class ServerProcess:
    """A command under a guardian, in a process group of its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], label: str) -> None:
        self.log = Path(tempfile.mkdtemp(prefix="specdec-")) / "server.log"
        self._label, self._command = label, list(command)
        guardian = [sys.executable, "-I", worker.__file__, str(os.getpid())]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*guardian, *command],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """Its process group, which is its first process's id."""
        return self._process.pid

    def wait_until(self, ready: Callable[[], object], within_seconds: float) -> None:
        """Return when `ready` raises no EngineError. Raises EngineError if it ends or takes longer."""
        deadline, pause = time.monotonic() + within_seconds, FIRST_LOOK_SECONDS
        while True:
            with contextlib.suppress(EngineError):
                ready()
                return
            if self._process.poll() is not None:
                raise EngineError(self.describe("ended before it was ready"))
            if time.monotonic() >= deadline:
                raise EngineError(self.describe(f"was not ready within {within_seconds:g} s; it was ended"))
            time.sleep(pause)
            pause = min(1.5 * pause, LAST_LOOK_SECONDS)

    def refuse_dead(self, doing: str, within_seconds: float) -> None:
        """Raises EngineDied, with its last words, if it has ended or ends within so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_seconds)
            raise EngineDied(self.describe(f"died while {doing}"))

    def describe(self, what: str) -> str:
        """What happened, the command, and the end of its log."""
        return f"server {self._label} {what}: {' '.join(self._command)}\n{last_words(self.log)}"

    def close(self) -> None:
        """End the group; safe to call twice."""
        end_group(self.group)
        self._process.wait()


def free_port() -> int:
    """A port of the loopback address on which nobody listens now, never the same again.

    It lies below those that outgoing connections take.
    """
    first = random.randrange(len(PORTS))  # several processes look at once
    for port in chain(PORTS[first:], PORTS[:first]):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            if port not in _given:
                _given.add(port)
                return port
    raise EngineError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")
