"""What a green verdict would have seen of a wrong KV cache: which of it decides a token, and what planted faults show.

A fault of an entry that no later step reads changes no token. Which entries are read, and how often after they were
written, is known of a pair with memory from its readers and the lengths of prompts and answers.

`tests/evidence/test_detection.py` measures the share of planted faults that turned a verdict red, and writes the table
beside this file; docs/detection.md shows it. The statement of a gate is that of the measured model of its kind, at the
most tokens that are no more than its answers'.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import chain
from statistics import median
from typing import Any, TypeAlias

from pytest_specdec.generation import Generation
from pytest_specdec.models import Memory, SmolLM2Recipe, TargetRecipe, parse, reads_of
from pytest_specdec.models.recipe import ConstructedRecipe
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import CoveragePart, DetectionPart, ReadSharesPart

LOW = 0.5
NO_MEMORY = "the target is no constructed pair with memory (memory=N), so which entries decide a token is not known"
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
    why = f"up to {recipe.memory.reach} tokens are read back, after prompts of {_range(at for at, _ in lengths)} tokens"
    low = f"{'; '.join(few)}: {why} and in answers of {_range(at for _, at in lengths)}" if few else None
    return CoveragePart(prompt=prompt, output=output, low=low)


def _read_shares(layers: Iterable[Layer]) -> Figure[ReadSharesPart]:
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


def exact_interval(red: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share by Clopper and Pearson (Biometrika 26, 1934)."""
    from scipy.stats import binomtest

    found = binomtest(red, of).proportion_ci(LEVEL, "exact")
    return float(found.low), float(found.high)


@cache
def _table() -> Mapping[str, Any]:
    return dict(json.loads(resources.files("pytest_specdec.verdict").joinpath("detection.json").read_text("utf-8")))


def _statement(target: str, tokens: int, shares: Shares) -> str:
    """In words: lower bounds of what is seen, and what is not."""
    seen = [f"{fault} ≥ {low:.2f}" for fault, (low, _) in shares.items() if low > 0]
    unseen = [fault for fault, (low, _) in shares.items() if low == 0]
    told = f"of faults planted into {target}, {tokens} tokens an answer, a verdict was red on "
    told += f"these shares, by {100 * LEVEL:.0f} % intervals: {'; '.join(seen)}" if seen else "none"
    return f"{told}. Never on: {'; '.join(unseen)}" if unseen else told
