"""The limits that a request sets, judged absolutely: whatever the other arm did, were they kept?

Both arms can break the same limit in the same way, and equality is blind to that. So lengths, ends, ids and finish
reasons are held against the request itself: "length" says that the last of `max_tokens`, or of the context, is there;
"stop" an EOS, a stop token or a stop text. The text of an answer is held against its ids, decoded by the target's
tokenizer; of a character whose bytes have not all come engines tell nothing, and the tokenizer a replacement character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Generation, Score
from pytest_specdec.workloads.workload import Request

TRUNCATES_SAMPLING = frozenset({"top_p", "top_k", "min_p"})  # the likeliest token always stays
SHAPES_TEXT = frozenset({"include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"})
TOLD_BESIDE = frozenset({"n", "logprobs", "prompt_logprobs"})
CANNOT_CHANGE_GREEDY = TRUNCATES_SAMPLING | SHAPES_TEXT | TOLD_BESIDE | {"seed", "temperature"}
Decode = Callable[[Sequence[Request], Sequence[Sequence[int]]], Sequence["str | None"]]
REPLACEMENT = "\ufffd"
SHOWN = 40


@dataclass(frozen=True)
class Facts:
    """What an engine says of itself: how many token ids are real, which of them end an answer, its longest sequence.

    `keeps_ends`: whether the EOS or stop token that ends an answer is among its ids.
    """

    vocabulary: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    context: int | None = None
    keeps_ends: bool = True

    @classmethod
    def of(cls, description: Description) -> Facts:
        """The facts that a loaded engine tells."""
        details = description.details
        ends = frozenset(details.get("eos_token_ids") or ())
        return cls(description.vocabulary, ends, description.context or None, details.get("keeps_ends", True))

    def stop_tokens(self, request: Request) -> frozenset[int]:
        """Token ids that end this request's answer."""
        return request.stop_tokens(self.eos_token_ids)


