"""The reference: target-only greedy decoding of a workload, measured once, calibrated, and kept for the session.

The target decodes at batch 1 and at the workload's concurrency, and rates a sample of both outputs itself. How often
rounding decides depends on the shape of a step, so the target also verifies its own output in steps of γ + 1 tokens;
where an engine cannot be asked to, it decodes as many sequences at once as such a step has rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias, TypeVar

from pytest_specdec.engines.engine import Engine, one_pass
from pytest_specdec.generation import Generation, Run, Score
from pytest_specdec.verdict.equivalence import Calibration, Certified
from pytest_specdec.verdict.limits import Facts, agreement, reshaping_fields, with_any_end, with_end, without_missed_eos
from pytest_specdec.verdict.noise import PLAIN, ROWS, VERIFYING, NoiseFloor, noise_floor
from pytest_specdec.workloads.workload import Request, Workload

MOST_AT_ONCE = 256
GOLDEN = 0.6180339887  # its multiples, less their whole parts, lie evenly, however many there are
Key = TypeVar("Key")
Kept: TypeAlias = tuple[Request, "Certified | None"]  # a request whose answer was rated, or failed
Shape: TypeAlias = tuple[str, list[Score]]  # of the steps in which tokens with these scores were chosen


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
    `decoding_seconds`, by the session's clock.
    """

    calibration: Calibration
    versions: Mapping[str, str]
    rescoring_seconds: float
    decoding_seconds: float


def calibrate(
    engine: Engine, workload: Workload, together: Run, sample: Sample, clock: Callable[[], float]
) -> Reference:
    """Decode the first requests one at a time as well, rescore a sample of both outputs, and take the floor."""
    began, requests = clock(), workload.requests
    drawn = sample.draw(requests, together.generations)
    first = _certify(engine, dict(enumerate(zip(requests, together.generations, strict=True))), drawn)
    spent = clock() - began
    solo = workload.one_at_a_time(sample.prompts)
    alone = one_pass(engine, solo) if workload.concurrency > 1 else Run(together.generations[: sample.prompts], None, 0)
    both = list(zip(together.generations, alone.generations, strict=False))
    differ = [at for at, (mine, other) in enumerate(both) if mine.failure or mine.token_ids != other.token_ids]
    others = _certify(engine, {at: (requests[at], alone.generations[at]) for at in differ})
    certified = tuple(_join(first.get(at), others.get(at)) for at in range(len(requests)))
    floor = replace(
        _floor(engine, workload, certified),
        disagreements=sum(not both[at][0].failure for at in others),
        compared=sum(not (mine.failure or other.failure) for mine, other in both),
    )
    calibration = Calibration(certified, floor, Facts.of(engine.description))
    return Reference(calibration, engine.description.versions, spent, together.engine_seconds)


def verify_itself(reference: Reference, engine: Engine, workload: Workload, gamma: int) -> Reference:
    """The reference whose near-ties are those of verification: the target verifies its own output, γ drafts a step."""
    known, floor = reference.calibration, reference.calibration.floor
    pairs = list(zip(workload.requests, known.certified, strict=True))
    kept = [(request, several[0] if several else None) for request, several in pairs if not several or several[0].rated]
    judged = _in_steps(engine, workload, kept, gamma + 1) or _in_rows(engine, workload, kept, gamma + 1)
    measured = _floor(engine, workload, known.certified, judged)
    measured = replace(measured, disagreements=floor.disagreements, compared=floor.compared)
    return replace(reference, calibration=replace(known, floor=measured))


def _in_steps(engine: Engine, workload: Workload, kept: Sequence[Kept], step: int) -> Shape | None:
    """What steps of verification would choose, as the rating in one pass has it; None where there are no steps."""
    rated = [(request, each) for request, each in kept if each is not None]
    requests, outputs = [request for request, _ in rated], [each.generation.token_ids for _, each in rated]
    rate = getattr(engine, "score_in_steps", None)
    rows = rate(requests, outputs, step, workload.concurrency) if rate is not None and rated else None
    if rows is None:
        return None

    def chosen(rated: Score, step: Score) -> Score:
        """The rating of what a step chooses: where that is not the argmax, it is the runner-up."""
        return replace(rated, gap=0.0 if step.argmax == rated.argmax else rated.runner_up or 0.0)

    told = zip(rated, rows, strict=True)
    made = ((request, replace(each, scores=tuple(map(chosen, each.scores, row)))) for (request, each), row in told)
    return VERIFYING, _scores(engine, made)


