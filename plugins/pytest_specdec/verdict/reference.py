"""The reference: target-only greedy decoding of a workload, measured once, calibrated, and kept for the session.

The target decodes at batch 1 and at the workload's concurrency, and rates a sample of both outputs itself. How often
rounding decides depends on the shape of a step, so the target also verifies its own output in steps of γ + 1 tokens;
where an engine cannot be asked to, it decodes as many sequences at once as such a step has rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_specdec.engines.engine import Engine, one_pass
from pytest_specdec.generation import Generation, Run, Score
from pytest_specdec.verdict.equivalence import Calibration, Certified
from pytest_specdec.verdict.limits import Facts, agreement, reshaping_fields, with_any_end, with_end, without_missed_eos
from pytest_specdec.verdict.noise import ROWS, VERIFYING, NoiseFloor, noise_floor
from pytest_specdec.workloads.workload import Request, Workload

MOST_AT_ONCE = 256
GOLDEN = 0.6180339887  # its multiples, less their whole parts, lie evenly, however many there are


@dataclass(frozen=True)
class Sample:
    """How much of the target's output is looked at.

    `prompts`: the first ones, decoded one at a time as well. `tokens`: so many are rated at least, in whole answers
    over all requests, with those of the first prompts and of requests whose sampling fields reshape the choice; None:
    all.
    """

    prompts: int
    tokens: int | None = None

    def draw(self, requests: Sequence[Request], answers: Sequence[Generation]) -> set[int]:
        """Which answers are rated."""
        if self.tokens is None:
            return set(range(len(requests)))
        drawn = {at for at, each in enumerate(requests) if at < self.prompts or reshaping_fields(each)}
        tokens = sum(len(answers[at].token_ids) for at in drawn)
        for at in sorted(set(range(len(requests))) - drawn, key=lambda at: at * GOLDEN % 1):
            if tokens >= self.tokens:
                break
            drawn.add(at)
            tokens += len(answers[at].token_ids)
        return drawn


@dataclass(frozen=True)
class Reference:
    """The calibration of target-only output on a workload, and what rescoring cost beside decoding.

    `versions`: of the packages that decoded it. `rescoring_seconds`: one pass of the target over the outputs of
    `decoding_seconds`, by the session's clock. `shapes`: the scores that speak of noise, a row for each batch size.
    """

    calibration: Calibration
    versions: Mapping[str, str]
    rescoring_seconds: float
    decoding_seconds: float
    shapes: tuple[tuple[Score, ...], ...] = ()


def calibrate(
    engine: Engine, workload: Workload, together: Run, sample: Sample, clock: Callable[[], float]
) -> Reference:
    """Decode the first requests one at a time as well, rescore a sample of both outputs, and take the floor."""
    began, prompts = clock(), sample.prompts
    drawn = sample.draw(workload.requests, together.generations)
    made = _certify(engine, workload.requests, together.generations, drawn)
    certified = [[each] if each else [] for each in made]
    spent = clock() - began
    solo = workload.one_at_a_time(prompts)
    alone = one_pass(engine, solo) if workload.concurrency > 1 else Run(together.generations[:prompts], None, 0.0)
    for several, other in zip(certified, _certify_differing(engine, solo, together, alone), strict=False):
        several.extend([_sharing(several, other)] if other is not None else [])
    shapes = _shapes(engine, workload, certified, alone)
    floor = _floor(engine, shapes, alone, together)
    calibration = Calibration(tuple(map(tuple, certified)), floor, Facts.of(engine.description))
    return Reference(calibration, engine.description.versions, spent, together.engine_seconds, shapes)


def verify_itself(reference: Reference, engine: Engine, workload: Workload, gamma: int) -> Reference:
    """The reference whose near-ties are those of verification: the target verifies its own output, γ drafts a step."""
    known, floor = reference.calibration, reference.calibration.floor
    pairs = zip(workload.requests, known.certified, strict=True)
    kept = [(request, several[0] if several else None) for request, several in pairs if not several or several[0].rated]
    workload = replace(workload, requests=tuple(request for request, _ in kept), arrivals_s=())
    certified = [each for _, each in kept]
    judged = _in_steps(engine, workload, certified, gamma + 1, known.facts)
    judged = judged or _in_rows(engine, workload, certified, gamma + 1, known.facts)
    dtype, notes = dtype_of(engine)
    measured = noise_floor(reference.shapes, dtype, floor.disagreements, floor.compared, judged)
    measured = replace(measured, unknown=(*notes, *measured.unknown))
    return replace(reference, calibration=replace(known, floor=measured))


def _in_steps(
    engine: Engine, workload: Workload, certified: Sequence[Certified | None], step: int, facts: Facts
) -> tuple[str, list[Score]] | None:
    """What steps of verification would choose, as the rating in one pass has it; None where there are no steps."""
    pairs = [(request, each) for request, each in zip(workload.requests, certified, strict=True) if each is not None]
    requests, outputs = [request for request, _ in pairs], [each.generation.token_ids for _, each in pairs]
    rate = getattr(engine, "score_in_steps", None)
    rows = rate(requests, outputs, step, workload.concurrency) if rate is not None and pairs else None
    if rows is None:
        return None

    def chosen(rated: Score, step: Score) -> Score:
        """The rating of what a step chooses: where that is not the argmax, it is the runner-up."""
        return replace(rated, gap=0.0 if step.argmax == rated.argmax else rated.runner_up or 0.0)

    told = zip(pairs, rows, strict=True)
    made = [replace(each, scores=tuple(map(chosen, each.scores, row))) for (_, each), row in told]
    return VERIFYING, _scores(requests, made, facts)


def _in_rows(
    engine: Engine, workload: Workload, certified: Sequence[Certified | None], step: int, facts: Facts
) -> tuple[str, list[Score]]:
    """The target decodes as many sequences at once as a step of verification has rows, some twice if need be."""
    rows = min(workload.concurrency * step, MOST_AT_ONCE)
    times = -(-rows // len(workload.requests))
    requests = workload.requests * times
    run = one_pass(engine, replace(workload, requests=requests, concurrency=rows, arrivals_s=()))
    count = len(workload.requests)
    known = {
        (at, each.generation.token_ids): each
        for at, each in zip(range(count), certified, strict=True)
        if each is not None
    }
    found = {(at % count, each.token_ids): each for at, each in enumerate(run.generations) if not each.failure}
    fresh = [key for key in found if key not in known]
    made = _certify(engine, [workload.requests[at] for at, _ in fresh], [found[key] for key in fresh])
    rated = {**known, **dict(zip(fresh, made, strict=True))}
    return ROWS, _scores([workload.requests[at] for at, _ in found], [rated[key] for key in found], facts)


def _sharing(several: Sequence[Certified], other: Certified) -> Certified:
    """The other output with the first one's scores as far as both agree: the same tokens after the same prefix."""
    if not several or not several[0].rated:
        return other
    shared = agreement(several[0].generation.token_ids, other.generation.token_ids)
    return replace(other, scores=(*several[0].scores[:shared], *other.scores[shared:]))


