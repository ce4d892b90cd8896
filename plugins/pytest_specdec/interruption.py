"""How a session ends before its time: SIGTERM interrupts it as Ctrl-C does, and a run that lacks gates is partial.

SIGKILL, as a kernel without memory sends it, leaves the records of the gates that had passed by then.

By default a process ends at once at SIGTERM, which time limits and cancelled jobs send: no figure is saved and no table
printed. Here it raises KeyboardInterrupt wherever the main thread is, so pytest ends the session in order, with the
exit status of a process that SIGTERM ended. A SIGTERM that comes while the session ends breaks nothing off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.fixtures import PROPERTY

BY_SIGTERM = "ended by SIGTERM"
TERMINATED = 128 + signal.SIGTERM


class Interruption:
    """A pytest plugin: what ended the session, and how many gates had finished by then."""

    def __init__(self, config: pytest.Config) -> None:
        self._unfinished = Unfinished(config)
        self._ended = ""
        self._terminated = self._ending = self._broken_off = False
        self._gates: set[str] | None = None
        self._finished: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """From here on pytest finishes a session that is interrupted; before, there is nothing to keep."""
        if not _may_handle_sigterm(session.config):
            return
        process = os.getpid()

        def handle(*_: Any) -> None:
            if os.getpid() != process:  # which a test has forked: it ends as if it had no handler
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
            self._terminate(session)

        def restore() -> None:
            if signal.getsignal(signal.SIGTERM) is handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

        signal.signal(signal.SIGTERM, handle)
        session.config.add_cleanup(restore)

    def _terminate(self, session: pytest.Session) -> None:
        """Interrupt the session, once; a test that swallows that is the last."""
        first, self._terminated = not self._terminated, True
        self._ended = self._ended or BY_SIGTERM
        if first and not self._ending:
            session.shouldstop = BY_SIGTERM
            raise KeyboardInterrupt(BY_SIGTERM)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Any:
        """Note what breaks it off; after it there is nothing left to interrupt."""
        self._gates = {item.nodeid for item in session.items if is_gate(item)}
        try:
            return (yield)
        except BaseException as stop:
            self._broken_off = True
            self._ended = self._ended or _in_words(stop)
            raise
        finally:
            self._ending = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the tests that have finished, and keep the records of those that passed: a kill is not foreseen."""
        if report.when == "call" or not report.passed:
            self._finished.add(report.nodeid)
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "call" and report.passed:
                self._unfinished.add(report.nodeid, str(value))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Let SIGTERM break nothing off from here on; who sent it learns by the exit status that it came."""
        self._ending = True
        yield
        self._unfinished.remove()  # pytest-benchmark has saved the run
        if self._terminated:
            session.exitstatus = TERMINATED

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """A saved run that lacks gates says so."""
        if partial := self.partial():
            output_json["specdec"] = {"partial": True, "reason": partial}

    def partial(self, recorded: int = 0) -> str:
        """The words of `describe`; empty where no gate is missing."""
        lacks = not self._gates <= self._finished if self._gates else self._broken_off or self._gates is None
        return self.describe(recorded) if lacks else ""

    def describe(self, recorded: int = 0) -> str:
        """What ended the session before its time, "ended by SIGTERM after 1 of 3 gates"; empty if nothing did.

        `recorded`: how many gates have left a record, for the controller of pytest-xdist, which has no tests itself.
        """
        if self._gates is None:
            return f"{BY_SIGTERM} before a gate had run" if self._terminated else ""
        counted = f"{len(self._gates & self._finished)} of {len(self._gates)}" if self._gates else str(recorded or "")
        return f"{self._ended} after {counted} gate{'s' * (counted != '1')}" if self._ended and counted else ""


class Unfinished:
    """Records of the gates that have passed, a line of JSON each, beside the saved runs.

    They are there only where the run is to be saved, and only until pytest-benchmark has saved it.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._file: Path | None = None

    def add(self, test: str, record: str) -> None:
        """A test's record in JSON. What cannot be written here, pytest-benchmark tells when it saves the run."""
        session: Any = getattr(self._config, "_benchmarksession", None)
        wanted = session is not None and not session.disabled and (session.save or session.autosave)
        if not wanted or not hasattr(session.storage, "get"):  # a storage that is no folder
            return
        from pytest_specdec.history.saved import unfinished_line, unfinished_name

        with contextlib.suppress(OSError):
            self._file = self._file or session.storage.get(unfinished_name(session.storage.path))
            with self._file.open("a", encoding="utf-8") as file:
                file.write(unfinished_line(test, record))

    def remove(self) -> None:
        """The run is saved."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def is_gate(item: pytest.Item) -> bool:
    """Whether the test asks for the fixture `specdec`."""
    return "specdec" in getattr(item, "fixturenames", ())


def without_empty_json(option: Any) -> str:
    """Remove the file of --benchmark-json if it is empty, and say so; `option` is what pytest-benchmark made of it.

    Before 5.3 pytest-benchmark opens the file when it starts, and leaves it behind if nothing was measured.
    """
    path = option if isinstance(option, Path) else Path(option.name)
    if not path.is_file() or path.stat().st_size:
        return ""
    path.unlink()
    return f"nothing was measured, so there is no {path}"


def _may_handle_sigterm(config: pytest.Config) -> bool:
    """In the process that was started, where nobody else handles it, and no debugger would take it for a fault.

    A worker of pytest-xdist ends at once, and its engines with it: its controller knows what it had finished.
    """
    mine = threading.current_thread() is threading.main_thread() and not hasattr(config, "workerinput")
    return mine and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not config.getoption("usepdb", False)


def _in_words(stop: BaseException) -> str:
    told = " ".join(str(stop).split()) or type(stop).__name__
    return "ended by Ctrl-C" if type(stop) is KeyboardInterrupt else f"ended ({told})"
