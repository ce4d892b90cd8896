"""Rows of data files: read one by one, each with its place; what a row asks for, and which rows are asked.

Text files are read line by line, and drawing holds no more than it draws, so that a trace of millions of rows costs
little memory. Every value knows where it comes from, so that each message can point at the row.
"""

from __future__ import annotations

import csv
import heapq
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal

from pytest_specdec.workloads.mistakes import Mistake

SURROGATE = re.compile("[\ud800-\udfff]")
UNSENT = ("tool_calls", "tool_call_id", "function_call", "tools", "functions", "response_format")
"""What changes an answer and is not passed on: a row that has one of them asks for something else."""

Message = tuple[str, str]
"""A role (system, user, assistant, or another that the chat template knows) and what it says."""


@dataclass(frozen=True)
class Row:
    """The values of one row by column. `at`: its place in the file, ":17" for a line, " row 17" without lines."""

    at: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Wrong:
    """A row that gives nothing to ask: its place, why, and the remedy."""

    at: str
    why: str


class Malformed(Exception):
    """Raised while a row is read; the message says why it gives nothing to ask, and the remedy."""


@dataclass(frozen=True)
class Item:
    """What one row asks for: a conversation to encode, or a length in tokens to be made up.

    `messages`: the conversation; `templated`: by the chat template, or else its bare text. `left_out`: turns of the
    file that are not part of it, since they stand before the first user turn. `length`: tokens to be made up, 0 for a
    conversation; `blocks`: names of the pieces it is made from, the same name for the same ids. `output_tokens`: how
    long the answer was. `time`: when the request came, in the trace's own unit. `unused`: columns that nobody read.
    `category`: what kind of question the file says it is.
    """

    at: str
    messages: tuple[Message, ...] = ()
    templated: bool = False
    left_out: int = 0
    length: int = 0
    blocks: tuple[int, ...] = ()
    output_tokens: int | None = None
    time: float | None = None
    unused: tuple[str, ...] = ()
    category: str | None = None


def read_each(rows: Iterator[Row | Wrong], read: Callable[[Row], Item]) -> Iterator[Item | Wrong]:
    """Each row as what it asks for, or as what is wrong with it."""
    for row in rows:
        try:
            yield row if isinstance(row, Wrong) else read(row)
        except Malformed as error:
            yield Wrong(row.at, str(error))


def cell(row: Row, column: str, remedy: str) -> Any:
    """The value in `column`. Raises Malformed with the columns that the row has, and the remedy."""
    if column not in row.values:
        known = ", ".join(map(repr, row.values)) or "none"
        raise Malformed(f"no column {column!r}: its columns are {known}; {remedy}")
    return row.values[column]


def text_of(value: Any, name: str) -> str:
    """A text of one character or more. Raises Malformed."""
    if not isinstance(value, str) or not value:
        raise Malformed(f"{name} is not a text of one character or more: give it one")
    if strange := SURROGATE.search(value):
        raise Malformed(f"{name} has half a character at {strange.start()} (a lone surrogate): write it whole")
    return value


def said(value: Any, name: str) -> str:
    """What a message says: a text, or OpenAI's list of parts, its texts joined. Raises Malformed for another part."""
    if not isinstance(value, list):
        return text_of(value, name)
    kinds = [part.get("type") if isinstance(part, Mapping) else None for part in value]
    if others := sorted({repr(kind) for kind in kinds if kind != "text"}):
        raise Malformed(f"{name} has parts of type {', '.join(others)}, which are not sent: only text is")
    return text_of("".join(text_of(part.get("text"), f"a part of {name}") for part in value), name)


def unused(row: Row, *used: str) -> tuple[str, ...]:
    """The columns but those that are used. Raises Malformed for one that changes an answer and is not passed on."""
    if unsent := [column for column in UNSENT if row.values.get(column)]:
        raise Malformed(f"column {unsent[0]!r} is not sent: leave such rows out, or remove it")
    return tuple(column for column in row.values if column not in used)


def positive(row: Row, column: str, remedy: str) -> int:
    """A whole number of 1 or more, as a number or, in a CSV file, as digits. Raises Malformed."""
    value = cell(row, column, remedy)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if type(value) is not int or value < 1:
        raise Malformed(f"column {column!r} is {value!r}, not a whole number of 1 or more")
    return value


Turns = Literal["first", "joined", "conversation"]


def select_turns(turns: Sequence[Message], policy: Turns) -> tuple[tuple[Message, ...], int]:
    """The messages to be sent, and how many turns were left out. Raises Malformed without a user turn."""
    users = [place for place, (role, _) in enumerate(turns) if role == "user"]
    if not users:
        roles = ", ".join(repr(role) for role, _ in turns) or "none"
        raise Malformed(f"no user turn: its roles are {roles}; name a row that asks something")
    before = turns[: users[0]]
    system = tuple(turn for turn in before if turn[0] == "system")
    if policy == "first":
        asked: tuple[Message, ...] = (turns[users[0]],)
    elif policy == "joined":
        asked = (("user", "\n\n".join(turns[place][1] for place in users)),)
    elif any(later == earlier + 1 for earlier, later in pairwise(users)):
        raise Malformed('two user turns and no answer between them: write turns = "first" or "joined"')
    else:
        asked = tuple(turns[users[0] : users[-1] + 1])
    return system + asked, len(before) - len(system)


