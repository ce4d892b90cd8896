"""docs/record.md, written from the record's types: every key with its unit and meaning.

`python tests/unit/pages/record.py` writes it; a test fails where it is stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pytest_specdec.record import Figure, Record, Spread, hints

PAGE = Path(__file__).parents[3] / "docs" / "record.md"
HEAD = """# The record

Each gate leaves one record. The fixture returns it (`record.speedup.ratio.value`), and it lies under
`extra_info["specdec"]` of pytest-benchmark's JSON and in the test's user properties; JUnit XML carries it, and beside
it its first figures as plain properties, `specdec.tokens_per_second` and so on. `tests/unit/pages/record.py` writes
this page from the types in `record/parts.py`.

A figure (marked f) is `{"value": 1.5}`, or `{"value": null, "reason": "why"}`: what was not measured is null, never
zero. A spread has `p50`, `p90`, `p95`, `p99`, their number `n`, how many are `missing`, and a `reason` where there is
none. In Python they are `Figure(value, reason)` and `Spread`. What the figures mean, and how honest they are:
[measurements.md](measurements.md), [energy.md](energy.md). A test that does not pass leaves no entry in
pytest-benchmark's files, whatever failed in it; where the verdict does not pass or nothing was timed, the record has no
latency, no goodput and no speed-up. Beside the record, `specdec_seconds` says how long the whole gate took, loading
included; the plan of later runs adds these up.
"""


def page() -> str:
    """The whole page."""
    parts = "".join(_section(name, hint) for name, hint in hints(Record).items() if is_dataclass(_inside(hint)))
    whole = f"\n## Of the whole\n\n{_table(row for row in _rows(Record, '') if '.' not in row[0])}"
    return f"{HEAD}{whole}{parts}"


def _section(name: str, hint: Any) -> str:
    words = str(_inside(hint).__doc__)
    return f"\n## `{name}`\n\n{words}\n\n{_table(_rows(_inside(hint), f'{name}.'))}"


def _table(rows: Iterator[tuple[str, str, str]]) -> str:
    body = "".join(f"| `{key}` | {unit} | {meaning} |\n" for key, unit, meaning in rows)
    return f"| key | unit | meaning |\n|---|---|---|\n{body}"


def _rows(part: type[Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """A row for each field, those of its parts after it."""
    for name, hint in hints(part).items():
        inside = _inside(hint)
        nested = is_dataclass(inside) and inside is not Spread
        if not (nested and part is Record):
            _, *unit, meaning = get_args(hint)
            kind = "f: " if _inner(hint) is Figure else "spread: " if inside is Spread else ""
            yield f"{prefix}{name}{'[]' if _inner(hint) is tuple and nested else ''}", "".join(unit), kind + meaning
        if nested and part is not Record:
            yield from _rows(inside, f"{prefix}{name}{'[]' if _inner(hint) is tuple else ''}.")


def _inside(hint: Any) -> Any:
    """The part that a field holds, in a figure or in a list as well."""
    found = _plain(hint)
    while get_args(found) and _inner(found) in (Figure, tuple):
        found = _plain(get_args(found)[0])
    return _inner(found)


def _plain(hint: Any) -> Any:
    """A type without its unit and meaning, and without `| None`."""
    if get_origin(hint) in (Annotated, Union, UnionType):
        return _plain(get_args(hint)[0])
    return hint


def _inner(hint: Any) -> Any:
    """The class behind a type: Figure of Figure[float], tuple of tuple[int, ...]."""
    return get_origin(_plain(hint)) or _plain(hint)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
