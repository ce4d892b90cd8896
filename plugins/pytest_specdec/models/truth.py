"""What is known without any engine: the tokens of an answer, what of its drafts is accepted, what of the cache is read.

Exact means equal to what the engine counts, the last step included, which the length limit cuts. There engines differ,
and each backend says of itself which of COUNTINGS is its own (`counting` of its description):

- vLLM, and SGLang where it drafts a chain, take the first token from the prompt's own pass, draft γ tokens in every
  later step, and count all that agree, though the answer ends within them. (Near `max_model_len` vLLM drafts fewer.)
- Transformers drafts from the prompt on, and never more than one token less than the answer still wants; a step that
  drafts nothing is none. (Prompt lookup drafts up to γ there, and only what is kept counts as accepted.)
- The fake engine drafts from the prompt on, counts γ tokens in every step and accepts none that is not wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pytest_specdec.errors import ModelError
from pytest_specdec.generation import Speculation
from pytest_specdec.models.maps import codes, following, further_map
from pytest_specdec.models.memory import Reader, readings
from pytest_specdec.models.recipe import Constructed, ConstructedRecipe, DFlashRecipe, TargetRecipe
from pytest_specdec.models.reference import parse

Next: TypeAlias = Callable[[Sequence[int], int], int]
Step: TypeAlias = tuple[int, int]  # tokens drafted, and how many of them accepted
Asked: TypeAlias = tuple[Sequence[int], int]  # a prompt, and how many tokens follow it


@dataclass(frozen=True)
class Counting:
    """How an engine counts the steps of one answer.

    `first`: tokens that come before the first draft. `cut`: whether no more is accepted than the answer still wants.
    `whole`: whether each step counts γ drafts all the same; else one that drafts nothing is no step.
    """

    first: int
    cut: bool
    whole: bool

    def steps(self, agrees: Sequence[bool], n: int, gamma: int) -> Iterator[Step]:
        """Step by step, where the drafter agrees or not with each of the `n` tokens and more."""
        emitted = self.first
        while emitted < n:
            wanted = min(gamma, n - emitted - 1) if self.cut else gamma
            accepted = [*agrees[emitted : emitted + wanted], False].index(False)
            if wanted or self.whole:
                yield gamma if self.whole else wanted, accepted
            emitted += accepted + 1


COUNTINGS = {
    "vllm": Counting(first=1, cut=False, whole=True),
    "transformers": Counting(first=0, cut=True, whole=False),
    "fake": Counting(first=0, cut=True, whole=True),
}


@dataclass(frozen=True)
class Reads:
    """How often each entry of the KV cache is read after it was written: [layer][position], counted in heads.

    `prompt` has the entries of the prompt, read by every step after the prompt's own pass; `output` those of the output
    tokens, all but the last, which no step reads.
    """

    prompt: tuple[tuple[int, ...], ...]
    output: tuple[tuple[int, ...], ...]


def why_unknown(model: str) -> str | None:
    """Why nobody knows beforehand what follows a prompt in this model; None for one whose every choice is certain."""
    recipe = parse(model)
    if not isinstance(recipe, ConstructedRecipe):
        return f"{model} is not a constructed model, so its right answers are not known beforehand"
    if isinstance(recipe, TargetRecipe) and (recipe.margin is not None or recipe.layers_share is not None):
        return f"{model} has a margin or a layers_share, so rounding decides some of its choices"
    return None


def ends_of(model: str) -> frozenset[int]:
    """The ordinary tokens after which a constructed target's answers end."""
    recipe = parse(model)
    return frozenset(recipe.end_ids) if isinstance(recipe, TargetRecipe) else frozenset()


def expected_continuation(model: str, prompt_ids: Sequence[int], n: int) -> list[int]:
    """The `n` token ids that the model greedily emits after `prompt_ids` (ids below its vocab).

    Raises ModelError where the model is not a constructed one, the prompt is empty or not longer than what the model
    reads back, or an id lies outside the vocabulary.
    """
    recipe = _require_constructed(model)
    _check_prompt(model, recipe, prompt_ids)
    after, ids = follower(recipe), list(prompt_ids)
    for _ in range(n):
        ids.append(after(ids, len(ids)))
    return ids[len(prompt_ids) :]


def expected_speculation(target: str, draft: str, prompts: Sequence[Sequence[int]], n: int, gamma: int) -> Speculation:
    """What vLLM counts when it emits `n` tokens after each prompt, `gamma` tokens drafted a step.

    A step keeps the drafts before the first disagreement and emits one token of the target's. A target as its own
    drafter foretells whatever is always right, as lookup in a prompt that holds the answer.
    """
    return expected_counters(COUNTINGS["vllm"], (target, draft), [(prompt, n) for prompt in prompts], gamma)


