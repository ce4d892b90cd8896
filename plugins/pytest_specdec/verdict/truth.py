"""Known truth: what a constructed target must emit is known without an engine, so a fault of both arms is seen too.

Each answer is held against it, whatever the arms say of each other. A fault in the drafter's own state changes no
token: the target rejects what is wrong, and acceptance falls. Where target and drafter are constructed, the counters of
each round are foretold exactly, and held against them; no claim is made where the engine drafted less than it was asked
for, or where it is not known how it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.methods import method_named
from pytest_specdec.engines.spec import IN_WORKERS, EngineSpec
from pytest_specdec.generation import Generation, Run, Runs, Speculation, count_steps
from pytest_specdec.models import ModelError, expected_continuation
from pytest_specdec.models.truth import COUNTINGS, ends_of, expected_counters, why_unknown
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import ForetoldPart, KnownTruthPart
from pytest_specdec.verdict.equivalence import TARGET_ONLY, THIS_ENGINE, Calibration, Finding, Outcome, Verdict
from pytest_specdec.verdict.limits import agreement, reshaping_fields
from pytest_specdec.verdict.words import round_name
from pytest_specdec.workloads.workload import Request, Workload

KNOWN = "known truth"
NOT_COMPARED = (Outcome.INPUTS_DIFFER, Outcome.ENGINE_ERROR)  # no answers to the prompt that was sent
Reason: TypeAlias = str
SHOWN = 3


Truth: TypeAlias = Sequence[tuple[int, ...]]  # of each request the tokens of its answer, up to `max_tokens`


def truth_of(target: str, requests: Sequence[Request]) -> Truth | Reason:
    """What the target must emit, or why it is unknown. All requests are known or none is."""
    if (why := why_unknown(target)) is not None:
        return why
    if fields := next(filter(None, map(reshaping_fields, requests)), None):
        return f"sampling fields change what is chosen: {', '.join(fields)}"
    try:
        known = [tuple(expected_continuation(target, each.prompt_ids, each.max_tokens)) for each in requests]
    except ModelError as error:
        return str(error)
    ends = ends_of(target)
    if any(each.stop_tokens(ends) & set(ids[: each.min_tokens]) for each, ids in zip(requests, known, strict=True)):
        return "min_tokens keeps ends from being chosen"
    return known


def judge_truth(
    verdict: Verdict, truth: Truth | Reason, calibration: Calibration, runs: Runs, speculates: bool
) -> Verdict:
    """The verdict, divergent where an answer of either arm is not the known one; unchanged where nothing is known."""
    told = {(each.round, each.request): each for each in verdict.findings}
    wrong: dict[tuple[int, int], Finding] = {}
    for number, known in enumerate(truth if not isinstance(truth, str) else ()):
        strays = (each.generation for each in calibration.certified[number] if _differs(known, each.generation))
        alone = next(strays, None)  # an answer of the target alone that is wrong, if there is one
        for place, seen in (((round_, number), run.generations[number]) for round_, run in runs.items()):
            if _convicts(verdict, told.get(place), known, seen, alone):
                gap = told[place].gap if place in told else None
                wrong[place] = replace(_finding(place, known, seen, alone, speculates), gap=gap)
    return verdict.with_findings([*wrong.values()], needs_calibration=False) if wrong else verdict


def _convicts(
    verdict: Verdict, told: Finding | None, known: tuple[int, ...], seen: Generation, alone: Generation | None
) -> bool:
    wrong = _differs(known, seen)
    if (told is not None and told.outcome in NOT_COMPARED) or not (wrong or alone):
        return False
    says_more = wrong and alone is None and told is not None and not told.outcome.passes
    return not says_more or bool(verdict.floor.insane)


def _finding(
    place: tuple[int, int], known: tuple[int, ...], seen: Generation, alone: Generation | None, speculates: bool
) -> Finding:
    wrong = _differs(known, seen)
    arms = (", both arms" if alone else ", this arm alone") if wrong else ", target-only arm alone"
    answer = seen if wrong or alone is None else alone
    at = agreement(known, answer.token_ids)
    first = f"token {at} is {answer.token_ids[at]}, where {known[at]} is known to follow"
    count = f"{_wrong_tokens(known, answer)} of {len(answer.token_ids)} tokens are wrong"
    return Finding(
        Outcome.DIVERGENT,
        *place,
        detail=f"from the known truth{arms if speculates else ''}: {first}; {count}",
        position=at,
        expected=known,
        seen=answer.token_ids,
        chunks=answer.chunks,
        sides=(KNOWN, THIS_ENGINE if wrong else TARGET_ONLY),
        target_wrong=alone is not None,
    )


def truth_part(truth: Truth | Reason, calibration: Calibration, runs: Iterable[Run]) -> KnownTruthPart:
    """How many tokens of the rounds and of the calibration were held against the truth, and how many were wrong."""
    if isinstance(truth, str):
        return missing(KnownTruthPart, truth)
    alone = ([each.generation for each in several] for several in calibration.certified)
    answers = zip(truth, zip(*(run.generations for run in runs), strict=True), alone, strict=True)
    pairs = [(known, each) for known, ours, theirs in answers for each in (*ours, *theirs)]
    compared = sum(len(each.token_ids) for _, each in pairs)
    return KnownTruthPart(tokens=Figure(compared), wrong=Figure(sum(_wrong_tokens(*pair) for pair in pairs)))


def _differs(known: tuple[int, ...], answer: Generation) -> bool:
    """Whether a token is another one; an answer that is too short or too long is a matter of its length."""
    return agreement(known, answer.token_ids) < min(len(known), len(answer.token_ids))


def _wrong_tokens(known: tuple[int, ...], answer: Generation) -> int:
    return sum(got != wanted for got, wanted in zip(answer.token_ids, known, strict=False))


def foretell(
    spec: EngineSpec, about: Description, workload: Workload, truth: Truth | Reason, runs: Iterable[Run]
) -> Speculation | Reason:
    """What the engine must count in each of these rounds, or why nothing is claimed of them."""
    if (why := truth if isinstance(truth, str) else _why_not(spec, about, workload)) is not None:
        return why
    counting, pair = COUNTINGS[about.details["counting"]], (spec.target, spec.draft or spec.target)
    asked, gamma = [(each.prompt_ids, each.max_tokens) for each in workload.requests], spec.gamma or 0
    try:
        foretold = expected_counters(counting, pair, asked, gamma)
    except ModelError as error:
        return str(error)
    of_one_length = gamma if counting.whole else None
    runs = list(runs)
    if about.details["counting"] == "vllm" and any(map(_begins_padded, runs)):
        return "vLLM counts drafts of a first step too where one token of the prompt is left to read, and makes none"
    return next((why for run in runs if (why := _fewer_drafts(run, of_one_length)) is not None), foretold)


def _begins_padded(run: Run) -> bool:
    return any(len(each.prompt_ids) - (each.cached_tokens or 0) == 1 for each in run.generations)


def _why_not(spec: EngineSpec, about: Description, workload: Workload) -> Reason | None:
    if not spec.speculates:
        return "the engine does not speculate"
    changed = spec.backend in IN_WORKERS and bool(spec.speculative_options)
    if about.details.get("counting") not in COUNTINGS or not method_named(spec.method).foretold or changed:
        return f"what {spec.backend} counts by the method {spec.method!r} with these options cannot be foretold"
    if any(each.stop or each.stop_tokens(ends_of(spec.target)) for each in workload.requests):
        return "answers may end at EOS or a stop, and rounds with them"
    if (why := why_unknown(spec.draft or spec.target)) is not None:
        return why
    context = min(about.context, about.details.get("draft_context") or about.context)
    longest = max(len(each.prompt_ids) + each.max_tokens for each in workload.requests)
    if longest + 2 * (spec.gamma or 0) <= context:
        return None
    return f"{longest} tokens come within two steps of the end of the context of {context}, where fewer are drafted"


def judge_drafts(verdict: Verdict, foretold: Speculation | Reason, runs: Runs) -> Verdict:
    """The verdict, *draft state* where tokens are right and a round's counters are not the foretold ones."""
    if isinstance(foretold, str) or not verdict.passes:
        return verdict
    lines: tuple[str, ...] = ()
    for number, run in runs.items():
        counted, wanted = run.speculation, foretold
        if counted and not counted.accepted_per_position:  # the engine tells none
            wanted = replace(wanted, accepted_per_position=())
        if counted and counted != wanted:
            told = f"foretold {_in_words(foretold)}; counted {_in_words(counted)}"
            lines += (f"{round_name(number)}: {told}",)
    return replace(verdict, outcome=Outcome.DRAFT_STATE, drafts=lines[:SHOWN]) if lines else verdict


