"""The maps of a pair with memory: one for each class, and a code for each token.

The codes of the tokens at the net distances, multiplied (as bits: exclusive or), name the class; the class's own map
then leads from the last token to one of the tokens that only this class emits. So whoever misreads one code emits a
token of another class. Special ids continue, and are read, as tokens 3, 4 and 5 are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from pytest_specdec.models.memory import Memory
from pytest_specdec.models.recipe import SPECIAL_IDS, Constructed, TargetRecipe

Maps = tuple[tuple[int, ...], ...]


def codes(recipe: Constructed, memory: Memory) -> tuple[int, ...]:
    """The code of every id below `vocab`: a number whose bits are 0 for +1 and 1 for −1; all are equally frequent."""
    return _draw(recipe.vocab, recipe.map_seed, memory.classes)[0]


def class_maps(recipe: Constructed, memory: Memory) -> Maps:
    """For each class and every id below `vocab`, the id with which this model continues."""
    taken_for = stand_ins(recipe, memory)
    maps = _draw(recipe.vocab, recipe.map_seed, memory.classes)[1]
    return tuple(tuple(each[token] for token in taken_for) for each in maps)


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
    return _list(taken_for, recipe.vocab)


def _differing(maps: Maps, order: Sequence[int], place: int) -> int:
    """The next token in the order that every class leads elsewhere."""
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
    return _list(coded, vocab), tuple(_list(each, vocab) for each in maps)


def _list(by_token: dict[int, int], vocab: int) -> tuple[int, ...]:
    return tuple(by_token[token + SPECIAL_IDS if token < SPECIAL_IDS else token] for token in range(vocab))
