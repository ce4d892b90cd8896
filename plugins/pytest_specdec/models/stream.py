"""The residual stream of a model with memory: which of its elements are set apart, for what, and how large they are.

From the end: a constant, the bits of the token's codes (±1), the bits of the last layer's product, and, layer by layer,
the bits of each reading and of the product up to there. Each is written once and random weights write into none, so the
norm is known beforehand, and is the same at every position that has read all that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

from pytest_specdec.models.layout import EMBEDDING_SIZE, LAYERS_SHARE
from pytest_specdec.models.memory import Memory, Reader, count_reserved, readings
from pytest_specdec.models.recipe import Constructed, EagleRecipe

MARK = 0.4  # of the constant and of a code's bit, where an element of the embedding is 0.1
SLOT = 0.15  # of a bit that is written


@dataclass(frozen=True)
class Stream:
    """Places and sizes; `mark` and `slot` as they stand in this model's stream."""

    recipe: Constructed
    memory: Memory

    @cached_property
    def readers(self) -> list[list[Reader]]:
        """The readers of each layer."""
        return readings(self.memory, self.recipe.shape)

    @property
    def room(self) -> int:
        """How many elements the embedding has for itself; the rest is set apart."""
        return self.recipe.shape.hidden - count_reserved(self.memory, self.recipe.shape)

    @property
    def constant(self) -> int:
        """The element that is the same for every token."""
        return self.recipe.shape.hidden - 1

    def code(self, number: int) -> list[int]:
        """The elements of the bits of one of the token's own codes."""
        return self._bits(number)

    def product(self, layer: int) -> list[int]:
        """The elements of the product of all that was read up to this layer; the last layer's are always the same."""
        return self._bits(self.memory.codes + (0 if layer == self.recipe.shape.layers - 1 else 1 + layer))

    def reading(self, layer: int, number: int) -> list[int]:
        """The elements of what a layer's reader of this number copied."""
        earlier = sum(map(len, self.readers[:layer])) + number
        return self.copied(0 if earlier == 0 else self.memory.codes - 1 + earlier)

    def copied(self, number: int) -> list[int]:
        """The elements of what the first reader of the first layer copied of one of the codes."""
        return self._bits(self.memory.codes + self.recipe.shape.layers + number)

    def _bits(self, number: int) -> list[int]:
        first = self.constant - self.memory.bits * (number + 1)
        return list(range(first, first + self.memory.bits))

    @property
    def mark(self) -> float:
        """The size of the constant and of the code's bits."""
        return MARK * self.scale

    @property
    def slot(self) -> float:
        """The size of a bit of a reading or of a product."""
        return SLOT * self.scale

    def norm_before_attention(self, layer: int) -> float:
        """What the norm divides by; an EAGLE head's only layer has none."""
        return 1.0 if self._borrows else self._norm(self._count_written(layer))

    def norm_before_mlp(self, layer: int) -> float:
        """What the norm divides by once the layer has read."""
        return self._norm(self._count_read(layer + 1) + layer)

    def last_norm(self) -> float:
        """What the norm before the output head divides by."""
        return self._norm(self._count_written(self.recipe.shape.layers))

    @property
    def _borrows(self) -> bool:
        return isinstance(self.recipe, EagleRecipe)

    @property
    def scale(self) -> float:
        """How much larger than a decoder's the stream is: an EAGLE head takes the embedding in at unit size."""
        return 1 / EMBEDDING_SIZE if self._borrows else 1.0

    def _count_written(self, layers: int) -> int:
        """Readings and products of the first layers."""
        return layers + self._count_read(layers)

    def _count_read(self, layers: int) -> int:
        """What the readers of the first layers copied; the very first copied every code."""
        return sum(map(len, self.readers[:layers])) + (self.memory.codes - 1 if layers else 0)

    def _norm(self, written: int) -> float:
        marks = MARK**2 * (1 + self.memory.bits * self.memory.codes) + SLOT**2 * self.memory.bits * written
        return self.scale * sqrt(EMBEDDING_SIZE**2 * (1 + LAYERS_SHARE**2) + marks / self.recipe.shape.hidden)