def agreement(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading tokens, or characters, are the same."""
    differ = (at for at, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs)
    return next(differ, min(len(one), len(other)))


def reshaping_fields(request: Request) -> list[str]:
    """Sampling fields that change the logits before a token is chosen, so that the raw argmax is not the choice."""
    return sorted(set(request.sampling) - CANNOT_CHANGE_GREEDY)


def broken_limit(request: Request, generation: Generation, facts: Facts) -> str | None:
    """Which of the request's own limits the output breaks; None if it keeps them all."""
    return next(chain(_broken_lengths(request, generation, facts), _broken_ends(request, generation, facts)), None)


def _broken_lengths(request: Request, generation: Generation, facts: Facts) -> Iterator[str]:
    real, delivered = facts.vocabulary, len(generation.token_ids)
    for position, token in enumerate(generation.token_ids):
        if token < 0 or (real is not None and token >= real):
            yield f"token {position} is {token}, and the vocabulary has {real} tokens (padding is never an answer)"
    if delivered > request.max_tokens:
        yield f"{delivered} tokens delivered, more than max_tokens = {request.max_tokens}"
    if delivered < request.min_tokens:
        yield f"{delivered} tokens delivered, fewer than min_tokens = {request.min_tokens}"
    ends_by_itself = not request.ignore_eos or request.stop or request.stop_token_ids
    if not (_is_full(request, generation, facts) or ends_by_itself):
        yield f"{delivered} tokens delivered where {request.max_tokens} were asked for and no end was allowed"
    if delivered == 0:
        yield "no token was delivered"


def _broken_ends(request: Request, generation: Generation, facts: Facts) -> Iterator[str]:
    """Of an answer that has a token. A stop text is not seen here: text is held against ids elsewhere.

    Where a finished grammar leaves nothing else, vLLM permits an end while `min_tokens` withholds ends.
    """
    stop_tokens, until, last = facts.stop_tokens(request), request.min_tokens, generation.token_ids[-1]
    ends = [(at, token) for at, token in enumerate(generation.token_ids) if token in stop_tokens]
    for at, token in ends:
        if at < until and not request.sampling.get("structured_outputs"):
            yield f"{_kind(token, facts)} at {at} (token {token}), where min_tokens = {until} forbids it"
    for at, token in ends:
        if until <= at + 1 < len(generation.token_ids):
            yield f"continued past {_kind(token, facts)} at {at} (token {token})"
    reason, delivered = generation.finish_reason, len(generation.token_ids)
    if reason is None:
        yield f"ended without a finish reason after {delivered} of {request.max_tokens} tokens"
    if reason == "length" and not _is_full(request, generation, facts):
        yield f"finished by 'length' after {delivered} tokens, not after max_tokens = {request.max_tokens}"
    told_apart = stop_tokens or request.ignore_eos
    if reason == "stop" and told_apart and not request.stop and last not in stop_tokens:
        yield f"finished by 'stop' on token {last}, which is no stop token"


def _kind(token: int, facts: Facts) -> str:
    return "EOS" if token in facts.eos_token_ids else "stop token"


def _is_full(request: Request, generation: Generation, facts: Facts) -> bool:
    delivered = len(generation.token_ids)
    at_the_end = facts.context is not None and len(request.prompt_ids) + delivered >= facts.context
    return delivered >= request.max_tokens or at_the_end


def with_end(
    request: Request, generation: Generation, facts: Facts, alone: Sequence[tuple[int, ...]] = ()
) -> Generation:
    """The answer with the end that its engine leaves out: the one that the target `alone` has there, else any.

    Under a stop text it may be that which ended the answer; then only the target's own end is put back.
    """
    ids, ends = generation.token_ids, facts.stop_tokens(request)
    if facts.keeps_ends or generation.finish_reason != "stop" or not ends or set(ids[-1:]) & ends:
        return generation
    there = [each[-1] for each in alone if each and each[:-1] == ids and each[-1] in ends]
    if request.stop and not there:
        return generation
    return replace(generation, token_ids=(*ids, there[0] if there else min(ends)))


def with_any_end(request: Request, tokens: Sequence[int], scores: Sequence[Score], facts: Facts) -> tuple[Score, ...]:
    """The scores; where the end was put back, any end is right: which of several it was is not known."""
    if facts.keeps_ends or not scores or not {tokens[-1], scores[-1].argmax} <= facts.stop_tokens(request):
        return tuple(scores)
    return (*scores[:-1], replace(scores[-1], gap=0.0))


def without_missed_eos(
    request: Request, tokens: Sequence[int], scores: Sequence[Score], facts: Facts
) -> tuple[Score, ...]:
    """The scores without those where the target wanted a permitted end that the engine did not take."""
    missed = _missed_ends(request, tokens, scores, facts)
    return tuple(score for at, score in enumerate(scores) if at not in missed)


def missed_eos(
    request: Request, generation: Generation, scores: Sequence[Score], facts: Facts, is_beyond: Callable[[Score], bool]
) -> str | None:
    """Where the target wanted to end, beyond noise, and the engine, though permitted, did not; None if nowhere."""
    missed = _missed_ends(request, generation.token_ids, scores, facts)
    at = next((at for at in missed if is_beyond(scores[at])), None)
    if at is None:
        return None
    released = f"; min_tokens = {request.min_tokens} permits it there" if request.min_tokens else ""
    return f"missed {_kind(scores[at].argmax, facts)} at token {at}{released}"


def _missed_ends(request: Request, tokens: Sequence[int], scores: Sequence[Score], facts: Facts) -> list[int]:
    ends, pairs = facts.stop_tokens(request), enumerate(zip(tokens, scores, strict=True))
    wanted = ((at, token) for at, (token, score) in pairs if at >= request.min_tokens and score.argmax in ends)
    return [at for at, token in wanted if token not in ends]


@dataclass(frozen=True)
class Decoded:
    """An answer's ids as text: all of them, and all but the last."""

    whole: str
    but_last: str


Answer = tuple[Request, tuple[int, ...]]


def no_tokenizer(requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Sequence[str | None]:
    """Nothing is told of any answer."""
    return [None] * len(outputs)


def decode_answers(pairs: Iterable[tuple[Request, Generation]], decode: Decode) -> dict[Answer, Decoded]:
    """Each distinct answer whose text says something, decoded; without those of which no tokenizer tells."""
    answers = list(dict.fromkeys((request, each.token_ids) for request, each in pairs if _is_told(request, each)))
    if not answers:
        return {}
    requests = [request for request, _ in answers]
    whole = decode(requests, [ids for _, ids in answers])
    but_last = decode(requests, [ids[:-1] for _, ids in answers])
    texts = zip(answers, whole, but_last, strict=True)
    return {answer: Decoded(all_, less) for answer, all_, less in texts if all_ is not None and less is not None}


def _is_told(request: Request, generation: Generation) -> bool:
    withheld, asked = request.stop and request.min_tokens, request.stop or request.sampling.get("structured_outputs")
    return not withheld and (generation.text is not None or bool(asked))


def broken_stop(request: Request, generation: Generation, decoded: Decoded, facts: Facts) -> str | None:
    """Where a stop text was passed over, or ended the answer without being there; None if neither."""
    passed = [stop for stop in request.stop if stop in decoded.but_last]
    if passed and not decoded.but_last.endswith(REPLACEMENT):
        return f"continued past the stop text {passed[0]!r}"
    unknown = not facts.keeps_ends or not (request.ignore_eos or facts.eos_token_ids)  # which tokens end it
    ended = unknown or generation.token_ids[-1] in facts.stop_tokens(request)
    if generation.finish_reason == "stop" and not ended and not any(stop in decoded.whole for stop in request.stop):
        return f"finished by 'stop' after {len(generation.token_ids)} tokens, on no stop token and no stop text"
    return None


def wrong_text(request: Request, generation: Generation, decoded: Decoded, facts: Facts) -> str | None:
    """How the text differs from that of the ids; None if it does not, or if the engine gives none."""
    text, right = generation.text, _right_texts(request, generation, decoded, facts)
    if text is None or any(each.startswith(text) and not each[len(text) :].strip(REPLACEMENT) for each in right):
        return None
    at = agreement(text, right[0])
    return f"text differs from that of its ids at character {at}: {_from(text, at)}, not {_from(right[0], at)}"


def broken_structure(request: Request, generation: Generation, decoded: Decoded, facts: Facts) -> str | None:
    """How a whole answer is not of the structure that was asked for; white space around it, and schemas, aside.

    Whole is what EOS ended: a stop text or token cuts it off, as max_tokens does.
    """
    asked = request.sampling.get("structured_outputs")
    cut_off = any(stop in decoded.whole for stop in request.stop)
    if not asked or cut_off or not set(generation.token_ids[-1:]) <= facts.eos_token_ids:
        return None
    text = _right_texts(request, generation, decoded, facts)[0]
    if "choice" in asked and text.strip() not in map(str.strip, asked["choice"]):
        return f"{quote(text)} is none of the choices"
    if "regex" in asked and not _matches(asked["regex"], text):
        return f"{quote(text)} does not match {asked['regex']!r}"
    if "json" in asked:
        try:
            json.loads(text)
        except ValueError:
            return f"{quote(text)} is no JSON"
    return None


def _matches(pattern: str, text: str) -> bool:
    """Whether the text is of the pattern, or may be: it is written for a grammar engine, and Python may not read it."""
    try:  # for a grammar engine "." is any character, the end of a line too
        return any(re.fullmatch(pattern, each, re.DOTALL) for each in (text, text.strip()))
    except re.error:
        return True


def _right_texts(request: Request, generation: Generation, decoded: Decoded, facts: Facts) -> list[str]:
    """What the text may be: cut at the stop text that begins first or, as some engines do, at that which ends first."""
    keeps = bool(request.sampling.get("include_stop_str_in_output"))
    by_token = generation.finish_reason == "stop" and generation.token_ids[-1] in facts.stop_tokens(request)
    text = decoded.but_last if by_token and not keeps else decoded.whole
    found = [(at, at + len(stop)) for stop in request.stop if (at := text.find(stop)) >= 0]
    if not found:
        return [text]
    return [text[: end if keeps else begin] for begin, end in (min(found), min(found, key=lambda place: place[1]))]


def _from(text: str, at: int) -> str:
    return repr(text[at : at + SHOWN]) if at < len(text) else "its end"


def quote(text: str | None) -> str:
    """A text that fits into a sentence, by its end."""
    return "nothing" if text is None else repr(text) if len(text) <= SHOWN else f"…{text[-SHOWN:]!r}"
