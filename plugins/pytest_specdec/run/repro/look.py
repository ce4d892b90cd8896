"""Does the fault show on this request? Both arms decode it at batch 1, and the target rates what the engine emitted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.run.session import Session
from pytest_specdec.verdict.equivalence import agreement
from pytest_specdec.verdict.limits import reshaping_fields
from pytest_specdec.workloads.workload import Request, Workload


@dataclass(frozen=True)
class Fault:
    """A request on which the arms differ.

    `position`: the first wrong token; `wanted`: what the target has there, None for an end; `gap`: the wrong token's
    distance to it in logits. Without a gap the difference is one of length, or stands under sampling fields that the
    rating does not see.
    """

    request: Request
    expected: tuple[int, ...]
    seen: tuple[int, ...]
    position: int
    wanted: int | None
    gap: float | None


class Look:
    """Looks for the fault of one engine; `floor` is the largest gap, in logits, that is noise."""

    def __init__(self, session: Session, spec: EngineSpec, floor: float) -> None:
        self._session, self._spec, self._floor = session, spec, floor
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
            if math.isnan(score.gap) or score.gap > self._floor:
                return Fault(request, expected, seen, at, score.argmax, score.gap)
        return None


def shorten(request: Request, prompt_ids: tuple[int, ...], max_tokens: int) -> Request:
    """The same request with another prompt and another limit."""
    return replace(request, prompt_ids=prompt_ids, max_tokens=max_tokens)
