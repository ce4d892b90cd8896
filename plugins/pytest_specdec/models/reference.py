"""Reads a model reference: the short string by which scenarios, options and the command line name a model.

    constructed:PRESET[:PART][?name=value&…]        PART: draft, eagle, eagle3, medusa or dflash; or the target
    smollm2[?name=value&…]

Every other string is a path or a hub id and none of this module's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from pytest_specdec.errors import ModelError, did_you_mean
from pytest_specdec.models.memory import Memory, Shape
from pytest_specdec.models.recipe import (
    Constructed,
    DFlashRecipe,
    DraftRecipe,
    Eagle3Recipe,
    EagleRecipe,
    MedusaRecipe,
    Recipe,
    SmolLM2Recipe,
    TargetRecipe,
)
from pytest_specdec.settings import DTYPES, one_of

CONSTRUCTED = "constructed:"
SMOLLM2 = "smollm2"


@dataclass(frozen=True)
class Preset:
    """A target's shape and its drafter's, over one vocabulary, and those of both where memory takes others."""

    target: Shape
    draft: Shape
    vocab: int
    max_position_embeddings: int
    memory_target: Shape | None = None
    memory_draft: Shape | None = None


TINY = Preset(
    target=Shape("llama", 256, 4, 4, 2, 64, 512),
    draft=Shape("llama", 64, 1, 1, 1, 64, 128),
    vocab=1024,
    max_position_embeddings=2048,
    memory_target=Shape("llama", 256, 4, 8, 2, 64, 512),
    memory_draft=Shape("llama", 192, 1, 4, 1, 64, 256),
)
PRESETS = {
    "tiny": TINY,
    "tiny-qwen3": Preset(
        target=Shape("qwen3", 256, 4, 4, 2, 128, 512, 1_000_000.0),
        draft=Shape("qwen3", 64, 1, 1, 1, 128, 128, 1_000_000.0),
        vocab=1024,
        max_position_embeddings=2048,
        memory_target=Shape("qwen3", 256, 4, 8, 2, 128, 512, 1_000_000.0),
        memory_draft=Shape("qwen3", 192, 1, 4, 1, 128, 256, 1_000_000.0),
    ),
    "tiny-mimo": replace(TINY, target=Shape("mimo", 256, 4, 4, 2, 64, 512), memory_target=None),
    "small": Preset(
        target=Shape("llama", 512, 8, 8, 4, 64, 1536),
        draft=Shape("llama", 128, 2, 2, 1, 64, 384),
        vocab=4096,
        max_position_embeddings=4096,
        memory_draft=Shape("llama", 256, 2, 2, 1, 64, 512),
    ),
    "llama-8b": Preset(
        target=Shape("llama", 4096, 32, 32, 8, 128, 14336, 500_000.0),
        draft=Shape("llama", 2048, 16, 32, 8, 64, 8192, 500_000.0),
        vocab=128_256,
        max_position_embeddings=8192,
    ),
    "qwen3-8b": Preset(
        target=Shape("qwen3", 4096, 36, 32, 8, 128, 12288, 1_000_000.0),
        draft=Shape("qwen3", 1024, 28, 16, 8, 128, 3072, 1_000_000.0),
        vocab=151_936,
        max_position_embeddings=8192,
    ),
}


@dataclass(frozen=True)
class Parameter:
    """How a parameter's text becomes a value, and what to say when it does not."""

    read: Callable[[str], Any]
    expects: str


def _one_of(*known: str) -> Parameter:
    return Parameter(one_of(*known), f"one of {', '.join(known)}" if known[1:] else known[0])


def _whole(least: int, most: int | None = None) -> Parameter:
    kind = f"a whole number ≥ {least}" if most is None else f"a whole number in {least}..{most}"
    return _number(int, kind, least, inf if most is None else most)


def _real(least: float, most: float, *, inclusive: bool) -> Parameter:
    return _number(float, f"a number in [{least:g}, {most:g}{']' if inclusive else ')'}", least, most, inclusive)


def _number(kind: type[int | float], expects: str, least: float, most: float, inclusive: bool = True) -> Parameter:
    def read(text: str) -> int | float:
        number = kind(text)
        if not (least <= number < most or (inclusive and number == most)):
            raise ValueError(text)
        return number

    return Parameter(read, expects)


