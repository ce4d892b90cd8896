"""What a green gate is worth: what its answers went through, what they read of the KV cache, and how it drafted.

A fault that a workload cannot meet is not seen, green or not; a scenario's `demand` names what must have happened. A
fault of a cache entry that no later step reads changes no token; which are read is known of a pair with memory. The
share of planted faults that turned a verdict red is measured (docs/detection.md), and told at the most tokens that are
no more than the answers'.

Right output proves nothing of speculation that has stopped midway. A draft model that falls silent, drafts less, or has
nothing accepted where it had before, is a failure; a lookup may find nothing, and a grammar may permit no drafts to its
own requests, which is a warning. γ that follows the batch's size, and may be 0, is neither.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from pytest_specdec.engines.methods import BY_BATCH_SIZE, LOOKUPS
from pytest_specdec.engines.server.plan import UNKNOWN_METHOD
from pytest_specdec.engines.spec import OTHER_VOCABULARY, SCHEDULE, EngineSpec
from pytest_specdec.generation import Generation, Run, Runs, Speculation, count_steps, steps_of, sum_told
from pytest_specdec.models import parse
from pytest_specdec.models.memory import Memory
from pytest_specdec.models.recipe import ConstructedRecipe, SmolLM2Recipe, TargetRecipe
from pytest_specdec.models.truth import reads_of
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import CoveragePart, DetectionPart, ExercisedPart, ReadSharesPart
from pytest_specdec.verdict.limits import agreement, reshaping_fields
from pytest_specdec.verdict.words import round_name
from pytest_specdec.workloads.workload import Request

UNTOLD = "the engine does not tell"
NO_SIZE = "the engine tells no such size"


def exercised_part(
    requests: Sequence[Request], runs: Sequence[Run], details: Mapping[str, Any], context: int, gamma: int | None
) -> ExercisedPart:
    """Of everything that was decoded. `details`, `context`: the engine's own sizes; 0 where it tells no context."""
    answers = [each for run in runs for each in run.generations]
    bursts = [burst for each in answers for burst in _bursts(each)]
    ended, near = [each for each in answers if each.finish_reason == "stop"], 1 + (gamma or 0)
    lengths = {"max_tokens"} if len({request.max_tokens for request in requests}) > 1 else set()
    return ExercisedPart(
        **_steps(runs, gamma),
        ends_in_burst=sum(bool(each.chunks) and each.chunks[-1].tokens > 1 for each in ended),
        block_edges=_edges(bursts, details.get("block_size")),
        chunk_edges=_edges(bursts, details.get("prefill_chunk")),
        context_edges=sum(burst.stop + near > context for burst in bursts) if context else 0,
        longest_prompt=max((len(each.prompt_ids) for each in answers), default=0),
        longest_output=max((len(each.token_ids) for each in answers), default=0),
        cached_tokens=Figure(sum_told(run.prefix_cache_hits for run in runs), UNTOLD),
        cached_answers=Figure(sum_told(map(_cached_answers, runs)), UNTOLD),
        preemptions=Figure(sum_told(run.preemptions for run in runs), UNTOLD),
        fields=tuple(sorted({name for request in requests for name in _fields(request)} | lengths)),
    )


def _bursts(answer: Generation) -> Iterator[range]:
    """The positions, of prompt and answer, of each step that gave several tokens."""
    began = len(answer.prompt_ids)
    return (range(began + step.start, began + step.stop) for step in steps_of(answer.chunks) if len(step) > 1)


