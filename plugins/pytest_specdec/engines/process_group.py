"""A process group of an engine: who of it lives, how it is ended, and what it said last.

What an engine starts shares the group of its first process, or the session where it has made a group of its own, as
Ray's actors do: so one number is enough to leave nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

GRACE_SECONDS = 10.0
KILLED_SECONDS = 60.0  # a machine under load takes its time to give a large engine's memory back
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.05
LAST_WORDS_LINES = 12


def end_group(group: int) -> None:
    """SIGTERM, then SIGKILL, to what is left of the group on this machine; SIGKILL at once if that is interrupted."""
    try:
        _end_by(signal.SIGTERM, group, GRACE_SECONDS)
    finally:
        _end_by(signal.SIGKILL, group, KILLED_SECONDS)


def _end_by(number: signal.Signals, group: int, seconds: float) -> None:
    if group_is_gone(group, 0.0):
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
    for pid in live_members(group):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) != group:
                os.kill(pid, number)
    group_is_gone(group, seconds)


def group_is_gone(group: int, within_seconds: float) -> bool:
    """Whether no live process of the group is left, waiting up to `within_seconds`; zombies count as gone."""
    deadline, pause = time.monotonic() + within_seconds, SHORTEST_PAUSE
    while live_members(group):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return True


def live_members(group: int) -> list[int]:
    """Process ids of the group that still run, zombies left out."""
    import psutil

    return [pid for pid in psutil.pids() if is_member(pid, group) and is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie, as far as one may know."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def is_member(pid: int, group: int | None) -> bool:
    """Whether a process is in the group, or in the session that the group's first process leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return group in (os.getpgid(pid), os.getsid(pid))
    return False


def last_words(log: Path) -> str:
    """The end of what the engine wrote, for an error message."""
    if not log.exists():
        return "it left no log"
    lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return "\n".join([f"last lines of {log}:", *(f"    {line}" for line in lines[-LAST_WORDS_LINES:])])
