"""The right answer: which token follows which, computed without torch and without building the model.

A pair's map π is one random cycle through all ordinary tokens (every id but pad, bos and eos), so an output does not
repeat before it has visited them all, and never ends by accident. Special ids continue as tokens 3, 4 and 5 do. The
very lists that are computed here are written into the checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache

from pytest_specdec.generation import Speculation
from pytest_specdec.models.errors import ModelError
from pytest_specdec.models.recipe import (
    SPECIAL_IDS,
    Constructed,
    ConstructedRecipe,
    DraftRecipe,
    EagleRecipe,
    Recipe,
    TargetRecipe,
)
from pytest_specdec.models.reference import parse


def cycle(recipe: ConstructedRecipe) -> tuple[int, ...]:
    """The ordinary tokens, 3 to vocab − 1, in the order in which π visits them.

    A model of another vocabulary walks the same cycle: it passes over tokens that it lacks, and visits its additional
    ones at the end. So two vocabularies still agree on most tokens that they share.
    """
    return _cycle(recipe.base_vocab, recipe.vocab, recipe.map_seed)


def next_map(recipe: Constructed) -> list[int]:
    """For every id below `vocab`, the id with which this model continues: π for a target, its own map for a drafter."""
    return list(_next_map(recipe))


def runner_up_map(recipe: TargetRecipe) -> list[int]:
    """For every id below `vocab`, ρ: the token half the cycle further on than π. Never π's, never a special id."""
    order = cycle(recipe)
    return _with_special_ids(_successors(order, 1 + len(order) // 2), recipe.vocab)


def agreement(target: Constructed, draft: Constructed) -> float:
    """The share of the ordinary tokens that both models know on which they continue alike, from 0 to 1."""
    ours, theirs = _next_map(target), _next_map(draft)
    shared = range(SPECIAL_IDS, min(len(ours), len(theirs)))
    return sum(ours[token] == theirs[token] for token in shared) / len(shared)


def expected_continuation(model: Recipe | str, prompt_ids: Sequence[int], n: int) -> list[int]:
    """The `n` token ids that the model greedily emits after `prompt_ids` (ids below its vocab, at least one).

    Raises ModelError where the model is not a constructed one, the prompt is empty, or an id lies outside the
    vocabulary.
    """
    following = _next_map(_constructed(model))
    outside = [token for token in prompt_ids if not 0 <= token < len(following)]
    if not prompt_ids or outside:
        wrong = f"token id {outside[0]} lies outside its {len(following)} tokens" if outside else "the prompt is empty"
        raise ModelError(f"no expected continuation for {_label(model)}: {wrong}")
    token, emitted = prompt_ids[-1], []
    for _ in range(n):
        token = following[token]
        emitted.append(token)
    return emitted


def expected_speculation(
    target: Constructed | str, draft: Constructed | str, prompts: Sequence[Sequence[int]], n: int, gamma: int
) -> Speculation:
    """What an engine counts when it emits `n` tokens after each prompt, `gamma` tokens drafted a round.

    The first token comes from the prompt's own pass; each round then drafts `gamma` tokens, keeps those before the
    first disagreement, and emits one of the target's. The last round counts in full, though it may reach beyond `n`.
    """
    drafting = _next_map(_constructed(draft))
    rounds: list[int] = []
    for prompt in prompts:
        rounds += _accepted_by_round(drafting, expected_continuation(target, prompt, n + gamma), n, gamma)
    positions = tuple(sum(accepted > position for accepted in rounds) for position in range(gamma))
    return Speculation(len(rounds), len(rounds) * gamma, sum(rounds), positions)


def _constructed(model: Recipe | str) -> Constructed:
    recipe = parse(model) if isinstance(model, str) else model
    if not isinstance(recipe, ConstructedRecipe):
        raise ModelError(f"{_label(model)} has no known continuation; only constructed models have one")
    return recipe


def _label(model: Recipe | str) -> str:
    return repr(model) if isinstance(model, str) else model.name


@lru_cache(maxsize=16)
def _cycle(base_vocab: int, vocab: int, map_seed: int) -> tuple[int, ...]:
    order = list(range(SPECIAL_IDS, base_vocab))
    random.Random(f"map:{map_seed}").shuffle(order)
    additional = list(range(base_vocab, vocab))
    random.Random(f"additional:{map_seed}").shuffle(additional)
    return (*(token for token in order if token < vocab), *additional)


@lru_cache(maxsize=16)
def _next_map(recipe: Constructed) -> tuple[int, ...]:
    following = _successors(cycle(recipe), 1)
    if not isinstance(recipe, TargetRecipe):
        following |= _disagreements(recipe, following)
    return tuple(_with_special_ids(following, recipe.vocab))


def _successors(order: Sequence[int], steps: int) -> dict[int, int]:
    return {token: order[(place + steps) % len(order)] for place, token in enumerate(order)}


def _disagreements(recipe: DraftRecipe | EagleRecipe, following: Mapping[int, int]) -> dict[int, int]:
    """The disagreeing tokens hand their successors around among themselves: none keeps its own."""
    draw = random.Random(f"draft:{recipe.seed}")
    chosen = _chosen(cycle(recipe), recipe.alpha, draw)
    if len(chosen) == 1:
        return {chosen[0]: following[following[chosen[0]]]}
    return {token: following[other] for token, other in zip(chosen, chosen[1:] + chosen[:1], strict=True)}


def _chosen(order: Sequence[int], alpha: float, draw: random.Random) -> list[int]:
    """Exactly round((1 − alpha)·n) tokens, at random places of the cycle, in random order."""
    count = round((1 - alpha) * len(order))
    runs = _agreeing_runs(count, len(order) - count, alpha) if count else []
    draw.shuffle(runs)
    at, chosen = draw.randrange(len(order)), []
    for run in runs:
        chosen.append(order[(at + run) % len(order)])
        at += run + 1
    draw.shuffle(chosen)
    return chosen


def _agreeing_runs(count: int, agreeing: int, alpha: float) -> list[int]:
    """Lengths of the `count` runs of agreement: count·alphaᵏ of them are k or longer, as it would be on average.

    So draft position k is accepted with alphaᵏ along the cycle itself, not only over many draws of it.
    """
    runs = [0] * count
    longer = float(count)
    while agreeing:
        longer *= alpha
        grown = min(agreeing, max(1, round(longer)))
        runs[:grown] = [length + 1 for length in runs[:grown]]
        agreeing -= grown
    return runs


def _accepted_by_round(drafting: Sequence[int], emitted: Sequence[int], n: int, gamma: int) -> list[int]:
    rounds, at = [], 0  # `at`: the last token that is certain
    while at + 1 < n:
        accepted = 0
        while accepted < gamma and drafting[emitted[at + accepted]] == emitted[at + accepted + 1]:
            accepted += 1
        rounds.append(accepted)
        at += accepted + 1
    return rounds


def _with_special_ids(following: dict[int, int], vocab: int) -> list[int]:
    return [following[token + SPECIAL_IDS if token < SPECIAL_IDS else token] for token in range(vocab)]
