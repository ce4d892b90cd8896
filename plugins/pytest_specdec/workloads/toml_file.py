"""A TOML file as read from disk: its values, the line of each, and errors that name both."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.toml_places import Place, places

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


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
