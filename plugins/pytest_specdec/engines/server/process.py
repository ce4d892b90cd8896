"""A server that is started here: its process group, its log, and whether it still lives."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_specdec.engines.process_group import end_group, last_words
from pytest_specdec.errors import EngineDied, EngineError

LOOK_SECONDS = 0.2
HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)


class ServerProcess:
    """A command under a guardian, in a process group of its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], label: str) -> None:
        """Start it. Raises EngineError."""
        self.log = Path(tempfile.mkdtemp(prefix="specdec-")) / "server.log"
        self._label, self._command = label, list(command)
        guardian = [sys.executable, "-I", str(Path(__file__).with_name("guardian.py"))]
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

    def wait_until(self, ready: Callable[[], bool], within_seconds: float) -> None:
        """Return when it is ready. Raises EngineError if it ends or takes longer."""
        deadline = time.monotonic() + within_seconds
        while not ready():
            if self._process.poll() is not None:
                raise EngineError(self.told("ended before it was ready"))
            if time.monotonic() >= deadline:
                raise EngineError(self.told(f"was not ready within {within_seconds:g} s; it was ended"))
            time.sleep(LOOK_SECONDS)

    def refuse_dead(self, doing: str, within_seconds: float) -> None:
        """Raises EngineDied, with its last words, if it has ended or ends within so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_seconds)
            raise EngineDied(self.told(f"died while {doing}"))

    def told(self, what: str) -> str:
        """What happened, the command, and the end of its log."""
        return f"server {self._label} {what}: {' '.join(self._command)}\n{last_words(self.log)}"

    def close(self) -> None:
        """End the group; safe to call twice."""
        end_group(self.group)
        self._process.wait()


def free_port() -> int:
    """A port of the loopback address on which nobody listens now; below those that outgoing connections take."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise EngineError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")