def _certify_differing(engine: Engine, solo: Workload, together: Run, alone: Run) -> list[Certified | None]:
    """Certificates of batch-1 outputs, scored only where they differ; an equal one has its certificate already."""
    pairs = list(zip(solo.requests, together.generations, alone.generations, strict=False))
    differ = [at for at, (_, mine, other) in enumerate(pairs) if mine.failure or mine.token_ids != other.token_ids]
    made = _certify(engine, [pairs[at][0] for at in differ], [pairs[at][2] for at in differ])
    by_index = dict(zip(differ, made, strict=True))
    return [by_index.get(index) for index in range(len(pairs))]


def _certify(
    engine: Engine, requests: Sequence[Request], generations: Sequence[Generation], drawn: Container[int] | None = None
) -> list[Certified | None]:
    """A certificate for each generation, rated where it is `drawn`; None for a failed one, which shows nothing."""
    facts, answered = Facts.of(engine.description), [at for at, each in enumerate(generations) if not each.failure]
    whole = {at: with_end(requests[at], generations[at], facts) for at in answered}
    asked = [at for at in answered if drawn is None or at in drawn]
    rows = engine.score([requests[at] for at in asked], [whole[at].token_ids for at in asked]) if asked else ()
    rated = zip(asked, rows, strict=True)
    scores = {at: with_any_end(requests[at], whole[at].token_ids, row, facts) for at, row in rated}
    return [Certified(whole[at], scores.get(at, ())) if at in whole else None for at in range(len(generations))]


def _shapes(
    engine: Engine, workload: Workload, certified: Sequence[Sequence[Certified]], alone: Run
) -> tuple[tuple[Score, ...], ...]:
    """Both batch sizes side by side; an output that is the same at both has one certificate and counts at each."""
    facts = Facts.of(engine.description)
    shapes = [_scores(workload.requests, [several[0] if several else None for several in certified], facts)]
    if workload.concurrency > 1:
        solo = [several[-1] if several else None for several in certified[: len(alone.generations)]]
        shapes.append(_scores(workload.requests, solo, facts))
    return tuple(map(tuple, shapes))


def _floor(engine: Engine, shapes: Sequence[Sequence[Score]], alone: Run, together: Run) -> NoiseFloor:
    """The floor of plain decoding."""
    both = zip(together.generations, alone.generations, strict=False)
    pairs = [(mine, other) for mine, other in both if not (mine.failure or other.failure)]
    disagreements = sum(mine.token_ids != other.token_ids for mine, other in pairs)
    dtype, notes = dtype_of(engine)
    floor = noise_floor(shapes, dtype, disagreements, len(pairs))
    return replace(floor, unknown=(*notes, *floor.unknown))


def dtype_of(engine: Engine) -> tuple[str, tuple[str, ...]]:
    """The dtype as the engine resolved it; where it does not tell, the one that was asked for, and a note."""
    told = engine.description.details.get("dtype")
    note = f"the engine does not tell its dtype: {engine.spec.dtype}, as asked for, is taken"
    return (str(told), ()) if told else (engine.spec.dtype, (note,))


def _scores(requests: Sequence[Request], certified: Sequence[Certified | None], facts: Facts) -> list[Score]:
    """The scores that speak of noise: not where an end was due, nor where sampling fields reshape the choice."""
    found: list[Score] = []
    for request, each in zip(requests, certified, strict=False):
        if each is not None and each.rated and not reshaping_fields(request):
            found += without_missed_eos(request, each.generation.token_ids, each.scores, facts)
    return found
