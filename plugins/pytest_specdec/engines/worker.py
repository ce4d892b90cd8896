"""The program of a worker process: one engine, a loop of commands, plain values in and out.

execnet executes the source of this file, in an interpreter that need not know this package: it uses the standard
library only. The first message brings the backend's own source and the configuration; after that each message is
(command, arguments) and each answer (kind, value). The worker leads a process group of its own, and ends that group
itself when its parent is gone. As a program of its own it stands so between pytest and a server's command.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
from array import array
from base64 import b64encode
from typing import Any

PARENT_CHECK_SECONDS = 1.0
BACKEND = "specdec_"  # begins the name of a backend's module
SIZES = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "quantization_config",
)
REFUSING = {"NotImplementedError", "ValueError", "VLLMValidationError"}  # vLLM's own is no ValueError


def follow_parent(parent: int) -> None:
    """End the whole process group once the parent is gone, whatever the engine is busy with.

    The parent is pytest; or on another machine what holds the connection there, which ends when the connection does.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    end_own_group()


def end_own_group() -> None:
    """Leave nothing behind that nobody would end: first what made a group of its own in this session."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if os.getsid(pid) == os.getpid() != os.getpgid(pid):
                os.kill(pid, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def log_to(path: str | None) -> None:
    """Engines talk a lot; their words go to a file that an error message can quote, or else to one of this machine."""
    if not path:
        import tempfile  # most processes need none

        path = tempfile.mkstemp(prefix="specdec-", suffix=".log")[1]
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def set_environment(environment: dict[str, str]) -> None:
    """Before the engine is imported; a torch that was, by a fork server, is told how many threads it has."""
    os.environ.update(environment)
    threads = environment.get("OMP_NUM_THREADS", "")
    if "torch" in sys.modules and threads.isdecimal() and int(threads):
        sys.modules["torch"].set_num_threads(int(threads))


def backend_from(source: str, name: str) -> Any:
    """The backend as a module made from its source text, with tracebacks that name its file."""
    module = types.ModuleType(f"{BACKEND}{name}")
    module.__file__ = f"<specdec {name} backend>"
    sys.modules[module.__name__] = module
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module


def answer(action: Any, *arguments: Any) -> tuple[str, Any]:
    """Run one command; an exception becomes a value, told apart by whether the engine refuses in words."""
    try:
        return "ok", plain(action(*arguments))
    except Exception as error:
        traceback.print_exc()
        return "unsupported" if is_refusal(error) else "error", f"{type(error).__name__}: {error}"


def is_refusal(error: Exception) -> bool:
    """Whether the engine says that it cannot do this, in words that its backend vouches for; else it is a fault."""
    backends = [module for name, module in list(sys.modules.items()) if name.startswith(BACKEND)]
    vetted = [words for module in backends for words in getattr(module, "REFUSALS", ())]
    kinds = {each.__name__ for each in type(error).__mro__} & REFUSING
    return bool(kinds) and any(re.search(each, str(error)) for each in vetted)


def plain(value: Any) -> Any:
    """Values that any interpreter can read: str subclasses, tuples and array scalars become what JSON knows.

    An array of numbers becomes base64.
    """
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    return b64encode(value.tobytes()).decode() if isinstance(value, array) else value.item()


def load(start: dict[str, Any], loaded: list[Any]) -> dict[str, Any]:
    """Load the engine into `loaded` and say what it is."""
    loaded.append(backend_from(start["source"], start["backend"]).load(start["config"]))
    return describe(loaded[0])


def describe(backend: Any) -> dict[str, Any]:
    """What the engine says of itself; of its model's configuration, the sizes."""
    description = dict(backend.describe())
    if whole := description.get("details", {}).get("architecture"):
        description["details"]["architecture"] = {name: whole[name] for name in SIZES if whole.get(name) is not None}
    return description


def serve(channel: Any) -> None:
    """Take the start message, and obey; a worker that is left without a word takes its process group along."""
    start = channel.receive()
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        os.setsid()  # Ctrl-C in the terminal is then the parent's to handle
    log_to(start["log"])
    set_environment(start["environment"])
    threading.Thread(target=follow_parent, args=(parent,), daemon=True).start()
    dismissed = False
    try:
        dismissed = obey(channel, start)
    finally:
        if not dismissed:
            end_own_group()


def obey(channel: Any, start: dict[str, Any]) -> bool:
    """Load the engine and answer commands; True if told to close, or not needed since it did not load."""
    channel.send(("ok", os.getpid()))
    loaded: list[Any] = []
    channel.send(answer(load, start, loaded))
    for command, arguments in channel if loaded else ():
        channel.send(answer(getattr(loaded[0], command), *arguments))
        if command == "close":
            return True
    return not loaded


def guard(pytest: str, *command: str) -> int:
    """Run a server's command and wait for it; when pytest is gone, however soon it went, so is the server."""
    threading.Thread(target=follow_parent, args=(int(pytest),), daemon=True).start()
    return subprocess.Popen(command, stdin=subprocess.DEVNULL).wait()


if __name__ == "__channelexec__":
    serve(channel)  # type: ignore[name-defined]  # noqa: F821
elif __name__ == "__main__":
    sys.exit(guard(*sys.argv[1:]))
