"""A recipe says everything that decides a model's bytes, and its digest names the model.

One frozen dataclass for each kind of model. Two recipes with the same content have the same digest on every machine and
in every process, so a folder named by the digest can be trusted to hold what the recipe says.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from math import log
from typing import Any, ClassVar, TypeAlias

from pytest_specdec.errors import ModelError
from pytest_specdec.models.memory import Memory, Shape, count_reserved

RECIPE_FORMAT = 1  # raise it when the same recipe would be written with other bytes
MEMORY_FORMAT = 2  # of the readers and what they read
SPECIAL_IDS = 3  # pad 0, bos 1, eos 2: no token is ever followed by one of them
DTYPES = ("bfloat16", "float16", "float32")
ROOM = 2.2  # elements of an embedding for each unit of what the extreme of so many normal overlaps grows with


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
        if min(self.vocab, self.base_vocab) < 16:
            raise ModelError(f"{self.name}: vocab must be at least 16 tokens, not {min(self.vocab, self.base_vocab)}")
        if self.rows < self.vocab:
            raise ModelError(f"{self.name}: padded_vocab={self.padded_vocab} is smaller than vocab={self.vocab}")
        if self.dtype not in DTYPES:
            raise ModelError(f"{self.name}: dtype={self.dtype!r} is not one of {', '.join(DTYPES)}")
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
    """

    kind: ClassVar[str] = "target"
    margin: float | None = None
    layers_share: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin is not None and not 1e-4 <= self.margin < 1:
            raise ModelError(f"{self.name}: margin={self.margin} is not within [0.0001, 1)")
        if self.layers_share is not None and not 0 < self.layers_share <= 10:
            raise ModelError(f"{self.name}: layers_share={self.layers_share} is not within (0, 10]")
        if self.memory is not None and not (self.margin is None and self.layers_share is None):
            raise ModelError(f"{self.name}: a pair with memory has no margin and no layers_share; leave them out")


@dataclass(frozen=True)
class DraftRecipe(ConstructedRecipe):
    """A drafter that follows π on exactly the share `alpha` of its ordinary tokens, and another map elsewhere."""

    kind: ClassVar[str] = "draft"
    alpha: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_alpha(self.name, self.alpha)


@dataclass(frozen=True)
class EagleRecipe(ConstructedRecipe):
    """An EAGLE head of one layer on the target's width; it borrows the target's output head.

    With `alpha` = 1 it borrows the embedding too, and everything it proposes is accepted by a target without a margin.
    Below that it carries an embedding of its own, in which the disagreeing tokens stand for others; `target_seed` must
    then be the target's `seed`.
    """

    kind: ClassVar[str] = "eagle"
    alpha: float = 1.0
    target_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_alpha(self.name, self.alpha)
        if self.shape.architecture != "llama":
            raise ModelError(f"{self.name}: an EAGLE head is made for Llama shapes only, not {self.shape.architecture}")


@dataclass(frozen=True)
class SmolLM2Recipe:
    """SmolLM2-135M-Instruct as a plain checkpoint; `layers`: how many of its 30 layers are kept, None for all."""

    kind: ClassVar[str] = "smollm2"
    name: str = "smollm2"
    layers: int | None = None
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.layers is not None and not 1 <= self.layers <= 30:
            raise ModelError(f"smollm2: layers={self.layers} is not within 1..30")
        if self.dtype not in DTYPES:
            raise ModelError(f"smollm2: dtype={self.dtype!r} is not one of {', '.join(DTYPES)}")


Constructed: TypeAlias = TargetRecipe | DraftRecipe | EagleRecipe
Recipe: TypeAlias = Constructed | SmolLM2Recipe


def contents(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values, with its kind and the version of the format: what the digest is taken over."""
    values = asdict(recipe)
    if values.get("memory", ...) is None:
        del values["memory"]  # as it was before models had one, so that theirs keep their digests
    elif "memory" in values:
        values["memory"]["format"] = MEMORY_FORMAT
    return {"format": RECIPE_FORMAT, "kind": recipe.kind, **values}


def digest(recipe: Recipe) -> str:
    """Sixteen hexadecimal digits that name the recipe's content."""
    canonical = json.dumps(contents(recipe), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def folder_name(recipe: Recipe) -> str:
    """`<readable>-<digest>`, the name of the model's folder in a cache."""
    return f"{recipe.name}-{digest(recipe)}"


def _check_alpha(name: str, alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise ModelError(f"{name}: alpha={alpha} is not within [0, 1]")