def turns_of(
    value: Any, name: str, role_key: str, text_key: str, roles: Mapping[str, str] | None = None
) -> list[Message]:
    """A list of objects as turns. `roles`: the file's words for roles, where it has words of its own.

    Raises Malformed for what is no such list, an unknown role and an empty text.
    """
    if not isinstance(value, list) or not value:
        raise Malformed(
            f"{name} is not a list of one turn or more: each is an object with {role_key!r} and {text_key!r}"
        )
    return [_turn(turn, f"turn {number} of {name}", role_key, text_key, roles) for number, turn in enumerate(value, 1)]


def _turn(turn: Any, name: str, role_key: str, text_key: str, roles: Mapping[str, str] | None) -> Message:
    if not isinstance(turn, Mapping) or role_key not in turn:
        raise Malformed(f"{name} is not an object with {role_key!r} and {text_key!r}")
    role = text_of(turn[role_key], f"{role_key!r} of {name}")
    if roles is not None and role not in roles:
        raise Malformed(f"{name} has the unknown role {role!r}: known are {', '.join(map(repr, roles))}")
    if unsent := [key for key in UNSENT if turn.get(key)]:
        raise Malformed(f"{name} has {unsent[0]!r}, which is not sent: leave such conversations out")
    return (roles[role] if roles else role), said(turn.get(text_key), f"{text_key!r} of {name}")


_MOST_TOLD = 5


@dataclass(frozen=True)
class Chosen:
    """The items in the order in which they are asked, how many rows were skipped, and the first of those."""

    items: tuple[Item, ...] = ()
    skipped: int = 0
    first_skipped: Wrong | None = None

    @property
    def categories(self) -> tuple[str | None, ...]:
        """That of each item; empty where none has one."""
        named = tuple(item.category for item in self.items)
        return named if any(named) else ()

    def notes(self, name: str) -> Iterator[str]:
        """What the reader of a record should know of how these rows of `name` were read, in sentences."""
        if self.first_skipped is not None:
            first = f"{name}{self.first_skipped.at}: {self.first_skipped.why}"
            yield f"malformed rows skipped: {self.skipped}, the first {first}"
        if left_out := sum(item.left_out for item in self.items):
            yield f"turns before the first user turn left out: {left_out}"
        if columns := sorted({column for item in self.items for column in item.unused}):
            yield f"columns that were not used: {', '.join(columns)}"
        if delayed := sum(item.length > 0 and item.time is None for item in self.items):
            told = f"requests of sessions that were due a delay after the one before: {delayed}"
            yield f"{told}; they are sent as the load says"


def choose(found: Iterable[Item | Wrong], name: str, count: int | None, seed: int | None, skip: bool) -> Chosen:
    """Choose among what is found in `name`. Raises Mistake that names wrong rows, unless `skip`.

    `count`: how many, None for all. `seed`: draws them, None for the order of the file. Drawn are the items with the
    smallest random keys, smallest first: so a larger count begins with a smaller one.
    """
    wrong: list[Wrong] = []
    good = _pass_over(iter(found), wrong, name, skip)
    if seed is None:
        items = tuple(islice(good, count))
    else:
        dice = random.Random(seed)
        keyed = ((dice.random(), number, item) for number, item in enumerate(good))
        ordered = sorted(keyed) if count is None else heapq.nsmallest(count, keyed)
        items = tuple(item for _, _, item in ordered)
    return Chosen(items, len(wrong), wrong[0] if wrong else None)


def _pass_over(found: Iterator[Item | Wrong], wrong: list[Wrong], name: str, skip: bool) -> Iterator[Item]:
    for each in found:
        if isinstance(each, Item):
            yield each
            continue
        wrong.append(each)
        if not skip:
            wrong += islice((other for other in found if isinstance(other, Wrong)), _MOST_TOLD)
            raise Mistake(_describe(wrong, name))


def _describe(wrong: list[Wrong], name: str) -> str:
    places: dict[str, list[str]] = {}
    for each in wrong[:_MOST_TOLD]:
        places.setdefault(each.why, []).append(each.at)
    told = [f"{name}{','.join(where)}: {why}" for why, where in places.items()]
    more = ["and more of them"] if len(wrong) > _MOST_TOLD else []
    return "; ".join([*told, *more, "correct such rows, or leave them out with skip_malformed = true"])


POINTER = b"version https://git-lfs.github.com/spec/v1"


def readable(path: Path) -> None:
    """Raise Mistake unless the file can be opened and holds data."""
    try:
        with path.open("rb") as file:
            start = file.read(len(POINTER))
    except FileNotFoundError:
        raise Mistake(f"no such file {path}: the path is relative to the folder of the scenario file") from None
    except OSError as error:
        raise Mistake(f"{path} cannot be read ({error.strerror}): name a readable file") from None
    if start == POINTER:
        raise Mistake(f"{path} is an LFS pointer, not data: git lfs pull")


