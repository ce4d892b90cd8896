"""The program of a second, small worker on the engine's host: it measures beside the engine, in a process of its own.

The source of this file is executed there by execnet, in an interpreter that need not know this package: it uses the
standard library only. The first message brings the sources of the modules that measure, and whose energy it is; after
that each message is (command, arguments) and each answer its result, in plain values.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE, RECORD = "pytest_specdec.telemetry.energy", "pytest_specdec.record"


class Shipped(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that came as text."""

    def __init__(self, sources: dict[str, str]) -> None:
        """`sources`: dotted name to text."""
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only what was shipped."""
        if fullname not in self._sources:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in self._sources)
        return importlib.util.spec_from_loader(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        """Run the text, with tracebacks that name the module."""
        exec(compile(self._sources[module.__name__], f"<{module.__name__}>", "exec"), module.__dict__)


def serve(channel: Any) -> None:
    """Make the meter and do as told until `stop`."""
    sources, subject = channel.receive()
    sys.meta_path.insert(0, Shipped(sources))
    energy = importlib.import_module(MODULE)
    to_json = importlib.import_module(RECORD).to_json
    meter = energy.local_meter(energy.Subject(**subject), energy.Instruments())
    for command, arguments in channel:
        channel.send(to_json(getattr(meter, command)(*arguments)))
        if command == "stop":
            return


if __name__ == "__channelexec__":
    serve(channel)  # type: ignore[name-defined]  # noqa: F821
