"""A scenario file as TOML, and its mistakes as sentences: file, line, key, what is wrong, and what to write instead.

A message is put together from what each field's model says is expected and how it is written, so a new key brings its
own. No parser tells the line of a key: it is the first one up to which the file, closed where it breaks off, has it.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pytest_specdec.errors import ConfigurationError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Place = tuple[str | int, ...]
"""The keys and list indices that lead to a value: `("source", "prompts", 2)`."""

_MOST_TOLD = 20
_VARIANT_MISTAKES = ("union_tag_invalid", "union_tag_not_found")
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""(?!")|\Z)'
    r"|'''.*?(?:'''(?!')|\Z)"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[\]{}]",
    re.DOTALL,
)
_CLOSED_BY = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class TomlFile:
    """One file: its text and its values. `said_by`: for each key that took the place of the file's, who gave it."""

    path: Path
    text: str
    values: Mapping[str, Any]
    said_by: Mapping[str, str] = field(default_factory=dict)

    def lines(self, places: Iterable[Place]) -> dict[Place, int]:
        """The line of each place, counted from 1, or of the nearest table around it; 1 where it is in none."""
        lines, values = self.text.split("\n"), tomllib.loads(self.text)
        begin = cache(lambda line: _begin(lines[:line]))

        def line_of(part: Place) -> int:
            """Where the file begins to have it; the last line, where none before it does."""
            return 1 + bisect_left(range(1, len(lines)), True, key=lambda line: _part_of(part, begin(line)) == part)

        return {place: line_of(_part_of(place, values)) for place in places}

    def where(self, place: Place, line: int | None = None) -> str:
        """The file and the line of `place`, which `line` is if known, or who gave a key that is not the file's own."""
        given = self.said_by.get(str(place[0])) if place else None
        return f"{self.path} with {given}" if given else f"{self.path}:{line or self.lines([place])[place]}"


def _begin(lines: Sequence[str]) -> dict[str, Any]:
    """The values in the first lines of a valid document: what is open at their end is closed there."""
    text = "\n".join([*lines, ""])
    still_open = ""
    for token in _TOKEN.findall(text):
        if token in _CLOSED_BY:
            still_open = _CLOSED_BY[token] + still_open
        elif token in ("]", "}"):
            still_open = still_open[1:]
        elif token.endswith("\n"):  # a string goes on
            still_open = token[:3] + still_open
    return tomllib.loads(text + still_open)


def _part_of(place: Place, values: Any) -> Place:
    for end, part in enumerate(place):
        try:
            values = values[part]
        except (LookupError, TypeError):
            return place[:end]
    return place


def read_toml(path: Path) -> TomlFile:
    """Read and parse `path` (UTF-8, a byte order mark is allowed).

    Raises ConfigurationError where there is no such file, it cannot be read, is not UTF-8, or is not TOML.
    """
    text = _text(path)
    try:
        return TomlFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(_describe_error(path, text, str(error))) from None


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


Text = Annotated[str, Field(strict=True, min_length=1)]
Switch = Annotated[bool, Field(strict=True)]
Natural = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]