def _edges(bursts: Sequence[range], size: int | None) -> Figure[int]:
    return Figure(sum(burst[0] // size != burst[-1] // size for burst in bursts) if size else None, NO_SIZE)


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
    total = Speculation.over(runs)
    if total is None or not total.accepted_per_position or not gamma:
        return dict.fromkeys(("none_accepted", "some_accepted", "all_accepted", "drafted_share"), Figure(None, UNTOLD))
    first, last = total.accepted_per_position[0], (*total.accepted_per_position, *(0,) * gamma)[gamma - 1]
    steps = count_steps(answer for run in runs for answer in run.generations)
    return {
        "none_accepted": Figure(total.drafts - first),
        "some_accepted": Figure(first - last),
        "all_accepted": Figure(last),
        "drafted_share": Figure(total.drafts / steps if steps else None, UNTOLD),
    }


def _fields(request: Request) -> Iterator[str]:
    yield from reshaping_fields(request)
    yield from (name for name in ("stop", "stop_token_ids", "min_tokens") if getattr(request, name))
    if not request.ignore_eos:
        yield "eos"
    if request.whole_conversation is not None and request.whole_conversation.template:
        yield "chat_template_kwargs"


DEMANDS: Mapping[str, tuple[str, str]] = {
    "rejection": ("none_accepted some_accepted", "take a poorer drafter"),
    "some_accepted": ("some_accepted", "take γ = 3 or more, and a drafter that is right at times"),
    "all_accepted": ("all_accepted", "take a better drafter, or a smaller γ"),
    "eos_in_burst": ("ends_in_burst", "set ignore_eos = false or a stop, and take more prompts"),
    "block_edge": ("block_edges", "take longer answers, or smaller blocks"),
    "chunk_edge": ("chunk_edges", "take a smaller max_num_batched_tokens, or longer prompts"),
    "context_edge": ("context_edges", "let prompt and max_tokens fill the context (max_model_len)"),
    "cached_prompt": ("cached_tokens", 'set prefix_cache = "keep", and prefix caching on'),
    "cached_answer": ("cached_answers", "give follow_ups, prefix caching on, and answers longer than a cache block"),
    "preemption": ("preemptions", "give the engine fewer cache blocks, or take longer answers"),
}


def unmet(demand: Sequence[str], part: ExercisedPart) -> list[str]:
    """A sentence for each thing demanded that did not happen, with what to change."""
    happened = {name: getattr(figure, "value", figure) for name, figure in vars(part).items()}
    return [
        f"{name!r} was demanded and did not happen: {advice}"
        for name, (counts, advice) in DEMANDS.items()
        if name in demand and not any(happened[count] for count in counts.split())
    ]


LOW = 0.5
NO_MEMORY = "the target is no constructed pair with memory (memory=N), so which entries decide a token is not known"
TOO_SHORT = "prompts of fewer than {} tokens: what the pair must emit, and which faults would be seen, is not known"
NONE_READ = "no entry was written there that a step could have read"
Layer: TypeAlias = tuple[int, ...]  # how often each entry is read
MEMORY, ONCE, PLAIN, TEXT = "memory", "once", "plain", "text"
OFTEN = 4  # readers of a KV head of the pair with memory; of the other one, each is read once
MEASURED = Memory(reach=24, readers=2, bits=2, codes=4)
LEVEL = 0.95
SOUND = "none: the sound engine again"
Shares = Mapping[str, tuple[float, float]]


def coverage_part(target: str, answers: Sequence[Generation]) -> CoveragePart:
    """Of one round of answers."""
    recipe = parse(target)
    if not isinstance(recipe, ConstructedRecipe) or recipe.memory is None:
        return missing(CoveragePart, NO_MEMORY)
    lengths = sorted({(len(each.prompt_ids), len(each.token_ids)) for each in answers if each.token_ids})
    reads = [reads_of(target, *length) for length in lengths]
    prompt = _read_shares(chain.from_iterable(each.prompt for each in reads))
    output = _read_shares(chain.from_iterable(each.output for each in reads))
    few = [*_few("prompts", prompt), *_few("answers", output)]
    few += [] if reads_whole_codes(target, answers) else [TOO_SHORT.format(recipe.memory.reach + 1)]
    why = f"up to {recipe.memory.reach} tokens are read back, after prompts of {_range(at for at, _ in lengths)} tokens"
    low = f"{'; '.join(few)}: {why} and in answers of {_range(at for _, at in lengths)}" if few else None
    return CoveragePart(prompt=prompt, output=output, low=low)


def reads_whole_codes(target: str, answers: Iterable[Generation]) -> bool:
    """Whether each prompt is longer than what the target reads back: else its output is not known, and what a verdict
    sees there was not measured."""
    recipe = parse(target)
    memory = recipe.memory if isinstance(recipe, ConstructedRecipe) else None
    return memory is None or all(len(each.prompt_ids) > memory.reach for each in answers)


def _read_shares(layers: Iterable[Layer]) -> Figure[ReadSharesPart]:
    told = [layer for layer in layers if layer]
    if not told:
        return Figure(None, NONE_READ)
    once, twice = ([sum(reads >= times for reads in layer) / len(layer) for layer in told] for times in (1, 2))
    return Figure(
        ReadSharesPart(once_min=min(once), once_median=median(once), twice_min=min(twice), twice_median=median(twice))
    )


def _few(name: str, shares: Figure[ReadSharesPart]) -> list[str]:
    if shares.value is None or shares.value.once_median >= LOW:
        return []
    return [f"only {shares.value.once_median:.0%} of the KV entries of {name} were read after they were written"]


def _range(numbers: Iterable[int]) -> str:
    told = sorted(set(numbers))
    return str(told[0]) if len(told) == 1 else f"{told[0]} to {told[-1]}"


def kind_of(target: str) -> str | None:
    """Of which measured kind a model is: a constructed pair with memory or without, SmolLM2; None for all others.

    Not of any kind is what reads less of a token than the measured pair, has close runners-up, or was cut.
    """
    recipe = parse(target)
    if recipe == SmolLM2Recipe():
        return TEXT
    if not isinstance(recipe, TargetRecipe) or recipe.margin is not None or recipe.layers_share is not None:
        return None
    if (memory := recipe.memory) is None:
        return PLAIN
    times = memory.readers / recipe.shape.kv_heads  # a KV head is read
    if times < 1 or memory.bits < MEASURED.bits or memory.codes < MEASURED.codes:
        return None
    return MEMORY if times >= OFTEN else ONCE


def would_have_seen(kind: str, tokens: int) -> DetectionPart | None:
    """What a green verdict on answers of so many tokens says of faults; None where so few were not measured."""
    measured = _table().get(f"transformers {kind}", {"faults": {}})
    known = {row["tokens"] for rows in measured["faults"].values() for row in rows}
    within = max((each for each in known if each <= tokens), default=None)
    if within is None:
        return None
    told = {fault: [row for row in rows if row["tokens"] <= within][-1] for fault, rows in measured["faults"].items()}
    shares: Shares = {fault: tuple(row["interval"]) for fault, row in told.items() if fault != SOUND}
    said = _statement(measured["target"], within, shares)
    return DetectionPart(measured_on=measured["target"], tokens=within, shares=shares, statement=said)


@cache
def _table() -> Mapping[str, Any]:
    return dict(json.loads(Path(__file__).with_name("detection.json").read_text("utf-8")))


def _statement(target: str, tokens: int, shares: Shares) -> str:
    seen = [f"{fault} ≥ {low:.2f}" for fault, (low, _) in shares.items() if low > 0]
    unseen = [fault for fault, (low, _) in shares.items() if low == 0]
    told = f"of faults planted into {target}, {tokens} tokens an answer, a verdict was red on "
    told += f"these shares, by {100 * LEVEL:.0f} % intervals: {'; '.join(seen)}" if seen else "none"
    return f"{told}. Never on: {'; '.join(unseen)}" if unseen else told


MAY_FIND_NONE = (*LOOKUPS, UNKNOWN_METHOD)
VARY_LENGTH = (BY_BATCH_SIZE, OTHER_VOCABULARY, SCHEDULE, "assistant_confidence_threshold")
STALE_LEVEL = 1e-6  # the chance of no acceptance in so many drafts, at the rate seen before


@dataclass(frozen=True)
class Drafting:
    """Whether one engine drafted throughout `runs`.

    `accepted_before`: the share of drafted tokens that was accepted when this engine was last measured; None if never.
    `requests`: what was asked in each run, and `at_once`, how many of them; None where moments of their own say when.
    """

    spec: EngineSpec
    runs: Runs
    at_once: int | None
    accepted_before: float | None = None
    requests: Sequence[Request] = ()

    @property
    def failures(self) -> list[str]:
        """What makes the gate red: nothing drafted at all; and of a draft model, which can always draft, any gap."""
        if not self.spec.speculates or self._asked_for_none:
            return []
        if not self._counted:
            return [self._dead()]
        if self.spec.method in MAY_FIND_NONE:
            return []
        return [*self._silent(self._masked), *([] if self._masked else self._short()), *self._stale()][:3]

    @property
    def warnings(self) -> list[str]:
        """Silence that may be the text's or a grammar's, and drafts that a grammar may have cut short.

        What is red already, as nothing drafted at all, is not told again; where γ may be 0 that is no failure.
        """
        if not self._counted:
            return [self._dead()] if self.spec.speculates and self._asked_for_none else []
        if self.spec.method in MAY_FIND_NONE:
            return [*self._silent(), *self._unmatched()][:1] + self._risen()
        if not self._masked:
            return []
        others = frozenset(range(len(self.requests))) - self._masked
        silent = [*self._silent(others)] or ([] if self.failures else [*self._silent()])
        return [each for each in silent if each not in self.failures][:1] + self._short()

    @property
    def _masked(self) -> frozenset[int]:
        """The requests of which a grammar takes drafts away that it does not permit, before they are verified."""
        return frozenset(at for at, each in enumerate(self.requests) if each.sampling.get("structured_outputs"))

    @property
    def _asked_for_none(self) -> bool:
        """Whether γ is 0 on purpose where so many requests are under way; vLLM has the last γ in a gap and beyond.

        Of an open load any number may be, as far as the engine has places.
        """
        schedule = sorted(self.spec.speculative_options.get(BY_BATCH_SIZE) or (), key=lambda entry: entry[0])
        places = int(self.spec.options.get("max_num_seqs") or sys.maxsize)
        reached = [entry[-1] for entry in schedule if entry[0] <= min(self.at_once or sys.maxsize, places)]
        return reached[-1:] == [0] if self.at_once else 0 in reached

    @property
    def _counted(self) -> list[Speculation]:
        return [run.speculation for run in self.runs.values() if run.speculation and run.speculation.draft_tokens]

    @property
    def _gamma(self) -> int:
        return self.spec.gamma or 1

    def _dead(self) -> str:
        tokens = sum(run.tokens for run in self.runs.values())
        return (
            f"nothing was drafted in {tokens} tokens: the engine decoded without speculation "
            f"(method {self.spec.method}, γ = {self.spec.gamma}); equal output proves nothing then"
        )

    def _silent(self, excused: frozenset[int] = frozenset()) -> Iterator[str]:
        """Rounds and requests in which nothing was drafted, and rounds in which most steps drafted nothing.

        Those of excused requests are no silence; every draft may have been of the others.
        """
        for number, run in self.runs.items():
            name = round_name(number)
            counted = run.speculation
            answers = {at: each for at, each in enumerate(run.generations) if at not in excused}
            long = [at for at, each in answers.items() if len(each.token_ids) > self._gamma]
            silent = [at for at in long if answers[at].draft_tokens == 0]
            if counted is None or not long:
                continue
            whole = sum(len(each.token_ids) for each in answers.values())
            steps = count_steps(answers.values()) or whole - counted.accepted_tokens  # each gives one of the target's
            if not counted.drafts:
                yield f"nothing was drafted in {name}, in {run.tokens} tokens"
            elif silent:
                tokens = len(answers[silent[0]].token_ids)
                which = f"{len(silent)} requests of {name}, {silent[0]} the first"
                yield f"nothing was drafted for {which}, in {tokens} tokens"
            elif 2 * (undrafted := steps - counted.drafts) > steps and undrafted > (self._gamma + 2) * len(answers):
                yield f"{undrafted} of {steps} steps of {name} drafted nothing: did drafting stop midway?"

    def _short(self) -> list[str]:
        """Fewer tokens in each draft than were asked for; the last drafts of an answer may be cut short."""
        total = Speculation.over(self.runs.values())
        varies = self.spec.gamma is None or any(name in self.spec.speculative_options for name in VARY_LENGTH)
        if total is None or varies:
            return []
        answers = sum(len(run.generations) for run in self.runs.values())
        lacking = total.drafts * self._gamma - total.draft_tokens
        if total.draft_tokens > total.drafts * (self._gamma - 1) or lacking <= 2 * self._gamma * answers:
            return []
        step = f"{total.draft_tokens / total.drafts:.3g} tokens"
        return [f"{step} were drafted a step, throughout, where γ = {self._gamma}"]

    def _stale(self) -> Iterator[str]:
        known = max([*map(_rate, self._counted), self.accepted_before or 0.0])
        for number, run in self.runs.items():
            each = run.speculation
            if each and each.drafts and not each.accepted_tokens and (1 - known) ** each.drafts < STALE_LEVEL:
                name = round_name(number)
                told = f"nothing of {each.draft_tokens} drafted tokens was accepted in {name}, where {known:.0%} were"
                yield f"{told} in other rounds: is the drafter's state right after the engine woke?"

    def _unmatched(self) -> Iterator[str]:
        """Nothing was right: vLLM's lookup on a GPU drafts γ tokens a step whether or not it finds any."""
        total = Speculation.over(self.runs.values())
        if total is not None and not total.accepted_tokens:
            asked = "did lookup find anything?" if self.spec.method in LOOKUPS else "is it the right drafter?"
            yield f"nothing of {total.draft_tokens} drafted tokens was accepted: {asked}"

    def _risen(self) -> list[str]:
        """A method that remembers earlier rounds accepts more in each; the first round is what a user sees."""
        rates = list(map(_rate, self._counted))
        if self.spec.method != "suffix" or len(rates) < 2 or rates[-1] <= rates[0]:
            return []
        rose = f"acceptance rose from {rates[0]:.1%} in the first round to {rates[-1]:.1%}"
        return [f"{rose}: the method remembers answers"]


def _rate(counted: Speculation) -> float:
    return counted.accepted_tokens / counted.draft_tokens
