"""Draft state: are accepted drafts as many, at each position, as a constructed pair must have?

A fault in the drafter's own state (its KV cache, its positions, the hidden states that it is given) changes no token:
the target rejects what is wrong, and acceptance falls. Where target and drafter are constructed, the counters of each
round are foretold exactly, as the engine counts them. Every round is held against them, and no claim is made where
the engine drafted less than it was asked for, or where it is not known how it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Run, Speculation
from pytest_specdec.models import COUNTINGS, ModelError, ends_of, expected_counters, why_unknown
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import ForetoldPart
from pytest_specdec.verdict.equivalence import Outcome, Verdict
from pytest_specdec.verdict.truth import Truth
from pytest_specdec.verdict.words import round_name
from pytest_specdec.workloads.workload import Workload

Reason: TypeAlias = str
SHOWN = 3


@dataclass(frozen=True)
class Foretold:
    """The counters of one round of a workload. `gamma`: drafts a step, if all count that many."""

    counters: Speculation
    gamma: int | None = None


def foretell(spec: EngineSpec, about: Description, workload: Workload, truth: Truth) -> Foretold | Reason:
    """What the engine must count in each round, or why that is not known."""
    if (why := truth.unknown or _why_not(spec, about, workload)) is not None:
        return why
    counting, pair = COUNTINGS[about.details["counting"]], (spec.target, str(spec.draft))
    asked, gamma = [(each.prompt_ids, each.max_tokens) for each in workload.requests], spec.gamma or 0
    try:
        return Foretold(expected_counters(counting, pair, asked, gamma), gamma if counting.whole else None)
    except ModelError as error:
        return str(error)


def _why_not(spec: EngineSpec, about: Description, workload: Workload) -> Reason | None:
    if not spec.speculates:
        return "the engine does not speculate"
    if about.details.get("counting") not in COUNTINGS:
        return f"what {spec.backend} counts by the method {spec.method!r} with these options cannot be foretold"
    if any(each.stop or each.stop_tokens(ends_of(spec.target)) for each in workload.requests):
        return "answers may end at EOS or a stop, and rounds with them"
    return why_unknown(str(spec.draft)) or _near_the_end(spec, about, workload)


def _near_the_end(spec: EngineSpec, about: Description, workload: Workload) -> Reason | None:
    """Near the end of a context engines draft fewer tokens, or none for the whole batch."""
    context = min(about.context, about.details.get("draft_context") or about.context)
    longest = max(len(each.prompt_ids) + each.max_tokens for each in workload.requests)
    if longest + 2 * (spec.gamma or 0) <= context:
        return None
    return f"{longest} tokens come within two steps of the end of the context of {context}, where fewer are drafted"


def judge_drafts(verdict: Verdict, foretold: Foretold | Reason, runs: Sequence[Run], warmups: int = 0) -> Verdict:
    """The verdict, *draft state* where tokens are right and a round's counters are not the foretold ones.

    `warmups`: how many of `runs`, the first, are warm-up rounds.
    """
    if isinstance(foretold, str) or not verdict.passes:
        return verdict
    lines = tuple(_differing(foretold.counters, runs, warmups))
    return replace(verdict, outcome=Outcome.DRAFT_STATE, drafts=lines[:SHOWN]) if lines else verdict


def foretold_part(foretold: Foretold | Reason, runs: Sequence[Run]) -> ForetoldPart:
    """The foretold counters over all rounds, or why nothing is claimed."""
    if isinstance(foretold, str):
        return missing(ForetoldPart, foretold)
    counters, rounds = foretold.counters, len(runs)
    return ForetoldPart(
        drafts=Figure(rounds * counters.drafts),
        draft_tokens=Figure(rounds * counters.draft_tokens),
        accepted_tokens=Figure(rounds * counters.accepted_tokens),
        accepted_per_position=Figure(tuple(rounds * each for each in counters.accepted_per_position)),
    )


def claim(foretold: Foretold | Reason, runs: Sequence[Run]) -> Foretold | Reason:
    """What these rounds can be held against, or why nothing is claimed of them."""
    if isinstance(foretold, str):
        return foretold
    return next((why for run in runs if (why := _fewer_drafts(foretold, run)) is not None), foretold)


def _fewer_drafts(foretold: Foretold, run: Run) -> Reason | None:
    """What the engine drafted less than it was asked for, by a full cache or a full batch."""
    counted, steps = run.speculation, sum(len(each.chunks) for each in run.generations)
    if counted is None:
        return "the engine gave no counters"
    undrafted = steps - counted.drafts
    if not 0 <= undrafted <= len(run.generations):
        return f"{steps} steps were told and {counted.drafts} drafts counted: steps without a draft are not foretold"
    if foretold.gamma is not None and counted.draft_tokens != counted.drafts * foretold.gamma:
        return f"{counted.draft_tokens} tokens in {counted.drafts} drafts: some drafts were cut short"
    return None


def _differing(counters: Speculation, runs: Sequence[Run], warmups: int) -> Iterator[str]:
    """A line for each round whose counters are others."""
    for number, run in enumerate(runs, start=-warmups):
        counted = run.speculation
        if counted is not None and counted != _as_told(counters, counted):
            yield f"{round_name(number)}: foretold {_in_words(counters)}; counted {_in_words(counted)}"


def _as_told(counters: Speculation, counted: Speculation) -> Speculation:
    """Without positions where the engine tells none."""
    return counters if counted.accepted_per_position else replace(counters, accepted_per_position=())


def _in_words(counted: Speculation) -> str:
    positions = ", ".join(map(str, counted.accepted_per_position)) or "not told"
    accepted = f"{counted.accepted_tokens} of {counted.draft_tokens} draft tokens accepted"
    return f"{accepted} in {counted.drafts} drafts (by position: {positions})"
