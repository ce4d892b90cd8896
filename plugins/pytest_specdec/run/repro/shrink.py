"""Make a red request smaller while it still shows the fault: both arms decode it at batch 1, the target rates it.

The output becomes shorter first, since that makes every later look cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.run.session import Session
from pytest_specdec.verdict.equivalence import agreement
from pytest_specdec.verdict.limits import reshaping_fields
from pytest_specdec.verdict.noise import unit_of
from pytest_specdec.workloads.workload import Request, Workload


@dataclass(frozen=True)
class Fault:
    """A request on which the arms differ.

    `position`: the first wrong token; `wanted`: what the target has there, None for an end; `gap`: the wrong token's
    distance to it in logits; `floor`: the noise floor there. Without a gap the difference is one of length, or stands
    under sampling fields that the rating does not see.
    """

    request: Request
    expected: tuple[int, ...]
    seen: tuple[int, ...]
    position: int
    wanted: int | None
    gap: float | None
    floor: float | None = None


class Look:
    """Looks for the fault of one engine; `floor` is the largest gap, in ULPs of `dtype`, that is noise."""

    def __init__(self, session: Session, spec: EngineSpec, floor: float, dtype: str) -> None:
        self._session, self._spec, self._floor, self._dtype = session, spec, floor, dtype
        self.runs = 0

    def __call__(self, request: Request) -> Fault | None:
        """The fault as this request shows it; None if it does not, or if an engine refuses the request or dies."""
        self.runs += 1
        try:
            return self._fault(request)
        except EngineError:
            return None

    def _fault(self, request: Request) -> Fault | None:
        seen = self._decode(self._spec, request)
        expected = self._decode(self._spec.target_only(), request)
        if seen == expected:
            return None
        position = agreement(expected, seen)
        if position == min(len(expected), len(seen)) or reshaping_fields(request):
            wanted = expected[position] if position < len(expected) else None
            return Fault(request, expected, seen, position, wanted, None)
        return self._beyond_the_floor(request, expected, seen)

    def _decode(self, spec: EngineSpec, request: Request) -> tuple[int, ...]:
        with self._session.pool.using(spec) as engine:
            return one_pass(engine, Workload("a bug report", (request,), 1)).generations[0].token_ids

    def _beyond_the_floor(self, request: Request, expected: tuple[int, ...], seen: tuple[int, ...]) -> Fault | None:
        """The first token that is no tie; what the target would have said there is its own argmax."""
        with self._session.pool.using(self._spec.target_only()) as engine:
            (scores,) = engine.score([request], [seen])
        for at, score in enumerate(scores):
            floor = self._floor * unit_of(score, self._dtype)
            if not score.gap <= floor:
                return Fault(request, expected, seen, at, score.argmax, score.gap, floor)
        return None


def shorten(request: Request, prompt_ids: tuple[int, ...], max_tokens: int) -> Request:
    """The same request with another prompt and another limit."""
    return replace(request, prompt_ids=prompt_ids, max_tokens=max_tokens)


Shows = Callable[[Request], "Fault | None"]
InTime = Callable[[], bool]


def shrunk(fault: Fault, shows: Shows, in_time: InTime) -> Fault:
    """The smallest fault found; no look is begun once `in_time` says no."""
    size = None
    while size != _size(fault) and in_time():
        size = _size(fault)
        fault = shorter_output(fault, shows, in_time)
        fault = shorter_prompt(fault, shows, in_time)
    return fault


def _size(fault: Fault) -> tuple[int, int]:
    return len(fault.request.prompt_ids), fault.request.max_tokens


def shorter_output(fault: Fault, shows: Shows, in_time: InTime) -> Fault:
    """End soon after the wrong token. Near an end a step drafts less, so the end moves away until the fault shows."""
    request = fault.request
    for tokens in _ends(fault.position + 1, request.max_tokens):
        if not in_time():
            break
        found = shows(shorten(request, request.prompt_ids, tokens))
        if found is not None:
            return found
    return fault


def _ends(first: int, limit: int) -> Iterator[int]:
    step, tokens = 1, first
    while tokens < limit:
        yield tokens
        tokens, step = tokens + step, 2 * step


def shorter_prompt(fault: Fault, shows: Shows, in_time: InTime) -> Fault:
    """Leave out pieces of the prompt, large ones first; at least one token stays."""
    size = len(fault.request.prompt_ids) // 2
    while size:
        at = 0
        while at < len(fault.request.prompt_ids) and in_time():
            smaller = _without(fault.request, at, size)
            found = shows(smaller) if smaller.prompt_ids else None
            fault, at = (found, at) if found is not None else (fault, at + size)
        size //= 2
    return fault


def _without(request: Request, at: int, size: int) -> Request:
    ids = request.prompt_ids
    return shorten(request, ids[:at] + ids[at + size :], request.max_tokens)
