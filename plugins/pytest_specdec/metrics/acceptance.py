"""How much of what was drafted the target accepted, from the engine's own counters, and what of it was delivered.

Definitions as in vLLM's metrics (vllm/v1/spec_decode/metrics.py). A token accepted behind an EOS is counted by the
engine and thrown away, so delivered tokens a step stand beside. Counters that contradict each other are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pytest_specdec.generation import Generation, Speculation, count_steps
from pytest_specdec.metrics.rounds import NO_STEPS, SEVERAL_STEPS, Contradiction, Rounds
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import AcceptancePart, CategoryPart

NO_SPECULATION = "the engine does not speculate"
NOTHING_DRAFTED = "nothing was drafted"
NO_POSITIONS = "the engine does not count by position"
NOT_BY_REQUEST = "the engine counts over all requests together"
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens", "accepted_per_position")
RATES = ("rate", "mean_accepted_length", "mean_accepted_length_without_bonus", "marginal", "conditional")


def acceptance_part(rounds: Rounds, gamma: int | None, categories: Sequence[str | None] = ()) -> AcceptancePart:
    """The record's speculation: raw counters over the timed rounds, rates, and delivered tokens a step.

    `gamma`: the most draft tokens of a step, None where there is no bound. `categories`: for each request what kind of
    question it is. Raises Contradiction.
    """
    counted = rounds.speculation
    if counted is not None:
        _refuse_contradictions(counted, gamma)
    drafted = counted if counted is not None and counted.drafts and counted.draft_tokens else None
    why = NO_SPECULATION if counted is None else NOTHING_DRAFTED
    unknown = NOT_BY_REQUEST if drafted else why
    rates = dict.fromkeys(RATES, Figure(None, why)) if drafted is None else _rates(drafted)
    counters: dict[str, Any] = {name: Figure(getattr(counted, name, None), why) for name in COUNTERS}
    return replace(
        _delivery_part(rounds, drafted, why),
        **counters,
        **rates,
        rate_per_request=_by_request(rounds, unknown),
        by_category=_by_category(rounds, categories, unknown) if counted is not None else (),
    )


def _rates(drafted: Speculation) -> dict[str, Any]:
    length = 1 + drafted.accepted_tokens / drafted.drafts
    accepted = drafted.accepted_per_position
    marginal = tuple(count / drafts for count, drafts in zip(accepted, drafted.drafted, strict=False))
    tried = zip(accepted, drafted.tried, strict=False)
    conditional = tuple(count / drafts if drafts else None for count, drafts in tried)
    return {
        "rate": Figure(drafted.accepted_tokens / drafted.draft_tokens),
        "mean_accepted_length": Figure(length),
        "mean_accepted_length_without_bonus": Figure(length - 1),
        "marginal": Figure(marginal or None, NO_POSITIONS),
        "conditional": Figure(conditional or None, NO_POSITIONS),
    }


def per_token(counted: Speculation | None) -> float | None:
    """The chance that a verified draft token is accepted, the α of the speed-up model; None without positions.

    Most likely value if that chance is the same at each position: acceptances over trials, where a token is tried if
    all before it were accepted.
    """
    if counted is None or not counted.accepted_per_position or not counted.drafts:
        return None
    return sum(counted.accepted_per_position) / sum(counted.tried)


def _by_request(rounds: Rounds, reason: str) -> Figure[tuple[float | None, ...]]:
    answers = rounds.answers
    if not answers or any(answer.draft_tokens is None or answer.accepted_tokens is None for answer in answers):
        return Figure(None, reason)
    accepted, counted = sum(answer.accepted_tokens or 0 for answer in answers), rounds.speculation
    if counted is not None and accepted > counted.accepted_tokens:
        raise Contradiction(f"{accepted} tokens accepted by request are more than {counted.accepted_tokens} in all")
    return Figure(tuple(map(_acceptance_of, zip(*(run.generations for run in rounds.runs), strict=True))))


def _by_category(rounds: Rounds, categories: Sequence[str | None], reason: str) -> tuple[CategoryPart, ...]:
    """A part for each kind, from its answers in all rounds. `reason`: why there is no rate where none is counted."""
    answers: dict[str, list[Generation]] = {}
    for run in rounds.runs:
        for kind, answer in zip(categories, run.generations, strict=False):
            answers.setdefault(kind or "none", []).append(answer)
    return tuple(_category(kind, each, len(rounds.runs), reason) for kind, each in sorted(answers.items()))


def _category(kind: str, answers: Sequence[Generation], rounds: int, reason: str) -> CategoryPart:
    """One answer that is not counted, or whose steps are not told, is enough: the figure would have a hole."""
    counted = not any(None in (each.draft_tokens, each.accepted_tokens) for each in answers)
    return CategoryPart(
        name=kind,
        requests=len(answers) // rounds,
        rate=Figure(_acceptance_of(answers) if counted else None, NOTHING_DRAFTED if counted else reason),
        delivered_tokens_per_step=Figure(_tokens_per_step(answers), NO_STEPS),
    )


def _acceptance_of(answers: Sequence[Generation]) -> float | None:
    drafted = sum(answer.draft_tokens or 0 for answer in answers)
    return sum(answer.accepted_tokens or 0 for answer in answers) / drafted if drafted else None


def _delivery_part(rounds: Rounds, drafted: Speculation | None, why: str) -> AcceptancePart:
    """Delivered tokens a step (a chunk). Each gives one token of the target's own beside the accepted ones."""
    steps = count_steps(rounds.answers)
    if not steps:
        return missing(AcceptancePart, NO_STEPS)
    per_step, by_request = rounds.tokens / steps, zip(*(run.generations for run in rounds.runs), strict=True)
    part = AcceptancePart(
        delivered_tokens_per_step=Figure(per_step),
        delivered_tokens_per_step_per_request=Figure(tuple(map(_tokens_per_step, by_request))),
        discarded_tokens=Figure(None, why),
    )
    if drafted is None:
        return part
    undrafted, discarded = steps - drafted.drafts, steps + drafted.accepted_tokens - rounds.tokens
    if discarded < 0:
        return replace(part, discarded_tokens=Figure(None, SEVERAL_STEPS))
    if undrafted < 0:
        told = f"{-undrafted} drafts delivered no token at all, so chunks are not the engine's steps"
        return replace(part, discarded_tokens=Figure(None, told))
    told = (
        f"{per_step:.3g} tokens a step were delivered, the mean accepted length is "
        f"{1 + drafted.accepted_tokens / drafted.drafts:.3g}: {undrafted} of {steps} steps drafted nothing, "
        f"{discarded} tokens lay behind an end and were thrown away"
    )
    return replace(part, discarded_tokens=Figure(discarded), delivered_explained=told)


