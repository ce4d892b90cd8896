"""The limits that a request sets, judged absolutely: whatever the other arm did, were they kept?

Both arms of a comparison can break the same limit in the same way, and equality is blind to that. So lengths, ends, ids
and finish reasons are held against the request itself, and where the target was rescored, against what it wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Generation, Score
from pytest_specdec.workloads.workload import Request

UNSHAPED = frozenset({"seed", "temperature"})


@dataclass(frozen=True)
class Facts:
    """What the target says of itself: how many token ids are real, and which of them end an answer."""

    vocabulary: int | None = None
    eos_token_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, description: Description) -> Facts:
        """The facts that a loaded engine tells."""
        return cls(description.vocabulary, frozenset(description.details.get("eos_token_ids") or ()))

    def stop_tokens(self, request: Request) -> frozenset[int]:
        """Token ids that end this request's answer."""
        return request.stop_tokens(self.eos_token_ids)


def reshaping_fields(request: Request) -> list[str]:
    """Sampling fields that change the logits before a token is chosen, so that the raw argmax is not the choice."""
    return sorted(set(request.sampling) - UNSHAPED)


def broken_limit(request: Request, generation: Generation, facts: Facts) -> str | None:
    """Which of the request's own limits the output breaks; None if it keeps them all."""
    checks: tuple[Callable[[Request, Generation, Facts], str | None], ...] = (
        _ids,
        _length,
        _early_end,
        _missed_stop_token,
        _reason,
    )
    return next((broken for check in checks if (broken := check(request, generation, facts))), None)


def _ids(_: Request, generation: Generation, facts: Facts) -> str | None:
    real = facts.vocabulary
    for position, token in enumerate(generation.token_ids):
        if token < 0 or (real is not None and token >= real):
            return f"token {position} is {token}, and the vocabulary has {real} tokens (padding is never an answer)"
    return None


def _length(request: Request, generation: Generation, _: Facts) -> str | None:
    delivered = len(generation.token_ids)
    if delivered > request.max_tokens:
        return f"{delivered} tokens delivered, more than max_tokens = {request.max_tokens}"
    if delivered < request.min_tokens:
        return f"{delivered} tokens delivered, fewer than min_tokens = {request.min_tokens}"
    return None


def _early_end(request: Request, generation: Generation, _: Facts) -> str | None:
    delivered = len(generation.token_ids)
    ends_by_itself = not request.ignore_eos or request.stop or request.stop_token_ids
    if delivered < request.max_tokens and not ends_by_itself:
        return f"{delivered} tokens delivered where {request.max_tokens} were asked for and no end was allowed"
    if delivered == 0:
        return "no token was delivered"
    return None


def _missed_stop_token(request: Request, generation: Generation, facts: Facts) -> str | None:
    stop_tokens = facts.stop_tokens(request)
    for position, token in enumerate(generation.token_ids[:-1]):
        if token in stop_tokens and position + 1 >= request.min_tokens:
            return f"continued past {_kind(token, facts)} at {position} (token {token})"
    return None


def _kind(token: int, facts: Facts) -> str:
    return "EOS" if token in facts.eos_token_ids else "stop token"


def _reason(request: Request, generation: Generation, facts: Facts) -> str | None:
    delivered, last = len(generation.token_ids), generation.token_ids[-1]
    if generation.finish_reason == "length" and delivered != request.max_tokens:
        return f"finished by 'length' after {delivered} tokens, not after max_tokens = {request.max_tokens}"
    stop_tokens = facts.stop_tokens(request)
    told_apart = stop_tokens or request.ignore_eos
    if generation.finish_reason == "stop" and told_apart and not request.stop and last not in stop_tokens:
        return f"finished by 'stop' on token {last}, which is no stop token"
    return None


def without_missed_eos(
    request: Request, tokens: Sequence[int], scores: Sequence[Score], facts: Facts
) -> tuple[Score, ...]:
    """The scores without those where the target wanted a permitted end that the engine did not take."""
    stop_tokens = facts.stop_tokens(request)
    return tuple(
        score
        for at, (token, score) in enumerate(zip(tokens, scores, strict=True))
        if not (at >= request.min_tokens and score.argmax in stop_tokens and token not in stop_tokens)
    )


def missed_eos(
    request: Request, generation: Generation, scores: Sequence[Score], facts: Facts, bound: float
) -> str | None:
    """Where the target wanted to end and the engine, though permitted, did not; None if nowhere."""
    stop_tokens = facts.stop_tokens(request)
    for at, (token, score) in enumerate(zip(generation.token_ids, scores, strict=True)):
        if at >= request.min_tokens and score.argmax in stop_tokens and token not in stop_tokens and score.gap > bound:
            released = f"; min_tokens = {request.min_tokens} permits it there" if request.min_tokens else ""
            return f"missed {_kind(score.argmax, facts)} at token {at}{released}"
    return None
