"""A TOML file as read from disk: its values, the line of each, and errors that name both.

The line of a key is found by reading the text once more, since no parser tells it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_specdec.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Place = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?!")'
    r"|'''.*?'''(?!')"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


def places(text: str) -> dict[Place, int]:
    """Map the path of every key, table and list item of the valid TOML document `text` to its line, counted from 1.

    A path is the tuple of keys and list indices that leads to the value: `("source", "prompts", 2)`. A table that is
    written in several pieces has the line of the first.
    """
    reader = _Reader(text)
    reader.document()
    return reader.found


class _Reader:
    """A cursor over the text, the lines found so far, and how many tables each `[[array]]` has."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Place, int] = {}
        self._last_index: dict[Place, int] = {}

    def document(self) -> None:
        table: Place = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self._next_is("["):
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self) -> Place:
        brackets = 2 if self.text.startswith("[[", self.at) else 1
        self.at += brackets
        self._skip(_SPACE)
        *parents, last = self._keys()
        self.at += brackets
        table = self._descend(parents)
        return self._new_item((*table, last)) if brackets == 2 else self._enter(table, last)

    def _descend(self, keys: list[str]) -> Place:
        table: Place = ()
        for key in keys:
            table = self._enter(table, key)
        return table

    def _enter(self, table: Place, key: str) -> Place:
        """The table under `key`, or the newest of them where `key` is an array of tables."""
        inner = (*table, key)
        self._note(inner)
        return (*inner, self._last_index[inner]) if inner in self._last_index else inner

    def _new_item(self, array: Place) -> Place:
        self._last_index[array] = self._last_index.get(array, -1) + 1
        item = (*array, self._last_index[array])
        self._note(array)
        self._note(item)
        return item

    def _pair(self, table: Place) -> None:
        *parents, last = self._keys()
        for key in parents:
            table = (*table, key)
            self._note(table)
        self.at += len("=")
        self._skip(_SPACE)
        self._value((*table, last))

    def _value(self, place: Place) -> None:
        self._note(place)
        if self._next_is("["):
            self._list(place)
        elif self._next_is("{"):
            self._inline_table(place)
        elif not self._skip(_STRING):
            self._skip(_SCALAR)

    def _list(self, place: Place) -> None:
        index = 0
        while not self._closes("]"):
            self._value((*place, index))
            index += 1

    def _inline_table(self, place: Place) -> None:
        while not self._closes("}"):
            self._pair(place)

    def _closes(self, bracket: str) -> bool:
        """Step over the opening bracket or a comma, and over the closing bracket if it follows."""
        self._skip(_BLANK)
        if self._next_is("[{,"):
            self.at += 1
            self._skip(_BLANK)
        closed = self._next_is(bracket)
        self.at += closed
        return closed

    def _keys(self) -> list[str]:
        keys = [self._key()]
        while self._next_is("."):
            self.at += 1
            self._skip(_SPACE)
            keys.append(self._key())
        return keys

    def _key(self) -> str:
        start = self.at
        if self._skip(_BARE_KEY):
            key = self.text[start : self.at]
        else:
            self._skip(_STRING)
            key = tomllib.loads("key = " + self.text[start : self.at])["key"]
        self._skip(_SPACE)
        return str(key)

    def _note(self, place: Place) -> None:
        self.found.setdefault(place, self.text.count("\n", 0, self.at) + 1)

    def _next_is(self, characters: str) -> bool:
        return self.at < len(self.text) and self.text[self.at] in characters

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match is not None


@dataclass(frozen=True)
class TomlFile:
    """The values of one file, and the line (from 1) on which each stands.

    `said_by`: for each top-level key that took the place of the file's, who gave it.
    """

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[Place, int]
    said_by: Mapping[str, str] = field(default_factory=dict)

    def line(self, place: Place) -> int:
        """The line of `place`, or of the nearest table around it; 1 where it is in none."""
        if not place:
            return 1
        return self.lines[place] if place in self.lines else self.line(place[:-1])

    def where(self, place: Place) -> str:
        """The file and the line of `place`, or the file and who gave a key that is not its own."""
        given = self.said_by.get(str(place[0])) if place else None
        return f"{self.path} with {given}" if given else f"{self.path}:{self.line(place)}"

    def overridden(self, keys: Mapping[str, Any], said_by: Mapping[str, str]) -> TomlFile:
        """The same file where `keys` take the place of its own top-level keys."""
        return replace(self, values={**self.values, **keys}, said_by=said_by)


def read_toml(path: Path) -> TomlFile:
    """Read and parse `path` (UTF-8, a byte order mark is allowed).

    Raises ConfigurationError where there is no such file, it cannot be read, is not UTF-8, or is not TOML.
    """
    text = _text(path)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(_describe_error(path, text, str(error))) from None
    return TomlFile(path, values, places(text))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file: check the path to the scenario") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 at byte {error.start}: save the file as UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}): name a readable .toml file") from None


def _describe_error(path: Path, text: str, reason: str) -> str:
    found = re.search(r" ?\(at line (\d+), column (\d+)\)", reason)
    line, column = found.groups() if found else (len(text.splitlines()) or 1, 1)
    what = reason.partition(" (at ")[0]
    return f"{path}:{line}:{column}: not valid TOML: {what}: text stands in quotes, one key = value a line"