class Table(BaseModel):
    """A table of the file. It is immutable, and refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def key(expected: str, example: str, default: Any = ..., **more: Any) -> Any:
    """A field of a model: what is expected, and how it is written; without a default it must be given."""
    return Field(default, description=expected, examples=[example], **more)


class Mistake(ConfigurationError, ValueError):
    """What a validator raises to say its own sentence; file, line and key are put before it.

    `key`: the key of the source that is at fault, where it is not the validated field itself.
    """

    def __init__(self, sentence: str, key: str = "") -> None:
        super().__init__(sentence)
        self.key = key


def refuse_by(**checks: Callable[[Any, ValidationInfo], Iterator[str]]) -> Any:
    """A validator of a model. Each check, by its key, says what is wrong with a value beside the keys above it."""

    def check(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
        for sentence in checks[str(info.field_name)](value, info):
            raise Mistake(sentence)
        return value

    return field_validator(*checks)(classmethod(check))


def all_mistakes(error: ValidationError, model: type[BaseModel], file: TomlFile) -> ConfigurationError:
    """One error with a line for each mistake that pydantic found, in the order of the file."""
    found = set(_mistakes(error, model))
    first = list(_cut_lists(found))
    lines = file.lines(place for place, _ in first)
    told = sorted(first, key=lambda each: (lines[each[0]], each[1]))[:_MOST_TOLD]
    sentences = [f"{file.where(place, lines[place])}: {sentence}" for place, sentence in told]
    if len(found) > _MOST_TOLD:
        sentences.append(f"{file.path}: and {len(found) - _MOST_TOLD} more mistakes")
    return ConfigurationError("\n".join(sentences))


def _cut_lists(found: Iterable[tuple[Place, str]]) -> Iterator[tuple[Place, str]]:
    """Of each list no more mistakes than are told: its items stand in their order, and finding lines takes time."""
    lists: dict[Place, list[tuple[Place, str]]] = {}
    for place, sentence in found:
        depth = next((depth for depth, part in enumerate(place) if isinstance(part, int)), len(place))
        lists.setdefault(place[:depth], []).append((place, sentence))
    for whole, items in lists.items():
        yield from sorted(items, key=lambda each: each[0][len(whole) : len(whole) + 1])[:_MOST_TOLD]


def _mistakes(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Place, str]]:
    """Place and sentence of each; a list that is too short only for want of its faulty items is not told twice."""
    found = [(_Spot(mistake, model), mistake) for mistake in error.errors()]
    inner = {spot.place[:depth] for spot, _ in found for depth in range(len(spot.place))}
    for spot, mistake in found:
        if not (mistake["type"] == "too_short" and spot.place in inner):
            chosen_by = spot.field.discriminator if spot.field and mistake["type"] in _VARIANT_MISTAKES else None
            yield (*spot.place, *([str(chosen_by)] if chosen_by else ())), _sentence(spot, mistake)


def _sentence(spot: _Spot, mistake: ErrorDetails) -> str:
    kind, value = mistake["type"], mistake["input"]
    if kind == "value_error":
        return f"{spot.name}: {mistake['ctx']['error']}"
    if kind == "extra_forbidden":
        return _unknown_key(spot)
    if kind == "missing" and not spot.wants_item:
        return f"{spot.name} is missing: add for example {spot.example}"
    if kind in _VARIANT_MISTAKES:
        return _unknown_variant(spot, value)
    items = [f"item {part + 1}" for part in reversed(spot.place) if isinstance(part, int)]
    where = " as " + " of ".join(items) if items else ""
    expected = spot.field.description if spot.field else "a known key"
    return f"{spot.name}: expected {expected}, found {_format(value)}{where}: write for example {spot.example}"


class _Spot:
    """Where in the file and in the model a mistake is: `owner` has the key, `field` tells of it if it is known.

    `wants_item`: a list of fixed length is too short, and at fault; not the item that is not there.
    """

    def __init__(self, mistake: ErrorDetails, model: type[BaseModel]) -> None:
        """`model`: that of the whole file."""
        self.top = self.owner = model
        self.field: FieldInfo | None = None
        self.wants_item = mistake["type"] == "missing" and isinstance(mistake["loc"][-1], int)
        place = [part for part in mistake["loc"][: -1 if self.wants_item else None] if self._enter(part)]
        source_key = getattr(mistake.get("ctx", {}).get("error"), "key", "")
        self.place: Place = ("source", source_key) if source_key else tuple(place)
        self.name = ".".join(part for part in self.place if isinstance(part, str))

    @property
    def example(self) -> str:
        return str(self.field.examples[0]) if self.field and self.field.examples else ""

    def _enter(self, part: str | int) -> bool:
        """One part of pydantic's location further; whether it stands in the file."""
        variants = _variants(self.field)
        if part == "[key]":  # the key itself is wrong, not its value
            return False
        if part in variants:  # it chooses a model
            self.owner, self.field = variants[str(part)], None
            return False
        if isinstance(part, str):
            annotation = self.field.annotation if self.field else None
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                self.owner = annotation
            self.field = self.owner.model_fields.get(part)
        return True


def _variants(field: FieldInfo | None) -> dict[str, type[BaseModel]]:
    if field is None or not isinstance(field.discriminator, str):
        return {}
    key, models = field.discriminator, get_args(field.annotation)
    return {word: each for each in models for word in get_args(each.model_fields[key].annotation)}


def _unknown_key(spot: _Spot) -> str:
    key, known = str(spot.place[-1]), list(spot.owner.model_fields)
    advice = f"{did_you_mean(key, known)} ".lstrip()
    if spot.owner is not spot.top and key in spot.top.model_fields:
        advice = f"{key!r} belongs at the top level, above every [table]; "
    return f"unknown key {spot.name!r}: {advice}the keys of {_table(spot)} are {', '.join(known)}"


def _table(spot: _Spot) -> str:
    if spot.owner is spot.top:
        return "a scenario"
    name = str(spot.place[0])
    field = spot.top.model_fields[name]
    words = [word for word, model in _variants(field).items() if model is spot.owner]
    return f"{name} with {field.discriminator} = {' or '.join(map(_format, words))}" if words else name


def _unknown_variant(spot: _Spot, value: Any) -> str:
    key, words = str(spot.field.discriminator) if spot.field else "", list(_variants(spot.field))
    found = value.get(key) if isinstance(value, Mapping) else None
    told = ["is missing:"] if found is None else [f"{_format(found)} is unknown:", did_you_mean(str(found), words)]
    problem, choice = " ".join(filter(None, told)), ", ".join(map(_format, words))
    return f"{spot.name}.{key} {problem} it is one of {choice}, for example {spot.example}"


def _format(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
