"""A row of a data file: what it asks for, which rows are asked, and what is said of one that asks for nothing.

Every value knows where it comes from, so that each failure, note and preflight message can point at the row. Rows are
taken as they are read. The first ones need no look at the rest of the file, and drawing holds no more than it draws, so
that a trace of millions of rows costs little memory.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal

from pytest_specdec.errors import ConfigurationError

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
    long the answer was. `time`: when the request came, in the trace's own unit.
    """

    at: str
    messages: tuple[Message, ...] = ()
    templated: bool = False
    left_out: int = 0
    length: int = 0
    blocks: tuple[int, ...] = ()
    output_tokens: int | None = None
    time: float = 0


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
    return value


def whole(row: Row, column: str, least: int, remedy: str) -> int:
    """A whole number of `least` or more, as a number or, in a CSV file, as digits. Raises Malformed."""
    value = cell(row, column, remedy)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if type(value) is not int or value < least:
        raise Malformed(f"column {column!r} is {value!r}, not a whole number of {least} or more")
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
    return system + _question(turns, users, policy), len(before) - len(system)


def _question(turns: Sequence[Message], users: list[int], policy: Turns) -> tuple[Message, ...]:
    if policy == "first":
        return (turns[users[0]],)
    if policy == "joined":
        return (("user", "\n\n".join(turns[place][1] for place in users)),)
    if any(later == earlier + 1 for earlier, later in pairwise(users)):
        raise Malformed('two user turns and no answer between them: write turns = "first" or "joined"')
    return tuple(turns[users[0] : users[-1] + 1])


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
    return (roles[role] if roles else role), text_of(turn.get(text_key), f"{text_key!r} of {name}")


_MOST_TOLD = 5


@dataclass(frozen=True)
class Chosen:
    """The items in the order in which they are asked, how many rows were skipped, and the first of those."""

    items: tuple[Item, ...]
    skipped: int = 0
    first_skipped: Wrong | None = None


@dataclass(frozen=True)
class Choice:
    """`count`: how many, None for all. `seed`: draws them, None for the order of the file. `skip`: leave wrong ones."""

    count: int | None
    seed: int | None
    skip: bool

    def of(self, found: Iterable[Item | Wrong], name: str) -> Chosen:
        """Choose among what is found. Raises ConfigurationError that names wrong rows, unless they are skipped."""
        wrong: list[Wrong] = []
        good = self._good(iter(found), wrong, name)
        items = islice(good, self.count) if self.seed is None else iter(self._draw(good, self.seed))
        chosen = tuple(items)
        return Chosen(chosen, len(wrong), wrong[0] if wrong else None)

    def _good(self, found: Iterator[Item | Wrong], wrong: list[Wrong], name: str) -> Iterator[Item]:
        for each in found:
            if isinstance(each, Item):
                yield each
                continue
            wrong.append(each)
            if not self.skip:
                wrong += islice((other for other in found if isinstance(other, Wrong)), _MOST_TOLD)
                raise ConfigurationError(_describe(wrong, name))

    def _draw(self, good: Iterator[Item], seed: int) -> list[Item]:
        """The items with the smallest random keys, smallest first: so a larger count begins with a smaller one."""
        dice = random.Random(seed)
        keyed = ((dice.random(), number, item) for number, item in enumerate(good))
        ordered = sorted(keyed) if self.count is None else heapq.nsmallest(self.count, keyed)
        return [item for _, _, item in ordered]


def _describe(wrong: list[Wrong], name: str) -> str:
    """Each reason once, with the rows that have it, and the two remedies."""
    places: dict[str, list[str]] = {}
    for each in wrong[:_MOST_TOLD]:
        places.setdefault(each.why, []).append(each.at)
    told = [f"{name}{','.join(where)}: {why}" for why, where in places.items()]
    more = ["and more of them"] if len(wrong) > _MOST_TOLD else []
    return "; ".join([*told, *more, "correct such rows, or leave them out with skip_malformed = true"])