def _in_rows(engine: Engine, workload: Workload, kept: Sequence[Kept], step: int) -> Shape:
    """The target decodes as many sequences at once as a step of verification has rows, some twice if need be."""
    rows, count = min(workload.concurrency * step, MOST_AT_ONCE), len(kept)
    requests = tuple(request for request, _ in kept) * -(-rows // count)
    run = one_pass(engine, replace(workload, requests=requests, concurrency=rows, arrivals_s=()))
    known = {(at, each.generation.token_ids): each for at, (_, each) in enumerate(kept) if each is not None}
    answers = zip(requests, run.generations, strict=True)
    ended = ((request, with_end(request, each, Facts.of(engine.description))) for request, each in answers)
    found = {(at % count, answer[1].token_ids): answer for at, answer in enumerate(ended) if not answer[1].failure}
    made = known | _certify(engine, {key: answer for key, answer in found.items() if key not in known})
    return ROWS, _scores(engine, ((request, made[key]) for key, (request, _) in found.items()))


def _certify(
    engine: Engine, answers: Mapping[Key, tuple[Request, Generation]], drawn: Container[Key] | None = None
) -> dict[Key, Certified]:
    """A certificate for each answer but failed ones, which show nothing; rated where it is `drawn`."""
    facts = Facts.of(engine.description)
    whole = {key: with_end(*answer, facts) for key, answer in answers.items() if not answer[1].failure}
    asked = [key for key in whole if drawn is None or key in drawn]
    requests, outputs = [answers[key][0] for key in asked], [whole[key].token_ids for key in asked]
    rows = engine.score(requests, outputs) if asked else ()
    told = zip(asked, requests, outputs, rows, strict=True)
    scores = {key: with_any_end(request, tokens, row, facts) for key, request, tokens, row in told}
    return {key: Certified(each, scores.get(key, ())) for key, each in whole.items()}


def _join(first: Certified | None, other: Certified | None) -> tuple[Certified, ...]:
    """Both outputs of a request; as far as they agree their scores are the same, of one token after one prefix."""
    if first is None or other is None or not first.rated:
        return tuple(each for each in (first, other) if each is not None)
    shared = agreement(first.generation.token_ids, other.generation.token_ids)
    return first, replace(other, scores=(*first.scores[:shared], *other.scores[shared:]))


def _floor(
    engine: Engine, workload: Workload, certified: Sequence[Sequence[Certified]], judged: Shape | None = None
) -> NoiseFloor:
    """The floor of both batch sizes. `judged`: the shape of steps that is most like what will be judged."""
    pairs = list(zip(workload.requests, certified, strict=True))
    plain = _scores(engine, ((request, several[0]) for request, several in pairs if several))
    rated = _scores(engine, ((request, each) for request, several in pairs for each in several))
    dtype, notes = dtype_of(engine)
    floor = noise_floor(rated, dtype, judged or (PLAIN, plain))
    return replace(floor, unknown=(*notes, *floor.unknown))


def dtype_of(engine: Engine) -> tuple[str, tuple[str, ...]]:
    """The dtype as the engine resolved it; where it does not tell, the one that was asked for, and a note."""
    told = engine.description.details.get("dtype")
    note = f"the engine does not tell its dtype: {engine.spec.dtype}, as asked for, is taken"
    return (str(told), ()) if told else (engine.spec.dtype, (note,))


def _scores(engine: Engine, pairs: Iterable[tuple[Request, Certified]]) -> list[Score]:
    """The scores that speak of noise: not where an end was due, nor where sampling fields reshape the choice."""
    facts = Facts.of(engine.description)
    told = ((request, each) for request, each in pairs if each.rated and not reshaping_fields(request))
    kept = (without_missed_eos(request, each.generation.token_ids, each.scores, facts) for request, each in told)
    return list(chain.from_iterable(kept))
