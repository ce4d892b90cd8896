"""The program of a second, small worker on the engine's host: it measures beside the engine, in a process of its own.

The source of this file is executed there by execnet, in an interpreter that need not know this package: it uses the
standard library only. The first message brings an archive of the modules that measure, and whose energy it is; after
that each message is (command, arguments) and each answer its result, in plain values.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from typing import Any


def serve(channel: Any) -> None:
    """Make the meter and do as told until `stop`."""
    archive, subject = channel.receive()
    with tempfile.NamedTemporaryFile(prefix="specdec-", suffix=".zip") as file:
        file.write(archive)
        file.flush()
        sys.path.insert(0, file.name)
        energy, record = map(import_module, ("pytest_specdec.telemetry.energy", "pytest_specdec.record"))
        meter = energy.local_meter(energy.Subject(**subject), energy.Instruments())
        for command, arguments in channel:
            channel.send(record.to_json(getattr(meter, command)(*arguments)))
            if command == "stop":
                return


if __name__ == "__channelexec__":
    serve(channel)  # type: ignore[name-defined]  # noqa: F821
