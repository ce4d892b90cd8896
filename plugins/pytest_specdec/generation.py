"""What an engine gives back: token ids with the times at which they arrived, and what its speculation counted.

Everything downstream (verdict, measurements, record) reads these values and nothing else, so that the tokens that are
judged are the tokens that are measured. All values are plain, immutable and cross process boundaries as dictionaries.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, zip_longest
from operator import index
from typing import Any, TypeAlias

FINISHED = ("length", "stop")


@dataclass(frozen=True)
class Chunk:
    """Tokens that arrived together: `at_s` seconds after the run began, `tokens` of them."""

    at_s: float
    tokens: int


@dataclass(frozen=True)
class Generation:
    """One request's answer.

    `prompt_ids`: the prompt as the engine saw it. `token_ids`: the delivered tokens, in order; stop and EOS tokens are
    part of it where the engine delivers them. `finish_reason`: "length", "stop", or what else the engine says; None
    where it says nothing. `text`: None when the engine did not detokenise. `chunks`: arrival times, relative to the
    start of the run; their token counts sum to `len(token_ids)` where the engine streams, and are empty where it does
    not. `started_s`: seconds after the run began at which the request was submitted; None where the engine does not
    tell. `scheduled_s`: seconds after the run began at which it was due; None where no moment was set. `error`: why
    there is no whole answer, if there is none. `draft_tokens`, `accepted_tokens`: proposed and accepted for this
    request; None where the engine does not count by request. `cached_tokens`: of its prompt, found in the prefix cache;
    None where the engine does not tell. `logprobs`: the log-probabilities that it returned, of each emitted token; one
    is None where another token's came instead, all are None where none was asked for, or told. `channels`: what a chat
    server makes of the text, each by name: content, reasoning, parts of tool calls; None where it is no chat.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str | None
    chunks: tuple[Chunk, ...] = ()
    text: str | None = None
    started_s: float | None = None
    scheduled_s: float | None = None
    error: str | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    cached_tokens: int | None = None
    logprobs: tuple[float | None, ...] | None = None
    channels: tuple[tuple[str, str], ...] | None = None

    def __post_init__(self) -> None:
        """Plain whole numbers, also from an engine that gives NumPy's."""
        for name in ("prompt_ids", "token_ids"):
            object.__setattr__(self, name, tuple(map(index, getattr(self, name))))

    @property
    def failure(self) -> str | None:
        """Why there is no whole answer: its error, or a finish reason that no answer has which was left to its end."""
        if self.error is None and self.finish_reason not in (None, *FINISHED):
            return f"the engine ended it by {self.finish_reason!r} after {len(self.token_ids)} tokens"
        return self.error

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Generation:
        """Build from the plain dictionary that a worker sends."""
        known = {each.name: wire[each.name] for each in fields(cls) if each.name in wire}
        chunks = tuple(Chunk(float(at), int(tokens)) for at, tokens in wire.get("chunks", ()))
        logprobs = None if wire.get("logprobs") is None else tuple(wire["logprobs"])
        return cls(**{**known, "chunks": chunks, "logprobs": logprobs})


def sum_told(counts: Iterable[int | None]) -> int | None:
    """Their sum; None where one is not told."""
    told = list(counts)
    return None if None in told else sum(each or 0 for each in told)


def steps_of(chunks: Sequence[Chunk]) -> list[range]:
    """For each chunk the places of its tokens in the answer."""
    ends = accumulate(chunk.tokens for chunk in chunks)
    return [range(end - chunk.tokens, end) for chunk, end in zip(chunks, ends, strict=True)]


def count_steps(generations: Iterable[Generation]) -> int:
    """The steps in which their tokens came, chunks; 0 where those of an answer are not told."""
    answers = list(generations)
    told = all(each.chunks or not each.token_ids for each in answers)
    return sum(len(each.chunks) for each in answers) if told else 0


