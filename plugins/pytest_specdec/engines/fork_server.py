"""A process that has imported an engine's packages and forks a worker from itself for each engine: one import for all.

execnet starts a worker by a command that reads a program from its standard input. Here that command is this file's
`relay`: it hands its standard input and output to the fork server over a Unix socket, and the child that is forked for
it reads the program in its place. Only on a machine without a GPU: a process that has touched CUDA must not be forked.

This file runs in the engine's interpreter, which need not have this package: it uses the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOOK_SECONDS = 1.0
OF_ONE_TEST = ("PYTEST_CURRENT_TEST",)
SET_LATE = ("OMP_NUM_THREADS",)  # plain numbers, by the worker, after the import: worker.py
_servers: dict[tuple[str, str], ForkServer] = {}
_retired: list[ForkServer] = []


def command_for(python: str, backend: str, source: str, environment: Mapping[str, str]) -> str:
    """The command that execnet is to start in the place of `python`: it becomes a worker that has imported the backend.

    `source`: the text of the backend's module, whose `preload` imports what the engine needs. There is one server for
    each backend and interpreter; where environment or working folder have changed, another takes its place.
    """
    own = {name: value for name, value in environment.items() if name not in SET_LATE or not value.isdecimal()}
    told = {name: value for name, value in {**os.environ, **own}.items() if name not in OF_ONE_TEST}
    key = (source, os.getcwd(), tuple(sorted(told.items())))
    server = _servers.get((backend, python))
    if server is None or server.key != key or server.process.poll() is not None:
        if server is not None:
            server.process.terminate()  # it ends once its last worker has
            _retired.append(server)
        server = _servers[backend, python] = ForkServer(key, python, source, told)
    return server.command


def close_all() -> None:
    """End every fork server; the workers that they forked have ended before."""
    for server in (*_servers.values(), *_retired):
        server.close()
    _servers.clear()
    _retired.clear()


class ForkServer:
    """The pytest side of one such process."""

    def __init__(self, key: tuple[Any, ...], python: str, source: str, environment: Mapping[str, str]) -> None:
        self.key = key
        folder = Path(tempfile.mkdtemp(prefix="specdec-fork-"))
        address, program = str(folder / "socket"), folder / "backend.py"
        program.write_text(source, "utf-8")
        self.command = shlex.join([python, "-I", __file__, "relay", address])
        with (folder / "log").open("wb") as log, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            self.process = subprocess.Popen(
                [python, "-u", "-c", Path(__file__).read_text("utf-8"), "serve", str(listener.fileno()), str(program)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        """End it now; a worker that it has forked ends itself when it sees that."""
        self.process.kill()
        self.process.wait()


def relay(address: str) -> None:
    """Hand standard input and output over, and stay until the worker that has them is gone."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"1"], [0, 1, 2])
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):
            os.dup2(nothing, standard)
        server.recv(1)


def serve(listener: socket.socket, program: Path, parent: int) -> None:
    """Import what the backend needs, then fork a worker for each connection; end with the parent, or when retired."""
    _preload(program)
    workers: dict[int, socket.socket] = {}
    retired: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: _bury(workers))
    signal.signal(signal.SIGTERM, lambda number, _: retired.append(number))
    listener.settimeout(LOOK_SECONDS)
    while os.getppid() == parent and (workers or not retired):
        with contextlib.suppress(TimeoutError):
            _fork_worker(listener.accept()[0], listener, workers)


def _bury(workers: dict[int, socket.socket]) -> None:
    """Leave no zombie of a worker that has ended, and let its relay go after that."""
    with contextlib.suppress(ChildProcessError):
        while (worker := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            workers.pop(worker).close()


def _preload(program: Path) -> None:
    """What cannot be imported here is the engine's own error when it is loaded, and not this process's."""
    module = {"__name__": "specdec_preload"}
    with contextlib.suppress(Exception):
        exec(compile(program.read_text("utf-8"), str(program), "exec"), module)
        module["preload"]()  # type: ignore[operator]


def _fork_worker(connection: socket.socket, listener: socket.socket, workers: dict[int, socket.socket]) -> None:
    """In the child: take the relay's standard streams and become what is written there."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    worker = os.fork()
    if worker == 0:
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        for held in (listener, connection, *workers.values()):
            held.close()
        _become_worker(streams)
    workers[worker] = connection
    for stream in streams:
        os.close(stream)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _become_worker(streams: list[int]) -> None:
    status = 1
    try:
        for standard, stream in enumerate(streams):
            os.dup2(stream, standard)
            os.close(stream)
        sys.stdin = os.fdopen(0, closefd=False)
        exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
        status = 0
    finally:
        os._exit(status)


def main(role: str, *arguments: str) -> None:
    """`serve DESCRIPTOR PROGRAM`, or `relay ADDRESS` and what execnet adds for a Python."""
    if role == "relay":
        relay(arguments[0])
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(arguments[0])), Path(arguments[1]), os.getppid())


if __name__ == "__main__":
    main(*sys.argv[1:])
