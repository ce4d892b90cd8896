"""A recipe says everything that decides a model's bytes, and its digest names the model; no torch yet.

One frozen dataclass for each kind of model. Its checkpoint on paper says which tensors it has, of which shape, filled
how, and in which file. Layer weights are normal with variance 1/fan-in; only what a layer writes back into the residual
stream is scaled down, to a fixed share of it over all layers: the last hidden state still points where the embedding
did.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import log, prod, sqrt
from typing import Any, ClassVar, Literal, TypeAlias

from pytest_specdec.errors import ModelError
from pytest_specdec.models.memory import Memory, Shape, count_reserved

RECIPE_FORMAT = 1  # raise it when the same recipe would be written with other bytes
MEMORY_FORMAT = 2  # of the readers and what they read
SPECIAL_IDS = 3  # pad 0, bos 1, eos 2: no token is ever followed by one of them
ROOM = 2.2  # elements of an embedding for each unit of what the extreme of so many normal overlaps grows with
SHARD_BYTES = 4 * 10**9
EMBEDDING_SIZE = 0.1  # of an element of the residual stream where it begins
STATES = 3  # of the target's hidden states, that a DFlash drafter reads
LAYERS_SHARE = 0.05  # of all layers' writing together, relative to the embedding

Fill: TypeAlias = Literal[
    "normal", "ones", "embedding", "head", "pass-embedding", "pass-normed-embedding", "draft-to-target", "in-draft"
]


@dataclass(frozen=True)
class ConstructedRecipe:
    """What target, drafter and EAGLE head have in common.

    `base_vocab`: the vocabulary over which the pair's map is drawn. `vocab`: this model's own tokens. `padded_vocab`:
    rows of its embedding and `vocab_size` of its configuration; None means `vocab`. `seed` decides the weights,
    `map_seed` the map: a pair shares `map_seed` and may differ in `seed`. `memory`: what of the past decides the next
    token besides the last one; None is nothing. A pair with memory shares `memory` and `vocab` too.
    """

    name: str
    shape: Shape
    base_vocab: int
    vocab: int
    padded_vocab: int | None = None
    max_position_embeddings: int = 2048
    dtype: str = "bfloat16"
    seed: int = 0
    map_seed: int = 0
    memory: Memory | None = None

    def __post_init__(self) -> None:
        if self.rows < self.vocab:
            raise ModelError(f"{self.name}: padded_vocab={self.padded_vocab} is smaller than vocab={self.vocab}")
        if self.memory is not None:
            self._check_width(self.memory)

    def _check_width(self, memory: Memory) -> None:
        """Random embeddings overlap the more, the narrower they are; the largest overlap must not reach the top."""
        room = self.shape.hidden - count_reserved(memory, self.shape)
        needed = round(ROOM * memory.classes * log(self.vocab**2 * memory.classes))
        if room < needed:
            raise ModelError(
                f"{self.name}: {room} of {self.shape.hidden} elements are left for the embedding and {needed} are "
                f"needed; lower layers, readers, bits or codes"
            )

    @property
    def rows(self) -> int:
        """Rows of the embedding and of the output head."""
        return self.vocab if self.padded_vocab is None else self.padded_vocab


@dataclass(frozen=True)
class TargetRecipe(ConstructedRecipe):
    """A target whose greedy continuation is the map π.

    `margin`: for every ordinary token t, the logit of ρ(t), the runner-up, is (1 − margin) times the logit of π(t). The
    output head is solved for that ratio, so it is exact for the embedding's own direction; the layers and the dtype's
    rounding spread the ratio around it, the layers with a standard deviation of at most 0.15 margin, so that in float32
    π is followed at any margin ≥ 0.0001. The top logit is about 10, where bfloat16 steps by 0.0625: margin = 0.02 is a
    gap of three steps, and margin = 0.003 half a step, a tie that rounding decides. None builds no runner-up: every
    other logit is small and random.

    `layers_share`: how much all layers together write, relative to the embedding. None is 0.05, or less where a small
    margin asks for it, and π is certain. A larger share brings real arithmetic into every logit: with a margin, the
    context then decides between π and ρ, and some choices are near-ties that rounding decides.

    `ends`: one ordinary token in so many ends an answer, as EOS does, by the model's own settings. None is none.
    """

    kind: ClassVar[str] = "target"
    margin: float | None = None
    layers_share: float | None = None
    ends: int | None = None

    @property
    def end_ids(self) -> range:
        """The ordinary tokens that end an answer."""
        return range(SPECIAL_IDS, self.vocab, self.ends) if self.ends else range(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None and not (self.margin is None and self.layers_share is None):
            raise ModelError(f"{self.name}: a pair with memory has no margin and no layers_share; leave them out")


@dataclass(frozen=True)
class DraftRecipe(ConstructedRecipe):
    """A drafter that follows π on exactly the share `alpha` of its ordinary tokens, and another map elsewhere."""

    kind: ClassVar[str] = "draft"
    alpha: float = 0.8


@dataclass(frozen=True)
class EagleRecipe(DraftRecipe):
    """An EAGLE head of one layer on the target's width; it borrows the target's output head.

    With `alpha` = 1 it borrows the embedding too, and everything it proposes is accepted by a target without a margin.
    Below that it carries an embedding of its own, in which the disagreeing tokens stand for others; `target_seed` must
    then be the target's `seed`.

    `draft_vocab`: how many ordinary tokens it can propose, drawn by `seed`; the others are never proposed. None is all.
    `engine`: which engine reads it, where that is not vLLM. SGLang gives every head the target's embedding, so there a
    head is wrong by its draft vocabulary alone, whose ids lie beside it as SGLang's token map.
    """

    kind: ClassVar[str] = "eagle"
    alpha: float = 1.0
    target_seed: int = 0
    draft_vocab: int | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine and self.alpha < 1:
            raise ModelError(
                f"{self.name}: SGLang gives a head the target's embedding, which leaves no alpha: give draft_vocab=N"
            )
        if self.draft_vocab is not None:
            self._check_draft_vocab(self.draft_vocab)

    def _check_draft_vocab(self, size: int) -> None:
        if self.kind == "eagle" and not (self.engine and self.memory):
            raise ModelError(f"{self.name}: draft_vocab wants a pair with memory, and engine=sglang")
        most = self.vocab - SPECIAL_IDS if self.alpha == 1 else 0
        if not 1 <= size <= most:
            known = f"is not within 1..{most}" if most else "leaves no alpha: it is what the head is wrong by"
            raise ModelError(f"{self.name}: draft_vocab={size} {known}")


@dataclass(frozen=True)
class Eagle3Recipe(EagleRecipe):
    """An EAGLE-3 head, which reads three hidden states of the target; with memory only, and the target's `memory`.

    Its residual stream begins with the hidden states: the embedding comes in by attention, through a head of its own
    for each slice of it. Three more heads read the past, and a fourth, in a hidden state, the token before. With
    a `draft_vocab` it has an output head of its own.
    """

    kind: ClassVar[str] = "eagle3"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is None or self.memory.codes < 2:
            raise ModelError(
                f"{self.name}: an EAGLE-3 head has memory, of two codes or more: give memory=N to the pair"
            )


@dataclass(frozen=True)
class MedusaRecipe(EagleRecipe):
    """Medusa's heads, each of which proposes a token further on, from the hidden state alone; without memory.

    `heads`: how many, each with an output head of its own. They propose what a drafter of this `alpha` would.
    """

    kind: ClassVar[str] = "medusa"
    heads: int = 4


@dataclass(frozen=True)
class DFlashRecipe(EagleRecipe):
    """A DFlash drafter, which fills in a block of tokens at once; without memory.

    Each place of a block copies the target's hidden state `block` positions back, from the drafter's KV cache of the
    text so far, and proposes what a drafter of this `alpha` would after the token before, if the text follows π until
    there. So γ is less than `block`, and prompts are not shorter.
    """

    kind: ClassVar[str] = "dflash"
    block: int = 8


@dataclass(frozen=True)
class SmolLM2Recipe:
    """SmolLM2-135M-Instruct as a plain checkpoint; `layers`: how many of its 30 layers are kept, None for all."""

    kind: ClassVar[str] = "smollm2"
    name: str = "smollm2"
    layers: int | None = None
    dtype: str = "bfloat16"


Constructed: TypeAlias = TargetRecipe | DraftRecipe
Recipe: TypeAlias = Constructed | SmolLM2Recipe


def contents(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values, with its kind and the version of the format: what the digest is taken over."""
    values = asdict(recipe)
    for later in ("memory", "ends", "draft_vocab", "engine"):
        if values.get(later, ...) is None:
            del values[later]  # as it was before models had one, so that theirs keep their digests
    if "memory" in values:
        values["memory"]["format"] = MEMORY_FORMAT
    return {"format": RECIPE_FORMAT, "kind": recipe.kind, **values}


