"""The line of every key, whatever the layout, and whatever stands in strings and comments around it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.workloads.mistakes import Place, TomlFile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DECOYS = "key = 1\n[key]\n# key = 2\nsource.key = [\n}\n"


def paths(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every path into parsed values."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*place, key)
        yield from paths(inner, (*place, key))


def find_lines(text: str) -> dict[Place, int]:
    """The line of every key, table and list item."""
    file = TomlFile(Path("x.toml"), text, tomllib.loads(text))
    return file.lines(paths(file.values))


@pytest.mark.parametrize(
    "before",
    [
        "# key = 1\n# [key]\n",
        f'text = """\n{DECOYS}"""\n',
        f"text = '''\n{DECOYS}'''\n",
        'text = """key = 1 \\""" \nkey = 2"""\n',
        'text = """\nkey = 1""""\n',
        'text = """\nkey = 1"""""\n',
        "text = '''\nkey = 1'''''\n",
        'text = "key = 1 \\" # key = 2"\n\n',
        "text = 'key = 1 \\'\n\n",
        'empty = ""\nalso = """"""\n',
        "list = [ # key = 1\n  'key', [\n 'key'], ]\n",
        "list = [1 # , ] key = 1\n, 2]\n",
        "inner = { key = 1, deep = { key = '}' } }\n",
        '"a key" = 1\na.key = 2\n',
        "when = 1979-05-27 07:32:00 # key = 1\n",
        "text = 1\r\n# key\r\n",
    ],
)
def test_the_key_after_a_decoy_has_its_own_line(before: str) -> None:
    """The text `key =` in strings, comments, lists and inner tables before it moves nothing."""
    assert find_lines(before + "key = 3\nlast = 4")[("key",)] == before.count("\n") + 1


def test_keys_in_tables_inline_tables_and_arrays_of_tables() -> None:
    """Each kind of table, and the lists in them, down to the items."""
    text = """\
title = "x"
[source]
format = "text"
prompts = [
  "one",
  [1,
   2],
]
[source.deep]
a.b = { c = 1, "d e" = { f = 2 } }
[[row]]
x = 1
[[row]]
x = 2
[row.inner]
y = 3
"""
    assert find_lines(text) == {
        ("title",): 1,
        ("source",): 2,
        ("source", "format"): 3,
        ("source", "prompts"): 4,
        ("source", "prompts", 0): 5,
        ("source", "prompts", 1): 6,
        ("source", "prompts", 1, 0): 6,
        ("source", "prompts", 1, 1): 7,
        ("source", "deep"): 9,
        ("source", "deep", "a"): 10,
        ("source", "deep", "a", "b"): 10,
        ("source", "deep", "a", "b", "c"): 10,
        ("source", "deep", "a", "b", "d e"): 10,
        ("source", "deep", "a", "b", "d e", "f"): 10,
        ("row",): 11,
        ("row", 0): 11,
        ("row", 0, "x"): 12,
        ("row", 1): 13,
        ("row", 1, "x"): 14,
        ("row", 1, "inner"): 15,
        ("row", 1, "inner", "y"): 16,
    }


keys = st.sampled_from(["key", "source", "a-b", "1", "a b", 'quo"te', "dot.ted", "é", ""])
layout = st.sampled_from(["", "\n", "# key = 1\n", "\n# [source]\n\n", "  # a = { key = '''\n"])
plain_texts = st.sampled_from(
    ["", "key = 1", "# key", "[source]", "a,b]}", "line\nkey = 2\n", 'quote " quote', "it's", '"""']
)
scalars = st.integers() | st.booleans() | plain_texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)


class Writer:
    """Writes a document in a random layout, and remembers on which line it put each key."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.text = ""
        self.lines: dict[Place, int] = {}

    def note(self, place: Place) -> None:
        self.lines.setdefault(place, self.text.count("\n") + 1)

    def key(self, key: str) -> None:
        bare = key.replace("-", "").isascii() and key.replace("-", "").isalnum()
        self.text += key if bare and self.draw(st.booleans()) else json.dumps(key, ensure_ascii=False)

    def pair(self, place: Place, value: Any) -> None:
        self.note(place)
        self.key(str(place[-1]))
        self.text += self.draw(st.sampled_from(["=", " = ", "\t="]))
        self.value(place, value)

    def value(self, place: Place, value: Any) -> None:
        self.note(place)
        if isinstance(value, list):
            self.list(place, value)
        elif isinstance(value, dict):
            self.inline_table(place, value)
        elif isinstance(value, str):
            self.string(value)
        else:
            self.text += json.dumps(value)

    def string(self, value: str) -> None:
        quoted = json.dumps(value, ensure_ascii=False)
        styles = [quoted, '"""\n' + value.replace("\\", "\\\\").replace('"', '\\"') + '"""']
        if "'" not in value:
            styles.append("'''\n" + value + "'''")
        self.text += self.draw(st.sampled_from(styles))

    def list(self, place: Place, items: list[Any]) -> None:
        self.text += "["
        for index, item in enumerate(items):
            self.text += self.draw(layout)
            self.value((*place, index), item)
            self.text += self.draw(layout) + ","
        self.text += self.draw(layout) + "]"

    def inline_table(self, place: Place, table: dict[str, Any]) -> None:
        self.text += "{ "
        for number, (key, value) in enumerate(table.items()):
            self.text += ", " if number else ""
            self.pair((*place, key), value)
        self.text += " }"

    def table(self, place: Place, table: dict[str, Any]) -> None:
        for key, value in table.items():
            self.text += self.draw(layout)
            self.pair((*place, key), value)
            self.text += self.draw(st.sampled_from(["\n", "  # key = 1\n", "\r\n"]))

    def header(self, place: Place, brackets: int) -> None:
        self.text += self.draw(layout) + "[" * brackets
        self.note(tuple(part for part in place if isinstance(part, str)))
        self.note(place)
        self.key(str(place[0]))
        self.text += "]" * brackets + "\n"


tables = st.dictionaries(keys, values, max_size=4)


@st.composite
def documents(draw: Any) -> Writer:
    """Top-level pairs, then tables and arrays of tables with other names."""
    writer = Writer(draw)
    writer.table((), draw(tables))
    for index in range(draw(st.integers(0, 2))):
        writer.header((f"table{index}",), 1)
        writer.table((f"table{index}",), draw(tables))
    for index in range(draw(st.integers(0, 3))):
        writer.header(("rows", index), 2)
        writer.table(("rows", index), draw(tables))
    writer.text += draw(layout)
    return writer


@given(documents())
def test_every_parsed_key_has_the_line_on_which_it_was_written(document: Writer) -> None:
    """Each has the writer's own line."""
    assert find_lines(document.text) == document.lines
