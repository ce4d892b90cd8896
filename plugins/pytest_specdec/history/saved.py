"""Saved runs: pytest-benchmark's JSON files, read for the records that this package left in them.

Benchmarks of others in the same file are passed over. A file that cannot be read is an error that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.record import Record, from_json

NUMBERED = re.compile(r"\d{4,}(?=_)")
UNFINISHED = "unfinished_"
"""So begins the name of a file of lines, which holds what has passed of a session that goes on or was killed."""


class UnreadableRun(ConfigurationError):
    """A file is no result of pytest-benchmark's: missing, cut off, or something else altogether."""


@dataclass(frozen=True)
class SavedRun:
    """One pytest session's results.

    `id`: the number at the start of the file's name, as pytest-benchmark gives it ("0001"), or the file's name without
    its suffix. `datetime`: ISO 8601, when it was saved. `commit`, `machine`: what pytest-benchmark noted of both.
    `records`: the records (docs/record.md), each with its test's full name. `partial`: what ended the session before
    all gates had finished ("ended by SIGTERM after 1 of 3 gates"), empty for a whole run.
    """

    id: str
    path: Path
    datetime: str
    commit: Mapping[str, Any]
    machine: Mapping[str, Any]
    records: tuple[Record, ...]
    partial: str = ""


def read_run(path: Path) -> SavedRun:
    """Read one file. Raises UnreadableRun."""
    return run_of(path, read_text(path))


def run_of(path: Path, text: str) -> SavedRun:
    """The run that the text of this file holds. Raises UnreadableRun."""
    content = content_of(path, text)
    benches = [bench for bench in content["benchmarks"] if "specdec" in (bench.get("extra_info") or {})]
    told = content.get("specdec") or {}
    return SavedRun(
        id=run_id(path),
        path=path,
        datetime=str(content.get("datetime", "")),
        commit=content.get("commit_info") or {},
        machine=content.get("machine_info") or {},
        records=tuple(_record(path, bench) for bench in benches),
        partial=str(told.get("reason") or "no reason is told") if told.get("partial") else "",
    )


def content_of(path: Path, text: str) -> dict[str, Any]:
    """What pytest-benchmark wrote, or a session's lines. Raises UnreadableRun for anything else, or where it is cut."""
    content = _content_of_lines(path, text) if path.name.startswith(UNFINISHED) else _content_of_json(path, text)
    benches = content.get("benchmarks") if isinstance(content, dict) else None
    if not isinstance(benches, list) or not all(isinstance(bench, dict) for bench in benches):
        raise UnreadableRun(f'{path}: has no list "benchmarks" of objects, so pytest-benchmark did not write it')
    parts = [(key, content.get(key)) for key in ("commit_info", "machine_info", "specdec")]
    for key, part in [*parts, *(("extra_info", bench.get("extra_info")) for bench in benches)]:
        if not isinstance(part or {}, dict):
            raise UnreadableRun(f'{path}: "{key}" is no object, so pytest-benchmark did not write it')
    return dict(content)


def _content_of_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"is cut off or no JSON ({error})" if text.strip() else "is empty"
        raise UnreadableRun(f"{path}: {what}; delete it, or measure again with --benchmark-autosave") from None


def read_text(path: Path) -> str:
    """The file's text. Raises UnreadableRun."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UnreadableRun(f"{path}: cannot be read ({error.strerror}); name a file of pytest-benchmark's") from None
    except UnicodeDecodeError:
        raise UnreadableRun(f"{path}: is no text; name a JSON file of pytest-benchmark's") from None


def run_id(path: Path) -> str:
    """The number in front of the file's name, or the name itself."""
    numbered = NUMBERED.match(path.name)
    return numbered.group() if numbered else path.stem


def storage_folder(address: str) -> Path:
    """The folder that `--benchmark-storage` names. Raises ConfigurationError for a storage that is no folder."""
    if "://" in address and not address.startswith("file://"):
        raise ConfigurationError(
            f"{address}: only a folder can be compared with; give --benchmark-storage file://FOLDER"
        )
    return Path(address.removeprefix("file://"))


def saved_paths(storage: Path) -> list[Path]:
    """The files of pytest-benchmark's storage (`storage/<machine>/0001_….json`), oldest first."""
    return sorted((path for path in storage.glob("*/*.json") if NUMBERED.match(path.name)), key=_age)


def all_paths(storage: Path) -> list[Path]:
    """The saved runs, and what unfinished sessions hold, by the runs that were saved when they began."""
    left = storage.glob(f"*/{UNFINISHED}[0-9][0-9][0-9][0-9]*_*.jsonl")
    return sorted([*saved_paths(storage), *left], key=_age)


def _age(path: Path) -> tuple[int, bool, str, str]:
    name = path.name.removeprefix(UNFINISHED)
    return int(name.partition("_")[0]), name != path.name, path.name, path.parent.name


def unfinished_name(storage: Path) -> str:
    """A name for the file of a session that begins now, which no other has."""
    saved = saved_paths(storage)
    return f"{UNFINISHED}{run_id(saved[-1]) if saved else '0000'}_{uuid4().hex[:8]}.jsonl"


def unfinished_line(test: str, record: str) -> str:
    """A test's record, itself JSON, as `content_of` reads it."""
    told = json.dumps({"fullname": test, "datetime": datetime.now(timezone.utc).isoformat()})
    return f'{told[:-1]}, "extra_info": {{"specdec": {record}}}}}\n'


def _content_of_lines(path: Path, text: str) -> dict[str, Any]:
    """What a saved run of these lines would hold; of a session that was killed the last line may be cut off."""
    *lines, last = text.split("\n")
    lines += [last] if _json_of(last) is not None else []
    benches = [_bench_of_line(f"{path}:{number}", line) for number, line in enumerate(lines, 1)]
    gates = f"{len(benches)} gate{'s' * (len(benches) != 1)}"
    told = {"partial": True, "reason": f"unfinished, {gates} had passed"}
    return {"benchmarks": benches, "datetime": benches[-1]["datetime"] if benches else "", "specdec": told}


def _json_of(line: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(line)
    return None


def _bench_of_line(place: str, line: str) -> dict[str, Any]:
    told = _json_of(line)
    if isinstance(told, dict) and isinstance(told.get("datetime"), str):
        return told
    raise UnreadableRun(f"{place}: {line:.40} is no record of a gate; delete the line")


def paths_in(folder: Path) -> list[Path]:
    """A folder's runs, oldest first: a storage's, or else every JSON file. Raises ConfigurationError for none."""
    paths = all_paths(folder)
    paths = paths or sorted(folder.glob("*.json"), key=lambda path: (read_run(path).datetime, path.name))
    if not paths:
        raise ConfigurationError(f"no run in {folder}: save one with pytest --benchmark-autosave")
    return paths


def _record(path: Path, bench: Mapping[str, Any]) -> Record:
    name = str(bench.get("fullname", "a benchmark without a name"))
    try:
        record = from_json(bench["extra_info"]["specdec"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        remedy = "delete the file, or measure again with --benchmark-autosave"
        raise UnreadableRun(f"{path}: the record of {name} cannot be read ({error!r}): {remedy}") from None
    return replace(record, place=replace(record.place, test=name))
