"""The right answer: which token follows which, computed without torch and without building the model.

A pair's map π is one random cycle through all ordinary tokens (every id but pad, bos and eos), so an output does not
repeat before it has visited them all, and never ends by accident. Special ids continue as tokens 3, 4 and 5 do. The
very lists that are computed here are written into the checkpoints. A pair with memory has other maps, at the end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from pytest_specdec.errors import ModelError
from pytest_specdec.models.memory import Memory
from pytest_specdec.models.recipe import (
    SPECIAL_IDS,
    Constructed,
    ConstructedRecipe,
    DraftRecipe,
    EagleRecipe,
    TargetRecipe,
)

Maps = tuple[tuple[int, ...], ...]
NONE = -1  # where a draft vocabulary lacks the token: whatever is proposed is wrong


@lru_cache(maxsize=16)
def cycle(recipe: ConstructedRecipe) -> tuple[int, ...]:
    """The ordinary tokens, 3 to vocab − 1, in the order in which π visits them.

    A model of another vocabulary walks the same cycle: it passes over tokens that it lacks, and visits its additional
    ones at the end. So two vocabularies still agree on most tokens that they share.
    """
    order = list(range(SPECIAL_IDS, recipe.base_vocab))
    random.Random(f"map:{recipe.map_seed}").shuffle(order)
    additional = list(range(recipe.base_vocab, recipe.vocab))
    random.Random(f"additional:{recipe.map_seed}").shuffle(additional)
    return (*(token for token in order if token < recipe.vocab), *additional)


def next_map(recipe: Constructed) -> list[int]:
    """For every id below `vocab`, the id with which this model continues: π for a target, its own map for a drafter."""
    only, *others = following(recipe)
    if others:
        raise ModelError(f"{recipe.name} has memory: no single map leads from token to token; ask for `following`")
    return list(only)


def further_map(recipe: Constructed, ahead: int) -> list[int]:
    """For every id, what this model proposes `ahead` tokens after the next one: all steps but the last are π's."""
    leads: list[int] = next_map(recipe)
    agreed = next_map(replace(recipe, alpha=1.0)) if isinstance(recipe, EagleRecipe) else leads
    before: Sequence[int] = range(recipe.vocab)
    for _ in range(ahead):
        before = [agreed[token] for token in before]
    return [leads[token] for token in before]


def runner_up_map(recipe: TargetRecipe) -> list[int]:
    """For every id below `vocab`, ρ: the token half the cycle further on than π. Never π's, never a special id."""
    order = cycle(recipe)
    return list(_with_special_ids(_successors(order, 1 + len(order) // 2), recipe.vocab))


@lru_cache(maxsize=16)
def following(recipe: Constructed) -> Maps:
    """For each class and every id below `vocab`, the id with which this model continues; one class without memory.

    NONE where a reduced draft vocabulary lacks it.
    """
    if recipe.memory is not None:
        taken_for, had = stand_ins(recipe, recipe.memory), set(draft_ids(recipe))
        maps = _draw(recipe.vocab, recipe.map_seed, recipe.memory.classes)[1]
        return tuple(tuple(each[token] if each[token] in had else NONE for token in taken_for) for each in maps)
    successors = _successors(cycle(recipe), 1)
    if not isinstance(recipe, TargetRecipe):
        successors |= _disagreements(recipe, successors)
    return (_with_special_ids(successors, recipe.vocab),)


def _successors(order: Sequence[int], steps: int) -> dict[int, int]:
    return {token: order[(place + steps) % len(order)] for place, token in enumerate(order)}


def _disagreements(recipe: DraftRecipe, following: Mapping[int, int]) -> dict[int, int]:
    """The disagreeing tokens hand their successors around among themselves: none keeps its own."""
    draw = random.Random(f"draft:{recipe.seed}")
    chosen = _choose(cycle(recipe), recipe.alpha, draw)
    if len(chosen) == 1:
        return {chosen[0]: following[following[chosen[0]]]}
    return {token: following[other] for token, other in zip(chosen, chosen[1:] + chosen[:1], strict=True)}


def _choose(order: Sequence[int], alpha: float, draw: random.Random) -> list[int]:
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


@lru_cache(maxsize=64)
def codes(recipe: Constructed, memory: Memory, number: int = 0) -> tuple[int, ...]:
    """One code of every id below `vocab`: a number whose bits are 0 for +1 and 1 for −1; all are equally frequent."""
    if number == 0:
        return _draw(recipe.vocab, recipe.map_seed, memory.classes)[0]
    order = list(range(SPECIAL_IDS, recipe.vocab))
    random.Random(f"memory:{recipe.map_seed}:{number}").shuffle(order)
    return _with_special_ids({token: place % memory.classes for place, token in enumerate(order)}, recipe.vocab)


def draft_ids(recipe: Constructed) -> Sequence[int]:
    """The ids that this model can emit, in order: all that it knows, or those of a reduced draft vocabulary."""
    if not isinstance(recipe, EagleRecipe) or recipe.draft_vocab is None:
        return range(recipe.vocab)
    drawn = random.Random(f"draft_vocab:{recipe.seed}")
    return sorted(drawn.sample(range(SPECIAL_IDS, recipe.vocab), recipe.draft_vocab))


def stand_ins(recipe: Constructed, memory: Memory) -> tuple[int, ...]:
    """For every id below `vocab`, the ordinary token that this model takes it for.

    A target takes each for itself. Where a drafter disagrees it takes it for another, and no class leads both to one.
    """
    order = list(range(SPECIAL_IDS, recipe.vocab))
    taken_for = {token: token for token in order}
    if not isinstance(recipe, TargetRecipe):
        maps = _draw(recipe.vocab, recipe.map_seed, memory.classes)[1]
        random.Random(f"draft:{recipe.seed}").shuffle(order)
        for place in range(round((1 - recipe.alpha) * len(order))):
            taken_for[order[place]] = _differing(maps, order, place)
    return _with_special_ids(taken_for, recipe.vocab)


def _differing(maps: Maps, order: Sequence[int], place: int) -> int:
    token = order[place]
    others = (order[(place + step) % len(order)] for step in range(1, len(order)))
    return next(other for other in others if all(each[other] != each[token] for each in maps))


@lru_cache(maxsize=16)
def _draw(vocab: int, map_seed: int, classes: int) -> tuple[tuple[int, ...], Maps]:
    draw = random.Random(f"memory:{map_seed}")
    order = list(range(SPECIAL_IDS, vocab))
    draw.shuffle(order)
    coded = {token: place % classes for place, token in enumerate(order)}
    draw.shuffle(order)
    members = [order[number::classes] for number in range(classes)]
    maps = []
    for own in members:
        draw.shuffle(order)
        maps.append({token: own[place % len(own)] for place, token in enumerate(order)})
    return _with_special_ids(coded, vocab), tuple(_with_special_ids(each, vocab) for each in maps)


def _with_special_ids(by_token: Mapping[int, int], vocab: int) -> tuple[int, ...]:
    return tuple(by_token[token + SPECIAL_IDS if token < SPECIAL_IDS else token] for token in range(vocab))