def lines(path: Path) -> Iterator[str]:
    """Each line with its end; a byte order mark is left out. Raises Mistake where it is not UTF-8."""
    readable(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise Mistake(
                    f"{path}:{number} is not UTF-8 at byte {error.start} of the line: save the file as UTF-8"
                ) from None


def csv_rows(path: Path) -> Iterator[Row | Wrong]:
    """Each row at the line on which it begins; CRLF and a missing last line end are fine.

    Raises Mistake where column names are missing or double, and where a cell is longer than Python's csv
    allows.
    """
    numbered = _cells(path)
    _, names = next(numbered, (1, []))
    if not names or len(set(names)) < len(names):
        raise Mistake(f"{path}:1 does not name each column once: write a line of column names")
    for number, cells in numbered:
        if len(cells) == len(names):
            yield Row(f":{number}", dict(zip(names, cells, strict=True)))
        else:
            yield Wrong(
                f":{number}", f"{len(cells)} cells under {len(names)} column names: put texts with commas in quotes"
            )


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader, number = csv.reader(lines(path), strict=True), 1
    try:
        for cells in reader:
            if cells:
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise Mistake(f"{path}:{number} is not CSV ({error}): correct it, or write JSONL") from None


_BEGIN = re.compile(r"\s*\[\s*")
_BETWEEN = re.compile(r"\s*(?:,\s*|(?=\]))")


def json_lines(path: Path) -> Iterator[Row | Wrong]:
    """The object on each line; blank lines are passed over."""
    written = ((f":{number}", line) for number, line in enumerate(lines(path), start=1) if line.strip())
    for at, line in written:
        try:
            yield _row(at, json.loads(line))
        except json.JSONDecodeError as error:
            yield Wrong(at, f"not JSON ({error.msg}): write one object a line")


def _row(at: str, value: Any) -> Row | Wrong:
    return Row(at, value) if isinstance(value, dict) else Wrong(at, "not an object: write its values under names")


def json_list(path: Path) -> Iterator[Row | Wrong]:
    """The objects of the list that the file holds, each parsed when it is reached.

    Raises Mistake where the file is no list.
    """
    text = "".join(lines(path))
    begin = _BEGIN.match(text)
    if begin is None:
        yield from _sessions(path, text)
        return
    at, line = begin.end(), 1 + text.count("\n", 0, begin.end())
    while not text.startswith("]", at):
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
            yield _row(f":{line}", value)
            if (between := _BETWEEN.match(text, end)) is None:
                raise json.JSONDecodeError("Expecting ',' or ']'", text, end)
        except json.JSONDecodeError as error:
            raise Mistake(f"{path}:{error.lineno} is not JSON ({error.msg}): correct the file") from None
        line += text.count("\n", at, between.end())
        at = between.end()
    if rest := text[at + 1 :].lstrip():
        line = 1 + text.count("\n", 0, len(text) - len(rest))
        raise Mistake(f"{path}:{line} is not JSON (Extra data): correct the file")


def _sessions(path: Path, text: str) -> list[Row | Wrong]:
    """The payloads of AIPerf's inputs.json, session by session. Raises Mistake where the file is none."""
    try:
        return [
            _row(f" session {session['session_id']} payload {number}", payload)
            for session in json.loads(text)["data"]
            for number, payload in enumerate(session["payloads"], 1)
        ]
    except (json.JSONDecodeError, KeyError, TypeError):
        told = f'{path} is not a list of objects: for one object a line write format = "jsonl"'
        raise Mistake(told) from None


INSTALL = "pip install 'pytest-specdec[datasets]'"
_BATCH = 256


def parquet_rows(path: Path) -> Iterator[Row | Wrong]:
    """Each row, counted from 1. Raises Mistake without pyarrow, or where the file is not Parquet."""
    readable(path)
    try:
        from pyarrow import parquet
    except ImportError:
        raise Mistake(f"{path} needs pyarrow, which is not installed: {INSTALL}") from None
    try:
        with parquet.ParquetFile(path) as file:
            batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=_BATCH))
            for number, values in enumerate(chain.from_iterable(batches), start=1):
                yield Row(f" row {number}", values)
    except (ValueError, OSError) as error:
        why = str(error).strip().splitlines()[0]
        raise Mistake(f"{path} is not Parquet ({why}): name a .parquet file") from None


def hub_rows(name: str, config: str | None, split: str, revision: str | None) -> Iterator[Row | Wrong]:
    """Each row of the split, counted from 1.

    Raises Mistake without the library, without a network, and for a name, config or split that is none.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise Mistake(f"{name} needs the library datasets, which is not installed: {INSTALL}") from None
    try:
        rows = load_dataset(name, config, split=split, revision=revision, streaming=True)
        for number, values in enumerate(rows, start=1):
            yield Row(f" row {number}", values)
    except (OSError, ValueError, RuntimeError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Mistake(
            f"{name} cannot be read ({type(error).__name__}: {why}): check name, config, split and network, or fetch it"
            ' once and write format = "parquet" or "jsonl"'
        ) from None