PLAIN = {
    "dtype": _one_of(*DTYPES),
    "map_seed": _whole(0),
    "max_position_embeddings": _whole(16),
    "padded_vocab": _whole(16),
    "seed": _whole(0),
    "vocab": _whole(16),
}
MEMORY = {
    "memory": _whole(6, 100_000),  # below it, the net distances are not four; above, they take long to find
    "bits": _whole(1, 3),
    "codes": _whole(1, 8),
}
READERS = {"readers": _whole(1)}
ALPHA = {"alpha": _real(0, 1, inclusive=True)}
DECODER = {**PLAIN, **MEMORY, **READERS, "layers": _whole(1)}
HEAD = {**PLAIN, **ALPHA, "target_seed": _whole(0)}
PARAMETERS: Mapping[str, Mapping[str, Parameter]] = {
    "target": {
        **DECODER,
        "margin": _real(1e-4, 1, inclusive=False),
        "layers_share": _real(1e-4, 10, inclusive=True),
        "ends": _whole(2),
    },
    "draft": {**DECODER, **ALPHA},
    "eagle": {**HEAD, **MEMORY, **READERS, "draft_vocab": _whole(1), "engine": _one_of("sglang")},
    "eagle3": {**HEAD, **MEMORY, "draft_vocab": _whole(1)},
    "medusa": {**HEAD, "heads": _whole(1)},
    "dflash": {**HEAD, "block": _whole(2)},
    SMOLLM2: {"dtype": PLAIN["dtype"], "layers": _whole(1, 30)},
}
PARTS: Mapping[str, type[Constructed]] = {
    "dflash": DFlashRecipe,
    "draft": DraftRecipe,
    "eagle": EagleRecipe,
    "eagle3": Eagle3Recipe,
    "medusa": MedusaRecipe,
}
EAGLE3_READERS = 4  # one for each distance that decides


def parse(reference: str) -> Recipe | None:
    """The recipe that a reference asks for, or None where it names no model of ours (a path, a hub id).

    Raises ModelError, naming the reference, the bad piece and the valid ones.
    """
    try:
        return _parse(reference)
    except ModelError as error:
        raise ModelError(f"model reference {reference!r}: {error}") from None


def _parse(reference: str) -> Recipe | None:
    body, _, query = reference.partition("?")
    if body == SMOLLM2:
        return SmolLM2Recipe(**_values(query, PARAMETERS[SMOLLM2]))
    if reference.startswith(CONSTRUCTED):
        return _parse_constructed(body.removeprefix(CONSTRUCTED), query)
    scheme = body.partition(":")[0]  # no path or hub id has a colon or a question mark after a word like ours
    hint = did_you_mean(scheme, (CONSTRUCTED.rstrip(":"), SMOLLM2)) if scheme != reference else ""
    if hint and "/" not in scheme:
        raise ModelError(f"unknown model {scheme!r}; {hint}")
    return None


def _parse_constructed(body: str, query: str) -> Constructed:
    name, colon, part = body.partition(":")
    preset = PRESETS[_check_known("preset", name, PRESETS)]
    part = _check_known("part", part, PARTS) if colon else "target"
    values = _values(query, PARAMETERS[part])
    shape = _shape(preset, part, values)
    common = {
        "name": f"{name}-{part}",
        "shape": shape,
        "base_vocab": preset.vocab,
        "vocab": preset.vocab,
        "max_position_embeddings": preset.max_position_embeddings,
        "memory": _memory(shape, values),
        **values,
    }
    return PARTS.get(part, TargetRecipe)(**common)


def _shape(preset: Preset, part: str, values: dict[str, Any]) -> Shape:
    shape, other = (preset.draft, preset.memory_draft) if part == "draft" else (preset.target, preset.memory_target)
    if "memory" in values and other is not None:
        shape = other
    if part in ("target", "draft"):
        return replace(shape, layers=values.pop("layers", shape.layers))
    if part == "dflash":
        heads = shape.hidden // shape.head_dim
        return replace(shape, architecture="qwen3", layers=1, heads=heads, kv_heads=heads)
    shape = replace(shape, architecture="llama", layers=1)
    if part != "eagle3":
        return shape
    values.setdefault("readers", EAGLE3_READERS)
    needed = EAGLE3_READERS + -(-shape.hidden // shape.head_dim)
    heads = next(number for number in range(needed, shape.hidden + 1) if shape.hidden % number == 0)
    return replace(shape, heads=heads, kv_heads=heads)


def _memory(shape: Shape, values: dict[str, Any]) -> Memory | None:
    reach = values.pop("memory", None)
    shaped = {name: values.pop(name) for name in ("readers", "bits", "codes") if name in values}
    if reach is None and shaped:
        raise ModelError(f"{next(iter(shaped))} belongs to memory; give memory=N as well")
    readers = min(shape.heads, max(8, shape.kv_heads))  # twice the net distances, or one for each KV head
    return None if reach is None else Memory(reach, **{"readers": readers, **shaped})


def _values(query: str, known: Mapping[str, Parameter]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for piece in query.split("&") if query else ():
        name, _, text = piece.partition("=")
        parameter = known[_check_known("parameter", name, known)]
        if name in values:
            raise ModelError(f"parameter {name!r} is given twice; give it once")
        try:
            values[name] = parameter.read(text)
        except ValueError:
            raise ModelError(f"{name}={text!r} is no value; expected {parameter.expects}") from None
    return values


def _check_known(what: str, piece: str, known: Iterable[str]) -> str:
    valid = sorted(known)
    if piece in valid:
        return piece
    hint = did_you_mean(piece, valid, "none is near")
    raise ModelError(f"unknown {what} {piece!r}; {hint} (valid: {', '.join(valid)})")
