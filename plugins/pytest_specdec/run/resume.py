"""Resume: which gate is green already in a saved run, so that many gates may be measured over several short sessions.

What is not known before an engine is loaded, as the versions of a server that is found, is never taken for the same:
such a gate runs again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest_specdec
from pytest_specdec.engines.fake import VERSIONS
from pytest_specdec.engines.spec import IN_WORKERS, EngineSpec
from pytest_specdec.history.history import place
from pytest_specdec.history.saved import UNFINISHED, all_paths, read_text, run_of
from pytest_specdec.record import GREEN, Place, Record
from pytest_specdec.run.describe import asked_part, hardware_part
from pytest_specdec.settings import Settings
from pytest_specdec.workloads.scenario import Scenario

BATCH_INVARIANT = ("VLLM_BATCH_INVARIANT", "SGLANG_ENABLE_DETERMINISTIC_INFERENCE")
SETTINGS = ("rounds", "warmup", "time_budget", "calibration", "rate", "fail", "fail_on")
TELL_VERSIONS = """
import json
from importlib import metadata
found = metadata.packages_distributions().items()
told = {name: metadata.version(each[0]) for name, each in found if name in ("vllm", "torch", "transformers")}
print(json.dumps(told))
"""


def settings_digest(settings: Settings, scenario: Scenario, spec: EngineSpec) -> str:
    """Twelve hex digits over what decides about green and about rounds, beside the engine's key and the workload."""
    asked = scenario.model_dump(mode="json", exclude={"name", "description", "source"})
    told: list[Any] = [pytest_specdec.__version__, asked, *(str(getattr(settings, name)) for name in SETTINGS)]
    told += [os.environ.get(name, "") for name in BATCH_INVARIANT]
    told += [_files_of(model) for model in (spec.target, spec.draft) if model]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def _files_of(model: str) -> list[tuple[str, int, int]]:
    """Name, size and moment of writing of each file, where the model is a folder here: one trained anew is another."""
    folder = Path(model).expanduser().resolve()
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    found = ((path.relative_to(folder).as_posix(), path.stat()) for path in files)
    return [(name, told.st_size, told.st_mtime_ns) for name, told in found]


def green_before(test: str, spec: EngineSpec, scenario: Scenario, settings: Settings, storage: Path) -> str | None:
    """Where the newest saved record of this test's gate lies; None where none is green. Raises UnreadableRun."""
    digest, asked = settings_digest(settings, scenario, spec), asked_part(spec, scenario)
    now = Record(asked=asked, hardware=hardware_part(), place=Place(test=test))
    for path in reversed(all_paths(storage)):
        ended = path.name.startswith(UNFINISHED) and not path.exists()  # a session that has since
        run = run_of(path, text) if not ended and digest in (text := read_text(path)) else None
        if run and any(_is_same(record, now, digest) and _same_versions(record, spec) for record in run.records):
            return f"run {run.id} ({run.path})"
    return None


def _is_same(record: Record, now: Record, digest: str) -> bool:
    then, driver = record.asked, record.hardware.driver
    keys = [(each.engine_key, each.scenario_digest) for each in (then, now.asked)]
    alike = keys[0] == keys[1] and then.settings_digest == digest and driver == now.hardware.driver
    alike = alike and record.place.test == now.place.test  # another test may ask more of the same gate
    return alike and record.gate == GREEN and place(record) == place(now)


def _same_versions(record: Record, spec: EngineSpec) -> bool:
    """Of the engine, and of the target alone, which may run elsewhere."""
    for told, where in ((record.engine.versions, spec), (record.verdict.reference_versions, spec.target_only())):
        in_worker = where.backend in IN_WORKERS and where.gateway is None
        here = VERSIONS if where.backend == "fake" else _packages(where.python or sys.executable) if in_worker else {}
        if any(_public(here.get(name, "")) != _public(version) for name, version in told.items()):
            return False
    return bool(record.engine.versions)


@lru_cache
def _packages(python: str) -> Mapping[str, str]:
    try:
        told = subprocess.run([python, "-c", TELL_VERSIONS], check=True, capture_output=True, text=True).stdout
        return dict(json.loads(told))
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}


def _public(version: str) -> str:
    """Without what a build adds, as in 2.13.0+cpu: a package's own word and its metadata differ in that."""
    return version.partition("+")[0]
