"""The reference: target-only greedy decoding of a workload, measured once, calibrated, and kept for the session.

A speculative engine is compared with the target alone on the same workload. The calibration runs here too, before any
speculative engine is judged: the target at batch 1 and at the workload's concurrency, each output rescored by the
target itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pytest_specdec.engines.engine import Engine, one_pass
from pytest_specdec.generation import Generation, Run, Score
from pytest_specdec.verdict.equivalence import Calibration, Certified
from pytest_specdec.verdict.limits import Facts, reshaping_fields, with_any_end, with_end, without_missed_eos
from pytest_specdec.verdict.noise import noise_floor
from pytest_specdec.workloads.workload import Request, Workload


@dataclass(frozen=True)
class Reference:
    """The calibration of target-only output on a workload, and what rescoring cost beside decoding.

    `versions`: of the packages that decoded it. `rescoring_seconds`: one pass of the target over the outputs of
    `decoding_seconds`, by the session's clock.
    """

    calibration: Calibration
    versions: Mapping[str, str]
    rescoring_seconds: float
    decoding_seconds: float


def calibrate(engine: Engine, workload: Workload, together: Run, prompts: int, clock: Callable[[], float]) -> Reference:
    """Decode the first `prompts` requests one at a time as well, rescore both outputs, and take the floor."""
    began = clock()
    certified = [[each] if each else [] for each in _certify(engine, workload.requests, together.generations)]
    spent = clock() - began
    solo = workload.one_at_a_time(prompts)
    alone = one_pass(engine, solo) if workload.concurrency > 1 else Run(together.generations[:prompts], None, 0.0)
    for several, other in zip(certified, _certify_differing(engine, solo, together, alone), strict=False):
        several.extend([other] if other is not None else [])
    calibration = _calibration(engine, workload, certified, alone, together)
    return Reference(calibration, engine.description.versions, spent, together.engine_seconds)


def _certify_differing(engine: Engine, solo: Workload, together: Run, alone: Run) -> list[Certified | None]:
    """Certificates of batch-1 outputs, scored only where they differ; an equal one has its certificate already."""
    pairs = list(zip(solo.requests, together.generations, alone.generations, strict=False))
    differ = [
        index for index, (_, mine, other) in enumerate(pairs) if mine.failure or mine.token_ids != other.token_ids
    ]
    made = _certify(engine, [pairs[at][0] for at in differ], [pairs[at][2] for at in differ])
    by_index = dict(zip(differ, made, strict=True))
    return [by_index.get(index) for index in range(len(pairs))]


def _certify(engine: Engine, requests: Sequence[Request], generations: Sequence[Generation]) -> list[Certified | None]:
    """A certificate for each generation; None for a request that failed, which shows nothing of the target."""
    facts, pairs = Facts.of(engine.description), zip(requests, generations, strict=True)
    whole = [(request, with_end(request, each, facts)) for request, each in pairs if each.failure is None]
    rows = engine.score([request for request, _ in whole], [each.token_ids for _, each in whole]) if whole else ()
    made = (
        Certified(each, with_any_end(request, each.token_ids, row, facts))
        for (request, each), row in zip(whole, rows, strict=True)
    )
    return [next(made) if each.failure is None else None for each in generations]


def _calibration(
    engine: Engine, workload: Workload, certified: Sequence[Sequence[Certified]], alone: Run, together: Run
) -> Calibration:
    """Both batch sizes side by side; an output that is the same at both has one certificate and counts at each."""
    facts = Facts.of(engine.description)
    shapes = [_scores(workload.requests, [several[0] if several else None for several in certified], facts)]
    if workload.concurrency > 1:
        solo = [several[-1] if several else None for several in certified[: len(alone.generations)]]
        shapes.append(_scores(workload.requests, solo, facts))
    pairs = [
        (mine, other)
        for mine, other in zip(together.generations, alone.generations, strict=False)
        if not (mine.failure or other.failure)
    ]
    disagreements = sum(mine.token_ids != other.token_ids for mine, other in pairs)
    floor = noise_floor(shapes, engine.spec.dtype, disagreements, len(pairs))
    return Calibration(tuple(tuple(several) for several in certified), floor, facts)


def _scores(requests: Sequence[Request], certified: Sequence[Certified | None], facts: Facts) -> list[Score]:
    """The scores that speak of noise: not where an end was due, nor where sampling fields reshape the choice."""
    pairs = [pair for pair in zip(requests, certified, strict=False) if not reshaping_fields(pair[0])]
    rows = (
        without_missed_eos(request, each.generation.token_ids, each.scores, facts)
        for request, each in pairs
        if each is not None
    )
    return list(chain.from_iterable(rows))
