"""What of a conversation is asked, by a policy that needs no model's answer in between.

"first": the first user turn. "joined": all user turns as one, a blank line between. "conversation": everything up to
the last user turn, with the file's own answers. What the system says before the first user turn stays in front; other
turns that stand there are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from pytest_specdec.workloads.rows.row import Malformed, Message, text_of

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