@dataclass(frozen=True)
class Speculation:
    """What the engine counted during one run, as differences of its counters around the run.

    `drafts`: steps in which something was drafted. `draft_tokens`: tokens proposed. `accepted_tokens`: proposed tokens
    that the target accepted. `accepted_per_position`: for each draft position, how often it was accepted.
    `drafted_per_position`: how many drafts had a token there. `tried_per_position`: of these, how many had all before
    it accepted. Each is empty where the engine does not tell; the last two then follow from drafts of one length.
    """

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...] = ()
    drafted_per_position: tuple[int, ...] = field(default=(), compare=False)
    tried_per_position: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any] | None) -> Speculation | None:
        """Build from the worker's dictionary; None stays None: the engine does not speculate."""
        if wire is None:
            return None
        told: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in wire.items()}
        return cls(**told)

    @property
    def drafted(self) -> tuple[int, ...]:
        """For each position, the drafts that had a token there."""
        return self.drafted_per_position or (self.drafts,) * len(self.accepted_per_position)

    @property
    def tried(self) -> tuple[int, ...]:
        """For each position, the drafts that had a token there, and all before it accepted."""
        return self.tried_per_position or (self.drafts, *self.accepted_per_position)[: len(self.accepted_per_position)]

    def __add__(self, other: Speculation) -> Speculation:
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        told: list[Any] = [_add(*pair) if isinstance(pair[0], tuple) else sum(pair) for pair in pairs]
        return Speculation(*told)

    @classmethod
    def over(cls, runs: Iterable[Run]) -> Speculation | None:
        """Summed over those that have counters; None where none has."""
        counted = [run.speculation for run in runs if run.speculation is not None]
        return sum(counted[1:], counted[0]) if counted else None


def _add(mine: Sequence[int], theirs: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(mine, theirs, fillvalue=0)))


@dataclass(frozen=True)
class Run:
    """One pass over a workload: a generation for each request, in the workload's order, and the engine's counters.

    `speculation`: None where the engine gave no counters. `prefix_cache_hits`: prompt tokens that it found in its
    prefix cache; None where it does not tell. `sent_apart`: whether requests were sent beside the engine, so that one
    sent late was not held up by its steps. `preemptions`: how often a request gave up its place in the cache, to begin
    again. `first`: whether it is the engine's first pass after loading. `counted_alone`: whether a target alone told
    its counters of drafts, which are 0.
    """

    generations: tuple[Generation, ...]
    speculation: Speculation | None
    engine_seconds: float
    prefix_cache_hits: int | None = None
    sent_apart: bool = False
    preemptions: int | None = None
    first: bool = False
    counted_alone: bool = False

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Run:
        """Build from the plain dictionary that a worker sends."""
        generations = tuple(Generation.from_wire(each) for each in wire["generations"])
        speculation = Speculation.from_wire(wire["speculation"])
        hits, preemptions = wire.get("prefix_cache_hits"), wire.get("preemptions")
        return cls(generations, speculation, wire["seconds"], hits, preemptions=preemptions)

    @property
    def tokens(self) -> int:
        """Delivered token ids, over all requests."""
        return sum(len(generation.token_ids) for generation in self.generations)


Runs: TypeAlias = Mapping[int, Run]
"""What was decoded, by the number of its round; warm-up rounds are below 0."""


@dataclass(frozen=True)
class Score:
    """How the target alone rates one emitted token, given the prefix that the engine had.

    `gap`: the target's highest logit minus this token's logit, 0.0 when the token is the argmax. `top`: the highest
    logit itself, from which the ULP at that magnitude follows; None where the engine reports log
    probabilities only. `argmax`: the token that the target prefers. `runner_up`: the highest logit minus the second
    highest; None where the engine does not tell.
    """

    gap: float
    top: float | None
    argmax: int
    runner_up: float | None = None


def scores_from_wire(wire: Sequence[Sequence[Sequence[Any]]]) -> tuple[tuple[Score, ...], ...]:
    """A worker's rows of (gap, top, argmax, runner-up), one row a sequence, as scores."""
    return tuple(tuple(Score(*told) for told in row) for row in wire)


@dataclass(frozen=True)
class Ranking:
    """The target's highest logits at one place of an answer, from high to low.

    `ids`: their tokens. `place`: where among them the emitted token stands; None where it does not. `whole`: whether
    these are all tokens of the model.
    """

    logits: Sequence[float]
    ids: Sequence[int]
    place: int | None
    whole: bool

    def without(self, ids: Container[int]) -> Ranking:
        """The same without these tokens."""
        kept = [at for at, token in enumerate(self.ids) if token not in ids]
        place = kept.index(self.place) if self.place in kept else None
        return Ranking([self.logits[at] for at in kept], [self.ids[at] for at in kept], place, self.whole)


def rankings_from_wire(wire: Sequence[Sequence[Sequence[Any]]]) -> tuple[tuple[Ranking, ...], ...]:
    """A worker's rows of (logits, ids, place, whole), the first two as 32-bit numbers in base64, as rankings."""
    return tuple(
        tuple(
            Ranking(array("f", b64decode(logits)), array("i", b64decode(ids)), place, whole)
            for logits, ids, place, whole in row
        )
        for row in wire
    )