def expected_assistance(target: str, draft: str, prompts: Sequence[Sequence[int]], n: int, gamma: int) -> Speculation:
    """The same, as Transformers' assisted generation counts it."""
    return expected_counters(COUNTINGS["transformers"], (target, draft), [(prompt, n) for prompt in prompts], gamma)


def expected_counters(counting: Counting, pair: tuple[str, str], asked: Sequence[Asked], gamma: int) -> Speculation:
    """What an engine of this counting has counted after these answers of a target and its drafter.

    Raises ModelError as `expected_continuation` does, where the drafter lacks tokens of the target, and where its
    block is no longer than γ.
    """
    target, draft = pair
    drafter, vocab = _require_constructed(draft), _require_constructed(target).vocab
    if drafter.vocab < vocab:
        raise ModelError(f"{drafter.name} has {drafter.vocab} tokens, fewer than the target's {vocab}")
    if isinstance(drafter, DFlashRecipe) and gamma >= drafter.block:
        at_most = f"fills in {drafter.block - 1} tokens at a time"
        raise ModelError(f"{drafter.name} {at_most}: a γ of {gamma} is more, so name another")
    drafting = follower(drafter)
    steps: list[Step] = []
    for prompt, n in asked:
        _check_prompt(draft, drafter, prompt)
        ids = [*prompt, *expected_continuation(target, prompt, n + gamma)]
        agrees = [drafting(ids, at) == ids[at] for at in range(len(prompt), len(ids))]
        steps += counting.steps(agrees, n, gamma)
    positions = tuple(sum(accepted > position for _, accepted in steps) for position in range(gamma))
    return Speculation(len(steps), sum(drafted for drafted, _ in steps), sum(positions), positions)


def reads_of(model: str, prompt_tokens: int, output_tokens: int) -> Reads:
    """How often each entry of the model's KV cache is read; never, in a model without memory, with any effect.

    A foreign token's entry whose readings are of n different codes goes unseen with a chance of 2^(−n·bits).
    """
    recipe = _require_constructed(model)
    last = prompt_tokens + output_tokens - 2  # the position of the last token that a step takes in
    layers: list[list[Reader]] = readings(recipe.memory, recipe.shape) if recipe.memory else [[]] * recipe.shape.layers

    def count(entries: range) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(sum(prompt_tokens <= entry + reader.distance <= last for reader in layer) for entry in entries)
            for layer in layers
        )

    return Reads(count(range(prompt_tokens)), count(range(prompt_tokens, last + 1)))


def follower(recipe: Constructed) -> Next:
    """What the model emits after the ids before a place, which are more than it reads back."""
    if isinstance(recipe, DFlashRecipe):
        ahead = further_map(recipe, recipe.block - 1)
        return lambda ids, place: ahead[ids[place - recipe.block]]
    maps = following(recipe)
    if recipe.memory is None:
        return lambda ids, place: maps[0][ids[place - 1]]
    coded = [codes(recipe, recipe.memory, number) for number in recipe.memory.net_codes]
    reads = list(zip(recipe.memory.net, coded, strict=True))

    def next_of_class(ids: Sequence[int], place: int) -> int:
        chosen = 0
        for distance, code in reads:
            chosen ^= code[ids[place - 1 - distance]]
        return maps[chosen][ids[place - 1]]

    return next_of_class


def _check_prompt(model: str, recipe: Constructed, prompt: Sequence[int]) -> None:
    outside = [token for token in prompt if not 0 <= token < recipe.vocab]
    reach = recipe.block - 1 if isinstance(recipe, DFlashRecipe) else recipe.memory.reach if recipe.memory else 0
    wrong = None
    if not prompt:
        wrong = "the prompt is empty"
    elif outside:
        wrong = f"token id {outside[0]} lies outside its {recipe.vocab} tokens"
    elif len(prompt) <= reach:
        short = f"the prompt has {len(prompt)} tokens, and the model reads {reach} tokens back"
        wrong = f"{short}; give prompts of {reach + 1} tokens or more"
    if wrong:
        raise ModelError(f"no expected continuation for {model!r}: {wrong}")


def _require_constructed(model: str) -> Constructed:
    recipe = parse(model)
    if not isinstance(recipe, ConstructedRecipe):
        raise ModelError(f"{model!r} has no known continuation; only constructed models have one")
    return recipe
