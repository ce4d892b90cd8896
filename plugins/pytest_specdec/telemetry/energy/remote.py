"""A meter on another host: a small worker of its own beside the engine, reached as the engine is.

The modules that measure travel as text, so nothing needs to be installed there but nvidia-ml-py. A round trip to the
host, some milliseconds, is part of each round that is measured this way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_specdec.record.parts import EnergyPart
from pytest_specdec.record.wire import part_from
from pytest_specdec.telemetry.energy.meter import Subject, missing_energy

ANSWER_SECONDS = 120.0
SHIPPED = (
    *("__init__.py", "errors.py", "hardware.py", "engines/__init__.py", "engines/process_group.py"),
    *("telemetry/__init__.py", "telemetry/energy/*.py", "record/*.py"),
)


class RemoteMeter:
    """Passes each call on. A host that fails leaves null figures with the reason."""

    def __init__(self, gateway: str, python: str, subject: Subject) -> None:
        """`gateway`: an execnet specification; `python`: the interpreter there."""
        self._where, self._fault = f"{gateway}//python={python}", ""
        self._group: Any = None
        with self._noting():
            self._open(subject)

    def start(self) -> None:
        """Idle power, there."""
        self._call("start")

    def begin_round(self) -> None:
        """A round begins when the host has answered."""
        self._call("begin_round")

    def end_round(self) -> None:
        """The round ended when the host heard of it."""
        self._call("end_round")

    def satisfied(self) -> bool:
        """What the host says; a host that fails has nothing to wait for."""
        return self._call("satisfied") is not False

    def each_round(self) -> Sequence[float]:
        """What the host has counted so far."""
        return self._call("each_round") or ()

    def stop(self, tokens: int) -> EnergyPart:
        """The host's figures; its worker ends."""
        result = self._call("stop", tokens)
        if self._group is not None:
            self._group.terminate(timeout=1.0)
        return missing_energy(self._fault) if self._fault else part_from(EnergyPart, result)

    def _open(self, subject: Subject) -> None:
        import execnet

        from pytest_specdec.engines import meter

        self._group = execnet.Group()
        self._channel = self._group.makegateway(self._where).remote_exec(meter)
        self._channel.send((dict(_sources()), asdict(subject)))

    def _call(self, command: str, *arguments: Any) -> Any:
        if self._fault:
            return None
        with self._noting():
            self._channel.send((command, arguments))
            return self._channel.receive(ANSWER_SECONDS)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            words = str(error).strip() or f"no answer ({type(error).__name__})"
            self._fault = f"the meter at {self._where} failed: {words.splitlines()[-1]}"


def _sources() -> Iterator[tuple[str, str]]:
    """Dotted name and text of each module that measures."""
    root = Path(__file__).parents[2]
    for path in (path for pattern in SHIPPED for path in root.glob(pattern)):
        name = ".".join((root.name, *path.relative_to(root).with_suffix("").parts))
        yield name.removesuffix(".__init__"), path.read_text("utf-8")
