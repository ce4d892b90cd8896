"""How much of what was drafted the target accepted, from the engine's own counters, and what of it was delivered.

Definitions as in vLLM's metrics (vllm/v1/spec_decode/metrics.py): acceptance rate = accepted / drafted tokens; mean
accepted length = 1 + accepted tokens / drafts, the bonus token included. The marginal rate of a position is its share
of all drafts, the conditional one its share of the drafts whose tokens before it were accepted.

Accepted is not delivered: a token accepted behind an EOS is counted by the engine and thrown away. So delivered tokens
a step stand beside, with the difference taken apart. No figure is ever clamped: counters that contradict each other
are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from pytest_specdec.generation import Generation, Speculation, count_steps
from pytest_specdec.metrics.rounds import Contradiction, Rounds
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import AcceptancePart, CategoryPart

Value = TypeVar("Value")
NO_SPECULATION = "the engine does not speculate"
NOTHING_DRAFTED = "nothing was drafted"
NO_POSITIONS = "the engine does not count by position"
NOT_BY_REQUEST = "the engine counts over all requests together"
NO_STEPS = "the engine does not tell in which steps tokens came"
SEVERAL_STEPS = "more tokens came than accepted ones and one a chunk: a chunk carried several steps"


@dataclass(frozen=True)
class Acceptance:
    """Rates of one measurement. `per_position`: share of drafts whose token at this position was accepted, marginal."""

    rate: float
    mean_accepted_length: float
    per_position: tuple[float, ...]


@dataclass(frozen=True)
class Delivery:
    """What became of the accepted tokens. Every step gives one token of the target's own beside the accepted ones.

    `delivered`: token ids handed out. `steps`: chunks in which they came. `drafts`, `accepted`: the engine's counters.
    """

    delivered: int
    steps: int
    drafts: int
    accepted: int

    @property
    def per_step(self) -> float:
        """Delivered tokens a step."""
        return self.delivered / self.steps

    @property
    def discarded(self) -> int:
        """Tokens accepted or added by the target, but not delivered; negative if a chunk carried several steps."""
        return self.steps + self.accepted - self.delivered

    @property
    def undrafted_steps(self) -> int:
        """Steps in which nothing was drafted, such as the prompt's own."""
        return self.steps - self.drafts

    def in_words(self) -> str:
        """Why delivered tokens a step differ from the mean accepted length."""
        length = 1 + self.accepted / self.drafts
        return (
            f"{self.per_step:.3g} tokens a step were delivered, the mean accepted length is {length:.3g}: "
            f"{self.undrafted_steps} of {self.steps} steps drafted nothing, "
            f"{self.discarded} tokens lay behind an end and were thrown away"
        )


def acceptance(counted: Speculation | None) -> Acceptance | None:
    """None where nothing was drafted. Raises Contradiction, a ValueError, if the counters contradict each other."""
    if counted is None:
        return None
    _refuse_contradictions(counted)
    if counted.drafts == 0 or counted.draft_tokens == 0:
        return None
    return Acceptance(
        rate=counted.accepted_tokens / counted.draft_tokens,
        mean_accepted_length=1 + counted.accepted_tokens / counted.drafts,
        per_position=tuple(accepted / counted.drafts for accepted in counted.accepted_per_position),
    )


def conditional(counted: Speculation) -> tuple[float | None, ...]:
    """For each position the share accepted among drafts accepted up to it; None where there were none such."""
    reached = (counted.drafts, *counted.accepted_per_position)
    return tuple(later / earlier if earlier else None for earlier, later in pairwise(reached))


def per_token(counted: Speculation | None) -> float | None:
    """The chance that a verified draft token is accepted, the α of the speed-up model; None without positions.

    Most likely value if that chance is the same at each position: acceptances over trials, where a token is tried if
    all before it were accepted.
    """
    if counted is None or not counted.accepted_per_position or not counted.drafts:
        return None
    trials = counted.drafts + sum(counted.accepted_per_position[:-1])
    return sum(counted.accepted_per_position) / trials


def acceptance_part(rounds: Rounds, gamma: int | None, categories: Sequence[str | None] = ()) -> AcceptancePart:
    """The record's speculation: raw counters over the timed rounds, rates, and delivered tokens a step.

    `gamma`: the most draft tokens of a step, None where there is no bound. `categories`: for each request what kind of
    question it is. Raises Contradiction.
    """
    counted = rounds.speculation
    rates = acceptance(counted)
    if counted is not None and gamma is not None:
        _refuse_beyond(counted, gamma)
    why = NO_SPECULATION if counted is None else NOTHING_DRAFTED
    return replace(
        _delivery_part(rounds, counted if rates else None, why),
        drafts=Figure(counted.drafts if counted else None, why),
        draft_tokens=Figure(counted.draft_tokens if counted else None, why),
        accepted_tokens=Figure(counted.accepted_tokens if counted else None, why),
        accepted_per_position=Figure(counted.accepted_per_position if counted else None, why),
        rate=Figure(rates.rate if rates else None, why),
        mean_accepted_length=Figure(rates.mean_accepted_length if rates else None, why),
        mean_accepted_length_without_bonus=Figure(rates.mean_accepted_length - 1 if rates else None, why),
        marginal=_by_position(rates, rates.per_position if rates else (), why),
        conditional=_by_position(rates, conditional(counted) if counted else (), why),
        rate_per_request=_by_request(rounds, NOT_BY_REQUEST if rates else why),
        by_category=_by_category(rounds, categories, NOT_BY_REQUEST if rates else why) if counted is not None else (),
    )


