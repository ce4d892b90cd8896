"""Power over time: the series that a monitor wrote beside the results, where a record names one that is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.report.figure import Figure, Line
from pytest_specdec.report.gates import Gate

MOST_POINTS = 400


def power(group: str, gates: Sequence[Gate]) -> Figure:
    """Watts of each GPU over the seconds of each gate's rounds. Raises ConfigurationError for a series not in JSON."""
    lines = [line for gate in gates for line in _lines(gate)]
    note = "Sampled power: read energy from the energy figures, which use the counter where there is one."
    return Figure("Power over time", group, "time (s)", "power (W)", tuple(lines), x_whole=False, note=note)


def _lines(gate: Gate) -> list[Line]:
    path = series_file(gate)
    if path is None:
        return []
    gpus = _read(path)
    several = len(gpus) > 1
    return [
        _thin(f"{gate.label}, {uuid[:12]}" if several else gate.label, columns)
        for uuid, columns in gpus.items()
        if columns.get("watts")
    ]


def series_file(gate: Gate) -> Path | None:
    """Where the gate's series lies: beside its run, or one folder above. None if none is named or none is there."""
    name = gate.record.energy.series.value
    if not name or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        return None
    folder = Path(gate.run.path).parent
    found = [place / name for place in (folder, folder.parent) if (place / name).is_file()]
    return found[0] if found else None


def _read(path: Path) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    try:
        gpus: Mapping[str, Mapping[str, Sequence[Any]]] = json.loads(path.read_text("utf-8"))["gpus"]
    except (ValueError, KeyError) as error:
        raise ConfigurationError(f"{path}: not a power series ({error!r}); delete the file, or measure again") from None
    return gpus


def _thin(name: str, columns: Mapping[str, Sequence[Any]]) -> Line:
    """Every n-th sample, so that an hour's series is no heavier than a minute's."""
    step = max(1, len(columns["seconds"]) // MOST_POINTS)
    return Line(name, tuple(columns["seconds"][::step]), tuple(columns["watts"][::step]))
