"""The text of an answer, held against its ids: what the target's tokenizer makes of them, up to the first stop text.

A tokenizer decodes the ids as what follows the prompt. A stop text is not part of the answer, nor is the token that
ended it, unless `include_stop_str_in_output` asks for them. Engines decode token by token, so a character whose bytes
have not all come is missing from their text, and a replacement character in the tokenizer's. With `min_tokens` a stop
text counts only from some token on, and nothing is said of text then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_specdec.generation import Generation
from pytest_specdec.verdict.limits import Facts, is_stop_token
from pytest_specdec.workloads.workload import Request

Decode = Callable[[Sequence[Request], Sequence[Sequence[int]]], Sequence["str | None"]]
REPLACEMENT = "\ufffd"
SHOWN = 40


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
    withheld = request.stop and request.min_tokens
    return not withheld and (generation.text is not None or bool(request.stop))


def broken_stop(request: Request, generation: Generation, decoded: Decoded, facts: Facts) -> str | None:
    """Where a stop text was passed over, or ended the answer without being there; None if neither."""
    passed = [stop for stop in request.stop if stop in decoded.but_last]
    if passed and not decoded.but_last.endswith(REPLACEMENT):
        return f"continued past the stop text {passed[0]!r}"
    ended = is_stop_token(request, generation.token_ids[-1], facts) or not facts.keeps_ends
    if generation.finish_reason == "stop" and not ended and not any(stop in decoded.whole for stop in request.stop):
        return f"finished by 'stop' after {len(generation.token_ids)} tokens, on no stop token and no stop text"
    return None


def wrong_text(request: Request, generation: Generation, decoded: Decoded, facts: Facts) -> str | None:
    """How the text differs from that of the ids; None if it does not, or if the engine gives none."""
    text, right = generation.text, _right_texts(request, generation, decoded, facts)
    if text is None or any(_same(text, each) for each in right):
        return None
    at = next((at for at, (one, other) in enumerate(zip(text, right[0], strict=False)) if one != other), None)
    at = min(len(text), len(right[0])) if at is None else at
    return f"text differs from that of its ids at character {at}: {_from(text, at)}, not {_from(right[0], at)}"


def _right_texts(request: Request, generation: Generation, decoded: Decoded, facts: Facts) -> list[str]:
    """What the text may be: cut at the stop text that begins first or, as some engines do, at that which ends first."""
    keeps = bool(request.sampling.get("include_stop_str_in_output"))
    by_token = generation.finish_reason == "stop" and generation.token_ids[-1] in facts.stop_tokens(request)
    text = decoded.but_last if by_token and not keeps else decoded.whole
    found = [(at, at + len(stop)) for stop in request.stop if (at := text.find(stop)) >= 0]
    if not found:
        return [text]
    return [text[: end if keeps else begin] for begin, end in (min(found), min(found, key=lambda place: place[1]))]


def _same(text: str, right: str) -> bool:
    return right.startswith(text) and not right[len(text) :].strip(REPLACEMENT)


def _from(text: str, at: int) -> str:
    return repr(text[at : at + SHOWN]) if at < len(text) else "its end"


def shown(text: str | None) -> str:
    """A text that fits into a sentence, by its end."""
    return "nothing" if text is None else repr(text) if len(text) <= SHOWN else f"…{text[-SHOWN:]!r}"