def digest(recipe: Recipe) -> str:
    """Sixteen hexadecimal digits that name the recipe's content."""
    canonical = json.dumps(contents(recipe), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def folder_name(recipe: Recipe) -> str:
    """`<readable>-<digest>`, the name of the model's folder in a cache."""
    return f"{recipe.name}-{digest(recipe)}"


@dataclass(frozen=True)
class Weight:
    """One tensor: its name in the checkpoint, shape, filling, and standard deviation where the filling is normal.

    `ahead`: of an output head, how many tokens after the next one it proposes.
    """

    name: str
    shape: tuple[int, ...]
    fill: Fill
    std: float = 0.0
    ahead: int = 0


def weights(recipe: Constructed) -> list[Weight]:
    """Every tensor of the model, in the order in which it is written."""
    listings: dict[str, Callable[[Any], Iterator[Weight]]] = {
        "eagle": _eagle,
        "eagle3": _eagle3,
        "medusa": _medusa,
        "dflash": _dflash,
    }
    return list(listings.get(recipe.kind, _decoder)(recipe))


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
    if recipe.shape.architecture == "mimo":
        yield from _mtp(recipe)


def _mtp(recipe: Constructed) -> Iterator[Weight]:
    """The layer by which the model drafts: a decoder of the embedding alone, whatever the hidden state before it."""
    prefix, hidden = "model.mtp_layers.0", recipe.shape.hidden
    for name in ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm"):
        yield Weight(f"{prefix}.{name}.weight", (hidden,), "ones")
    yield Weight(f"{prefix}.input_proj.weight", (hidden, 2 * hidden), "pass-normed-embedding")
    yield from _layer(prefix, recipe.shape, EMBEDDING_SIZE * layers_share(recipe) / sqrt(2))


def _eagle(recipe: EagleRecipe) -> Iterator[Weight]:
    hidden = recipe.shape.hidden
    if recipe.alpha < 1:
        yield Weight("embed_tokens.weight", (recipe.rows, hidden), "embedding")
    yield Weight("fc.weight", (hidden, 2 * hidden), "pass-embedding")
    if recipe.engine:
        yield Weight("fc.bias", (hidden,), "normal", 0.0)  # SGLang's head has one, and draws what is not there
    yield from _layer("layers.0", recipe.shape, layers_share(recipe) / sqrt(2))


def _eagle3(recipe: Eagle3Recipe) -> Iterator[Weight]:
    """Zeros are what memory writes alone."""
    hidden = recipe.shape.hidden
    if recipe.alpha < 1:
        yield Weight("embed_tokens.weight", (recipe.rows, hidden), "embedding")
    yield Weight("fc.weight", (hidden, 3 * hidden), "normal", 0.0)
    yield Weight("layers.0.hidden_norm.weight", (hidden,), "normal", 0.0)
    yield Weight("layers.0.input_layernorm.weight", (hidden,), "ones")
    yield from _layer("layers.0", recipe.shape, EMBEDDING_SIZE * layers_share(recipe) / sqrt(2), 2 * hidden)
    yield Weight("norm.weight", (hidden,), "ones")
    if recipe.draft_vocab is not None:
        yield Weight("lm_head.weight", (recipe.draft_vocab, hidden), "head")
        yield Weight("d2t", (recipe.draft_vocab,), "draft-to-target")
        yield Weight("t2d", (recipe.rows,), "in-draft")


def _medusa(recipe: MedusaRecipe) -> Iterator[Weight]:
    hidden = recipe.shape.hidden
    for head in range(recipe.heads):
        yield _linear(f"blocks.{head}.layers.0", hidden, hidden, LAYERS_SHARE)
        yield Weight(f"lm_heads.{head}.weight", (recipe.rows, hidden), "head", ahead=head + 1)


def _dflash(recipe: DFlashRecipe) -> Iterator[Weight]:
    """Zeros are what copies."""
    hidden, prefix = recipe.shape.hidden, "layers.0"
    yield Weight("fc.weight", (hidden, STATES * hidden), "normal", 0.0)
    for name in ("hidden_norm", f"{prefix}.input_layernorm", "norm"):
        yield Weight(f"{name}.weight", (hidden,), "ones")
    for weight in _layer(prefix, recipe.shape, layers_share(recipe) / sqrt(2)):
        yield replace(weight, std=0.0) if "self_attn" in weight.name else weight
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        yield Weight(f"{prefix}.self_attn.{name}.bias", (hidden,), "normal", 0.0)
    yield Weight("lm_head.weight", (recipe.rows, hidden), "head", ahead=recipe.block - 1)


def _layer(prefix: str, shape: Shape, written: float, width: int | None = None) -> Iterator[Weight]:
    """`width`: of what attention takes in, by default the stream's."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield _linear(f"{attention}.{name}", rows, width or shape.hidden)
        if shape.architecture == "mimo":
            yield Weight(f"{attention}.{name}.bias", (rows,), "normal", 0.0)
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