def _tokens_per_step(answers: Sequence[Generation]) -> float | None:
    steps = count_steps(answers)
    return sum(len(answer.token_ids) for answer in answers) / steps if steps else None


def _refuse_contradictions(counted: Speculation, gamma: int | None) -> None:
    positions = counted.accepted_per_position
    if min(counted.drafts, counted.draft_tokens, counted.accepted_tokens, *positions) < 0:
        raise Contradiction(f"a counter ran backwards, the engine was reset meanwhile: {counted}")
    if counted.draft_tokens and not counted.drafts:
        raise Contradiction(f"{counted.draft_tokens} tokens were drafted in no draft at all")
    if counted.accepted_tokens > counted.draft_tokens:
        raise Contradiction(f"more tokens accepted ({counted.accepted_tokens}) than drafted ({counted.draft_tokens})")
    if positions and sum(positions) != counted.accepted_tokens:
        raise Contradiction(
            f"accepted per position {positions} does not add up to {counted.accepted_tokens} accepted tokens"
        )
    if any(later > earlier for earlier, later in pairwise(positions)):
        raise Contradiction(f"a later draft position was accepted more often than an earlier one: {positions}")
    if positions and positions[0] > counted.drafts:
        raise Contradiction(f"the first position was accepted {positions[0]} times in {counted.drafts} drafts")

    if gamma is not None and counted.draft_tokens > counted.drafts * gamma:
        raise Contradiction(f"{counted.draft_tokens} tokens in {counted.drafts} drafts are more than γ = {gamma} each")
    if gamma is not None and any(positions[gamma:]):
        raise Contradiction(f"a position past γ = {gamma} was accepted: {positions}")
