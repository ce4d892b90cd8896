"""The session that is just ending, in the form of a saved run, so that red gates can be reported as well."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from pytest_specdec.history.saved import SavedRun
from pytest_specdec.record import Record


def present_run(records: Sequence[Record], storage: Path, partial: str = "") -> SavedRun:
    """These records as a run of now. `storage`: pytest-benchmark's folder, beside which power series lie.

    `partial`: what ended the session before all gates had finished.
    """
    machine = {
        "python_version": platform.python_version(),
        "system": platform.system(),
        "release": platform.release(),
    }
    return SavedRun(
        id="of this session",
        path=storage / "this session",
        datetime=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit={},
        machine=machine,
        records=tuple(records),
        rounds={},
        partial=partial,
    )