def _by_position(rates: Acceptance | None, values: tuple[Value, ...], why: str) -> Figure[tuple[Value, ...]]:
    if rates is None or not rates.per_position:
        return Figure(None, NO_POSITIONS if rates else why)
    return Figure(values)


def _by_request(rounds: Rounds, reason: str) -> Figure[tuple[float | None, ...]]:
    """Accepted over drafted tokens of each request, over the rounds; None for one in which nothing was drafted."""
    answers = [answer for run in rounds.runs for answer in run.generations]
    if not answers or any(answer.draft_tokens is None or answer.accepted_tokens is None for answer in answers):
        return Figure(None, reason)
    _refuse_other_totals(rounds, answers)
    by_request = zip(*(run.generations for run in rounds.runs), strict=True)
    return Figure(tuple(map(_acceptance_of, by_request)))


def _by_category(rounds: Rounds, categories: Sequence[str | None], reason: str) -> tuple[CategoryPart, ...]:
    """A part for each kind, from its answers in all rounds. `reason`: why there is no rate where none is counted."""
    answers: dict[str, list[Generation]] = {}
    for run in rounds.runs:
        for kind, answer in zip(categories, run.generations, strict=False):
            answers.setdefault(kind or "none", []).append(answer)
    return tuple(_category(kind, each, len(rounds.runs), reason) for kind, each in sorted(answers.items()))


def _category(kind: str, answers: Sequence[Generation], rounds: int, reason: str) -> CategoryPart:
    rate, per_step = _acceptance_of(answers), _ratio(answers)
    return CategoryPart(
        name=kind,
        requests=len(answers) // rounds,
        rate=Figure(rate, reason if any(each.draft_tokens is None for each in answers) else NOTHING_DRAFTED),
        delivered_tokens_per_step=Figure(per_step, NO_STEPS),
    )


def _acceptance_of(answers: Sequence[Generation]) -> float | None:
    drafted = sum(answer.draft_tokens or 0 for answer in answers)
    return sum(answer.accepted_tokens or 0 for answer in answers) / drafted if drafted else None


def _refuse_other_totals(rounds: Rounds, answers: Sequence[Generation]) -> None:
    """What is counted by request adds up to what is counted over all."""
    counted = rounds.speculation
    accepted = sum(answer.accepted_tokens or 0 for answer in answers)
    if counted is not None and accepted > counted.accepted_tokens:
        raise Contradiction(f"{accepted} tokens accepted by request are more than {counted.accepted_tokens} in all")


def _delivery_part(rounds: Rounds, counted: Speculation | None, why: str) -> AcceptancePart:
    """Delivered tokens a step. `counted`: None where there are no rates, for the reason `why`."""
    steps = _steps(rounds)
    if steps is None:
        return missing(AcceptancePart, NO_STEPS)
    part = AcceptancePart(
        delivered_tokens_per_step=Figure(rounds.tokens / steps),
        delivered_tokens_per_step_per_request=Figure(_per_request(rounds)),
        discarded_tokens=Figure(None, why),
    )
    if counted is None:
        return part
    delivery = Delivery(rounds.tokens, steps, counted.drafts, counted.accepted_tokens)
    if delivery.discarded < 0 or delivery.undrafted_steps < 0:
        return replace(part, discarded_tokens=Figure(None, _explain(delivery)))
    return replace(part, discarded_tokens=Figure(delivery.discarded), delivered_explained=delivery.in_words())


def _explain(delivery: Delivery) -> str:
    if delivery.discarded < 0:
        return SEVERAL_STEPS
    return f"{-delivery.undrafted_steps} drafts delivered no token at all, so chunks are not the engine's steps"


def _steps(rounds: Rounds) -> int | None:
    """Chunks of all requests; None unless every delivered token came in one."""
    answers = [answer for run in rounds.runs for answer in run.generations]
    if any(answer.token_ids and not answer.chunks for answer in answers):
        return None
    return count_steps(answers) or None


def _per_request(rounds: Rounds) -> tuple[float | None, ...]:
    """A ratio of totals over the rounds for each request; None for one that never delivered."""
    return tuple(_ratio(answers) for answers in zip(*(run.generations for run in rounds.runs), strict=True))


def _ratio(answers: Sequence[Any]) -> float | None:
    steps = count_steps(answers)
    return sum(len(answer.token_ids) for answer in answers) / steps if steps else None


def _refuse_contradictions(counted: Speculation) -> None:
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


def _refuse_beyond(counted: Speculation, gamma: int) -> None:
    if counted.draft_tokens > counted.drafts * gamma:
        raise Contradiction(f"{counted.draft_tokens} tokens in {counted.drafts} drafts are more than γ = {gamma} each")
    if any(counted.accepted_per_position[gamma:]):
        raise Contradiction(f"a position past γ = {gamma} was accepted: {counted.accepted_per_position}")
