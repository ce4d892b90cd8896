"""docs/reference.md, written from the code: options, marks, fixtures, the hook, and the keys of a scenario.

`python tests/unit/pages/reference.py` writes it; a test fails where it is stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pytest_specdec import fixtures, hookspecs
from pytest_specdec.engines.choice import EXPECTED, MARK_KEYS
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.plugin import MARKS
from pytest_specdec.settings import BY_NAME, OPTIONS, Option
from pytest_specdec.workloads.load import Load, Objectives
from pytest_specdec.workloads.scenario import Detects, Scenario, Source

PAGE = Path(__file__).parents[3] / "docs" / "reference.md"
FIXTURES = ("specdec", *fixtures.ENGINE_FIXTURES, "scenario", "specdec_session")
TABLES: Sequence[tuple[str, Sequence[type[BaseModel]]]] = [
    ("", [Scenario]),
    ("source.", get_args(Source)),
    ("load.", get_args(Load)),
    ("detects.", [Detects]),
    ("slo.", [Objectives]),
]
FROM_ITS_FILE = "the file's name without `.toml`"


def page() -> str:
    """The whole page."""
    return f"""# Reference

`tests/unit/pages/reference.py` writes this page from the code. The keys of a record are in [record.md](record.md).

## Options

The command line goes before the environment, that before pytest's ini file. `pytest --help` lists the same. Where an
option may be repeated, the other places have a list by commas.

{_table(("option, variable, ini key", "default", "meaning"), map(_option, OPTIONS))}
## Marks

{_table(("mark", "meaning"), (line.split(": ", 1) for line in MARKS))}
What the keys of `specdec` leave open comes from the options.

{_table(("key", "expected", "meaning"), map(_mark_key, MARK_KEYS))}
## Fixtures

{_table(("fixture", "what it is"), ((name, str(getattr(fixtures, name).__doc__)) for name in FIXTURES))}
## Hook

```python
def pytest_specdec_start_engine(spec, settings, doing): ...
```

{_unwrapped(hookspecs.pytest_specdec_start_engine)}

## Scenarios

The keys of a scenario as error messages have them; what they mean is in [scenarios.md](scenarios.md).

{_table(("key", "where", "expected", "default", "example"), _keys())}"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first cell of each row is code, and so are names in the others."""
    cells = [[cell.replace("|", r"\|") for cell in (f"`{first}`", *more)] for first, *more in rows]
    top = f"| {' | '.join(head)} |\n{'|---' * len(head)}|\n"
    return top + "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _option(option: Option) -> tuple[str, ...]:
    given = option.flag if option.switch else f"{option.flag} {option.metavar}"
    default = "" if option.switch else _written(option.default)
    return "`<br>`".join((given, option.variable, option.ini)), default, option.help


def _mark_key(key: str) -> tuple[str, str, str]:
    """A key that is an option too has its words, the others have those of the engine's specification."""
    told = re.search(rf"`{key}`: (.*?)\.(?= `\w+`: |$)", _unwrapped(EngineSpec))
    return key, EXPECTED.get(key, ("",))[0], BY_NAME[key].help if key in BY_NAME else str(told and told[1])


def _unwrapped(thing: Any) -> str:
    """A docstring, each paragraph on a line."""
    return "\n\n".join(" ".join(each.split()) for each in str(thing.__doc__).split("\n\n")).strip()


def _keys() -> Iterator[tuple[str, ...]]:
    """A row for each key; keys that are alike in several tables have one."""
    for prefix, models in TABLES:
        rows: dict[tuple[str, ...], list[str]] = {}
        for model in models:
            for name, field in model.model_fields.items():
                rows.setdefault((prefix + name, *_describe(name, field)), []).extend(_words(model))
        names = [key for key, *_ in rows]
        for row in sorted(rows, key=lambda each: names.index(each[0])):
            yield row[0], ", ".join(rows[row]), *row[1:]


def _words(model: type[BaseModel]) -> tuple[str, ...]:
    """The words of `source.format` or `load.kind` that choose the table."""
    choosing = model.model_fields.get("format") or model.model_fields.get("kind")
    return get_args(choosing.annotation) if choosing else ()


def _describe(name: str, field: FieldInfo) -> tuple[str, str, str]:
    """What is expected, the default, an example."""
    default = "needed" if field.is_required() else _written(field.default)
    example = f"`{field.examples[0]}`" if field.examples else ""
    return field.description or "", FROM_ITS_FILE if name == "name" else default, example


def _written(default: Any) -> str:
    """A default as one would write it; empty where there is none."""
    if isinstance(default, BaseModel):
        default = default.model_dump(exclude_none=True)
    if isinstance(default, dict):
        return "".join(f"`{{ {key} = {json.dumps(value)} }}`" for key, value in default.items())
    told = ",".join(map(str, default)) if isinstance(default, tuple) else "" if default is None else str(default)
    return f"`{told.lower() if isinstance(default, bool) else told}`" if told else ""


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
