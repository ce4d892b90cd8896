"""On which line each key of a TOML document stands, so that an error can point at it.

The standard library's parser gives values without positions. This reader walks a document that the parser has already
accepted, so it need not judge it: it steps over strings and comments whole, and notes the line of every key, table and
list item. Text inside a string or a comment is never taken for a key.
"""

from __future__ import annotations

import re
import sys

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
