"""A workload is what is asked of an engine: requests as token ids, and how many of them are under way at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Conversation:
    """Messages, what a chat template was given beside them, and the `prompt_ids` that it made of both."""

    messages: tuple[Mapping[str, Any], ...]
    template: Mapping[str, Any]
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """One prompt and the limits of its answer, greedy unless `sampling` says otherwise.

    `max_tokens`, `min_tokens`: bounds on the delivered tokens. `ignore_eos`: decode to `max_tokens` whatever comes.
    `stop_token_ids`, `stop`: further ends, as ids and as text. `sampling`: non-default sampling fields under the
    engine's own names (e.g. "frequency_penalty"), passed through to both arms alike. `conversation`: of what the prompt
    was written, for a server that writes it itself.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = True
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict, hash=False)
    conversation: Conversation | None = field(default=None, compare=False)

    @property
    def whole_conversation(self) -> Conversation | None:
        """The one that the prompt was written of; None where there is none, or the prompt goes on after it."""
        told = self.conversation
        return told if told is not None and told.prompt_ids == self.prompt_ids else None

    def stop_tokens(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        """Token ids that end this answer, given the model's own."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else frozenset(eos_token_ids))

    def wire(self) -> dict[str, Any]:
        """Plain values, as they cross to a worker."""
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        told = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
        return {**told, "sampling": dict(self.sampling)}


@dataclass(frozen=True)
class Workload:
    """Requests in order, and `concurrency`: how many are under way at once.

    `arrivals_s`: for each request the moment at which it is due, in seconds after the run began, never falling; empty
    where each is due as soon as a place is free. `keeps_prefix_cache`: whether the engine's prefix cache outlives a
    run; else each run begins with an empty one. `begins`: whether this is the first pass of a gate, which in a worker's
    engine finds nothing of another's. `skipped_rows`: malformed rows of its source that were passed over on
    request. `notes`: what a reader of its record should know of how it was read, in sentences. `categories`: for each
    request what kind of question it is, as its source says; empty where that says nothing. `numbers`: those of its
    requests in the workload that it is a part of; empty where it is the whole.
    """

    name: str
    requests: tuple[Request, ...]
    concurrency: int
    arrivals_s: tuple[float, ...] = ()
    keeps_prefix_cache: bool = False
    begins: bool = False
    skipped_rows: int = 0
    notes: tuple[str, ...] = ()
    categories: tuple[str | None, ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def finds_prefix_cache(self) -> bool:
        """Whether this pass may find what an earlier one has left."""
        return self.keeps_prefix_cache and not self.begins

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits over requests, concurrency and arrivals, not over the name."""
        asked = [self.concurrency, [request.wire() for request in self.requests], *self.arrivals_s]
        asked += ["keeps prefix cache"] if self.keeps_prefix_cache else []
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]

    def one_at_a_time(self, limit: int | None = None) -> Workload:
        """The same requests, the first `limit` of them, at concurrency 1."""
        return replace(self, requests=self.requests[:limit], concurrency=1, arrivals_s=(), categories=())

    def only(self, kept: Sequence[int]) -> Workload:
        """These requests, each as soon as a place is free."""
        requests = tuple(self.requests[at] for at in kept)
        return replace(self, requests=requests, numbers=tuple(kept), arrivals_s=(), categories=())

    def alone(self, index: int) -> Workload:
        """One request alone."""
        return replace(self.only([index]), concurrency=1)


@dataclass(frozen=True)
class Limits:
    """`vocabulary`: number of token ids, which run from 0. `context`: longest prompt plus output, in tokens."""

    vocabulary: int
    context: int

    def faults(self, prompt: Sequence[int], max_tokens: int) -> Iterator[str]:
        """What is wrong with one prompt, each with its remedy; nothing if the engine can take it."""
        if not prompt:
            yield "is empty, so there is nothing to continue: give it at least one token"
        if len(prompt) + max_tokens > self.context:
            yield (
                f"{len(prompt)} + {max_tokens} tokens exceed the engine's context of {self.context}:"
                " shorten it or raise max_model_len"
            )
        if strange := self.unknown_ids(prompt):
            yield f"{strange}: write ids of this target's tokenizer"

    def unknown_ids(self, ids: Sequence[int]) -> str | None:
        """The ids that lie outside of the vocabulary, in words; None where all lie inside."""
        strange = sorted({token for token in ids if not 0 <= token < self.vocabulary})
        if not strange:
            return None
        shown = ", ".join(map(str, strange[:5])) + (", …" if len(strange) > 5 else "")
        return f"token id {shown} outside of the vocabulary of {self.vocabulary} ids (0 to {self.vocabulary - 1})"
