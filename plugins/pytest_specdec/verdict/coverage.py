"""Coverage: how much of the target's KV cache the answers of a pair with memory depend on.

A fault of an entry that no later step reads changes no token. Which entries are read, and how often after they were
written, is known from the pair's readers and the lengths of prompts and answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median
from typing import TypeAlias

from pytest_specdec.generation import Generation
from pytest_specdec.models import parse, reads_of
from pytest_specdec.models.recipe import ConstructedRecipe
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import CoveragePart, ReadSharesPart

LOW = 0.5
NO_MEMORY = "the target is no constructed pair with memory (memory=N), so which entries decide a token is not known"
NONE_READ = "no entry was written there that a step could have read"
Layer: TypeAlias = tuple[int, ...]  # how often each entry is read


def coverage_part(target: str, answers: Sequence[Generation]) -> CoveragePart:
    """Of one round of answers."""
    recipe = parse(target)
    if not isinstance(recipe, ConstructedRecipe) or recipe.memory is None:
        return missing(CoveragePart, NO_MEMORY)
    lengths = sorted({(len(each.prompt_ids), len(each.token_ids)) for each in answers if each.token_ids})
    reads = [reads_of(target, *length) for length in lengths]
    prompt = _shares(chain.from_iterable(each.prompt for each in reads))
    output = _shares(chain.from_iterable(each.output for each in reads))
    few = [*_few("prompts", prompt), *_few("answers", output)]
    why = f"up to {recipe.memory.reach} tokens are read back, after prompts of {_range(at for at, _ in lengths)} tokens"
    low = f"{'; '.join(few)}: {why} and in answers of {_range(at for _, at in lengths)}" if few else None
    return CoveragePart(prompt=prompt, output=output, low=low)


def _shares(layers: Iterable[Layer]) -> Figure[ReadSharesPart]:
    """Over layers that have entries."""
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
