"""What a gate exercised, beside what it found: a fault that a workload cannot meet is not seen, green or not.

From answers, counters and the engine's sizes: which kinds of steps there were, where bursts (the tokens of one step)
met an end or an edge, and which fields requests had. A scenario's `demand` names what must have happened; a green gate
in which it did not is *undecidable*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_specdec.generation import Generation, Run, count_steps
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import ExercisedPart
from pytest_specdec.verdict.equivalence import agreement
from pytest_specdec.verdict.limits import reshaping_fields
from pytest_specdec.workloads.workload import Request

UNTOLD = "the engine does not tell"
NO_SIZE = "the engine tells no such size"


@dataclass(frozen=True)
class Burst:
    """Tokens of one step: the positions of prompt and answer from `start` up to `end`."""

    start: int
    end: int

    def crosses(self, size: int) -> bool:
        """Whether it lies on both sides of an edge of blocks of `size`."""
        return self.start // size != (self.end - 1) // size


def exercised_part(
    requests: Sequence[Request], runs: Sequence[Run], details: Mapping[str, Any], context: int, gamma: int | None
) -> ExercisedPart:
    """Of everything that was decoded. `details`, `context`: the engine's own sizes."""
    answers = [each for run in runs for each in run.generations]
    bursts = [burst for each in answers for burst in _bursts(each)]
    near = 1 + (gamma or 0)
    return ExercisedPart(
        **_steps(runs, gamma),
        ends_in_burst=sum(each.finish_reason == "stop" and _last(each) > 1 for each in answers),
        block_edges=_edges(bursts, details.get("block_size")),
        chunk_edges=_edges(bursts, details.get("prefill_chunk")),
        context_edges=sum(burst.end + near > context for burst in bursts),
        longest_prompt=max((len(each.prompt_ids) for each in answers), default=0),
        longest_output=max((len(each.token_ids) for each in answers), default=0),
        cached_tokens=_total(run.prefix_cache_hits for run in runs),
        cached_answers=_total(map(_cached_answers, runs)),
        preemptions=_total(run.preemptions for run in runs),
        fields=tuple(sorted({name for request in requests for name in _fields(request)})),
    )


def _bursts(answer: Generation) -> Iterator[Burst]:
    """Steps that gave several tokens."""
    at = len(answer.prompt_ids)
    for chunk in answer.chunks:
        if chunk.tokens > 1:
            yield Burst(at, at + chunk.tokens)
        at += chunk.tokens


def _last(answer: Generation) -> int:
    return answer.chunks[-1].tokens if answer.chunks else 0


def _edges(bursts: Sequence[Burst], size: int | None) -> Figure[int]:
    return Figure(sum(burst.crosses(size) for burst in bursts) if size else None, NO_SIZE)


def _total(counts: Iterator[int | None]) -> Figure[int]:
    told = list(counts)
    return Figure(None if None in told else sum(each or 0 for each in told), UNTOLD)


def _cached_answers(run: Run) -> int | None:
    """Cached tokens of prompts that go on from an earlier answer: its decoding wrote them, with rejected drafts."""
    answered: dict[tuple[int, ...], tuple[int, ...]] = {}
    found = 0
    for each in run.generations:
        if each.cached_tokens is None:
            return None
        for prompt, answer in answered.items():
            behind = each.cached_tokens - len(prompt)
            if behind > 0 and each.prompt_ids[: len(prompt)] == prompt:
                found += min(behind, agreement(answer, each.prompt_ids[len(prompt) :]))
        answered[each.prompt_ids] = each.token_ids
    return found


def _steps(runs: Sequence[Run], gamma: int | None) -> dict[str, Figure[Any]]:
    """Steps by how many of their drafts were accepted, and the share of steps that drafted."""
    counted = [run.speculation for run in runs if run.speculation is not None]
    total = sum(counted[1:], counted[0]) if counted else None
    if total is None or not total.accepted_per_position or not gamma:
        return dict.fromkeys(("none_accepted", "some_accepted", "all_accepted", "drafted_share"), Figure(None, UNTOLD))
    first, last = total.accepted_per_position[0], (*total.accepted_per_position, *(0,) * gamma)[gamma - 1]
    steps = sum(count_steps(run.generations) for run in runs)
    return {
        "none_accepted": Figure(total.drafts - first),
        "some_accepted": Figure(first - last),
        "all_accepted": Figure(last),
        "drafted_share": Figure(total.drafts / steps if steps else None, UNTOLD),
    }


def _fields(request: Request) -> Iterator[str]:
    """The fields of a request that ask for more than tokens up to a limit."""
    yield from reshaping_fields(request)
    yield from (name for name in ("stop", "stop_token_ids", "min_tokens") if getattr(request, name))
    if not request.ignore_eos:
        yield "eos"


def _value(figure: Figure[int]) -> int:
    return figure.value or 0


DEMANDS: Mapping[str, tuple[Callable[[ExercisedPart], int], str]] = {
    "rejection": (lambda part: _value(part.none_accepted) + _value(part.some_accepted), "take a poorer drafter"),
    "some_accepted": (
        lambda part: _value(part.some_accepted),
        "take γ = 3 or more, and a drafter that is right at times",
    ),
    "all_accepted": (lambda part: _value(part.all_accepted), "take a better drafter, or a smaller γ"),
    "eos_in_burst": (lambda part: part.ends_in_burst, "set ignore_eos = false or a stop, and take more prompts"),
    "block_edge": (lambda part: _value(part.block_edges), "take longer answers, or smaller blocks"),
    "chunk_edge": (lambda part: _value(part.chunk_edges), "take a smaller max_num_batched_tokens, or longer prompts"),
    "context_edge": (lambda part: part.context_edges, "let prompt and max_tokens fill the context (max_model_len)"),
    "cached_prompt": (lambda part: _value(part.cached_tokens), 'set prefix_cache = "keep", and prefix caching on'),
    "cached_answer": (
        lambda part: _value(part.cached_answers),
        "give follow_ups, prefix caching on, and answers longer than a cache block",
    ),
    "preemption": (lambda part: _value(part.preemptions), "give the engine fewer cache blocks, or take longer answers"),
}


def unmet(demand: Sequence[str], part: ExercisedPart) -> list[str]:
    """A sentence for each thing demanded that did not happen, with what to change."""
    return [
        f"{name!r} was demanded and did not happen: {advice}"
        for name, (happened, advice) in DEMANDS.items()
        if name in demand and not happened(part)
    ]
