"""A checkpoint on paper: which tensors it has, of which shape, filled how, and in which file. No torch yet.

Layer weights are normal with variance 1/fan-in, so activations are of unit size in every shape. Only what a layer
writes back into the residual stream is scaled down, to a fixed share of it over all layers: the arithmetic of the
architecture is done, and the last hidden state still points where the embedding did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal, TypeAlias

from pytest_specdec.models.memory import Shape
from pytest_specdec.models.recipe import Constructed, EagleRecipe, TargetRecipe

SHARD_BYTES = 4 * 10**9
EMBEDDING_SIZE = 0.1  # of an element of the residual stream where it begins
LAYERS_SHARE = 0.05  # of all layers' writing together, relative to the embedding

Fill: TypeAlias = Literal["normal", "ones", "embedding", "head", "pass-embedding"]


@dataclass(frozen=True)
class Weight:
    """One tensor: its name in the checkpoint, shape, filling, and standard deviation where the filling is normal."""

    name: str
    shape: tuple[int, ...]
    fill: Fill
    std: float = 0.0


def weights(recipe: Constructed) -> list[Weight]:
    """Every tensor of the model, in the order in which it is written."""
    return list(_eagle(recipe) if isinstance(recipe, EagleRecipe) else _decoder(recipe))


def shards(listed: Sequence[Weight], element_bytes: int, limit: int = SHARD_BYTES) -> list[list[Weight]]:
    """The tensors, in order, in files of at most `limit` bytes; a tensor larger than that has a file of its own."""
    files: list[list[Weight]] = []
    size = limit
    for weight in listed:
        grows = prod(weight.shape) * element_bytes
        if not files or size + grows > limit:
            files.append([])
            size = 0
        files[-1].append(weight)
        size += grows
    return files


def layers_share(recipe: Constructed) -> float:
    """How large the layers' part of the last hidden state is, relative to the embedding's."""
    if isinstance(recipe, TargetRecipe) and recipe.layers_share is not None:
        return recipe.layers_share
    if isinstance(recipe, TargetRecipe) and recipe.margin is not None:
        return min(LAYERS_SHARE, recipe.margin * sqrt(recipe.shape.hidden) / 10)
    return LAYERS_SHARE


def _decoder(recipe: Constructed) -> Iterator[Weight]:
    table = (recipe.rows, recipe.shape.hidden)
    yield Weight("model.embed_tokens.weight", table, "embedding")
    written = EMBEDDING_SIZE * layers_share(recipe) / sqrt(2 * recipe.shape.layers)
    for layer in range(recipe.shape.layers):
        prefix = f"model.layers.{layer}"
        yield Weight(f"{prefix}.input_layernorm.weight", (recipe.shape.hidden,), "ones")
        yield from _layer(prefix, recipe.shape, written)
    yield Weight("model.norm.weight", (recipe.shape.hidden,), "ones")
    yield Weight("lm_head.weight", table, "head")


def _eagle(recipe: EagleRecipe) -> Iterator[Weight]:
    hidden = recipe.shape.hidden
    if recipe.alpha < 1:
        yield Weight("embed_tokens.weight", (recipe.rows, hidden), "embedding")
    yield Weight("fc.weight", (hidden, 2 * hidden), "pass-embedding")
    yield from _layer("layers.0", recipe.shape, layers_share(recipe) / sqrt(2))


def _layer(prefix: str, shape: Shape, written: float) -> Iterator[Weight]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    yield _linear(f"{attention}.q_proj", queries, shape.hidden)
    yield _linear(f"{attention}.k_proj", keys, shape.hidden)
    yield _linear(f"{attention}.v_proj", keys, shape.hidden)
    yield _linear(f"{attention}.o_proj", shape.hidden, queries, written)
    if shape.architecture == "qwen3":
        yield Weight(f"{attention}.q_norm.weight", (shape.head_dim,), "ones")
        yield Weight(f"{attention}.k_norm.weight", (shape.head_dim,), "ones")
    yield Weight(f"{prefix}.post_attention_layernorm.weight", (shape.hidden,), "ones")
    yield _linear(f"{mlp}.gate_proj", shape.intermediate, shape.hidden)
    yield _linear(f"{mlp}.up_proj", shape.intermediate, shape.hidden)
    yield _linear(f"{mlp}.down_proj", shape.hidden, shape.intermediate, written)


def _linear(name: str, outputs: int, inputs: int, size: float = 1.0) -> Weight:
    return Weight(f"{name}.weight", (outputs, inputs), "normal", size / sqrt(inputs))