def foretold_part(foretold: Speculation | Reason, runs: Sequence[Run]) -> ForetoldPart:
    """The foretold counters over all rounds, or why nothing is claimed."""
    if isinstance(foretold, str):
        return missing(ForetoldPart, foretold)
    rounds = len(runs)
    return ForetoldPart(
        drafts=Figure(rounds * foretold.drafts),
        draft_tokens=Figure(rounds * foretold.draft_tokens),
        accepted_tokens=Figure(rounds * foretold.accepted_tokens),
        accepted_per_position=Figure(tuple(rounds * each for each in foretold.accepted_per_position)),
    )


def _fewer_drafts(run: Run, gamma: int | None) -> Reason | None:
    """What the engine drafted less than it was asked for, by a full cache or a full batch.

    `gamma`: tokens of each draft, if all count that many.
    """
    counted, steps = run.speculation, count_steps(run.generations)
    if counted is None:
        return "the engine gave no counters"
    undrafted = steps - counted.drafts
    if not 0 <= undrafted <= len(run.generations):
        return f"{steps} steps were told and {counted.drafts} drafts counted: steps without a draft are not foretold"
    if gamma is not None and counted.draft_tokens != counted.drafts * gamma:
        return f"{counted.draft_tokens} tokens in {counted.drafts} drafts: some drafts were cut short"
    return None


def _in_words(counted: Speculation) -> str:
    positions = ", ".join(map(str, counted.accepted_per_position)) or "not told"
    accepted = f"{counted.accepted_tokens} of {counted.draft_tokens} draft tokens accepted"
    return f"{accepted} in {counted.drafts} drafts (by position: {positions})"
