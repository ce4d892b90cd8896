"""Engraves memory into a checkpoint's tensors: readers into attention, products into the MLP, classes into the head.

How it works is told in docs/models.md. The residual stream sets elements apart, from the end: a constant, the bits of
the token's codes (±1), the bits of the last layer's product, and, layer by layer, the bits of each reading and of the
product up to there. Each is written once and random weights write into none, so the norm is known beforehand, and is
the same at every position that has read all that it reads. Each step of a product's zigzag is the difference of two
neurons, a ramp; they are counted from the middle, so that sums stay small in bfloat16. A row of the output head gathers
the embeddings of all tokens that it may follow, solved so that each is met exactly, and the bits of the class that
emits it. Heads and neurons that memory leaves over stay random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import NamedTuple

import torch

from pytest_specdec.models.maps import NONE, codes, following
from pytest_specdec.models.memory import Memory, Reader, Shape, count_reserved, readings
from pytest_specdec.models.recipe import (
    EMBEDDING_SIZE,
    LAYERS_SHARE,
    SPECIAL_IDS,
    STATES,
    Constructed,
    DFlashRecipe,
    Eagle3Recipe,
    EagleRecipe,
)

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
        """The elements of the bits of a slot; the first are those of the token's own codes."""
        first = self.constant - self.memory.bits * (number + 1)
        return list(range(first, first + self.memory.bits))

    def product(self, layer: int) -> list[int]:
        """The elements of the product of all that was read up to this layer; the last layer's are always the same."""
        return self.code(self.memory.codes + (0 if layer == self.recipe.shape.layers - 1 else 1 + layer))

    def reading(self, layer: int, number: int) -> list[int]:
        """The elements of what a layer's reader of this number copied."""
        earlier = sum(map(len, self.readers[:layer])) + number
        return self.copied(0 if earlier == 0 else self.memory.codes - 1 + earlier)

    def copied(self, number: int) -> list[int]:
        """The elements of what the first reader of the first layer copied of one of the codes."""
        return self.code(self.memory.codes + self.recipe.shape.layers + number)

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
        return isinstance(self.recipe, EagleRecipe) and not isinstance(self.recipe, Eagle3Recipe)

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


GAP = 12.0  # of the score, between the wanted distance and its neighbours
STEEPNESS = 20.0  # of a ramp
CLASS_SHARE = 0.25  # of the top logit, for each bit of the class
MAX_ROWS = 4096  # of the head, while it is solved


class Neuron(NamedTuple):
    """Writes amount · silu(STEEPNESS (sign · sum of the terms − offset)) / STEEPNESS, all in units of a bit."""

    terms: list[int]
    sign: int
    offset: float
    amount: float
    into: int


@dataclass(frozen=True)
class Circuit(Stream):
    """What memory puts into the tensors of one model, on one device."""

    device: str

    def engrave(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of that name, drawn at random, with what memory needs in it; by its module's own method."""
        parts = name.split(".")
        layer = int(parts[parts.index("layers") + 1]) if "layers" in parts else 0
        if parts[-1] == "weight" and (engrave := getattr(self, f"_engrave_{parts[-2]}", None)):
            engrave(tensor, layer)
        return tensor

    def head(self, vectors: torch.Tensor) -> torch.Tensor:
        """The output head for these vectors of the tokens, in units of the top logit over √hidden."""
        norm = self.last_norm()
        classes, before = self._emissions()
        rows = torch.empty_like(vectors)
        for some in (slice(begin, begin + MAX_ROWS) for begin in range(0, self.recipe.vocab, MAX_ROWS)):
            rows[some] = _solve_exactly(vectors, before[some]) * (norm / EMBEDDING_SIZE)
        size = CLASS_SHARE * sqrt(self.recipe.shape.hidden) * norm / self.slot
        rows[:, self.product(self.recipe.shape.layers - 1)] = self._signs(classes) * size
        return rows

    def _emissions(self) -> tuple[list[int], list[list[int]]]:
        """For each token, the class that emits it, and the ordinary tokens that it may follow."""
        vocab = self.recipe.vocab
        classes, before = [0] * vocab, [[] for _ in range(vocab)]  # type: list[int], list[list[int]]
        for number, leads in enumerate(following(self.recipe)):
            for token in (each for each in range(SPECIAL_IDS, vocab) if leads[each] != NONE):
                classes[leads[token]] = number
                before[leads[token]].append(token)
        return classes, before

    def _signs(self, numbers: Sequence[int]) -> torch.Tensor:
        """The bits of each number as +1 for 0 and −1 for 1; shape (numbers, bits)."""
        bits = range(self.memory.bits)
        return torch.tensor([[1.0 - 2 * (number >> bit & 1) for bit in bits] for number in numbers], device=self.device)

    def _engrave_embed_tokens(self, table: torch.Tensor, _: int) -> None:
        unscaled = self.mark / self.scale
        table[: self.recipe.vocab, self.constant] = unscaled
        for number in range(self.memory.codes):
            signs = self._signs(codes(self.recipe, self.memory, number))
            table[: self.recipe.vocab, self.code(number)] = signs * unscaled

    def _pointing(self, layer: int) -> Iterator[tuple[int, int, int]]:
        """Query heads, their KV heads, and how far back each looks."""
        yield from ((reader.head, reader.kv_head, reader.distance) for reader in self.readers[layer])

    def _engrave_q_proj(self, weight: torch.Tensor, layer: int) -> None:
        for head, _, distance in self._pointing(layer):
            self._from_constant(weight, head, distance, layer)

    def _engrave_k_proj(self, weight: torch.Tensor, layer: int) -> None:
        for _, head, _ in self._pointing(layer):
            self._from_constant(weight, head, 0, layer)

    def _from_constant(self, weight: torch.Tensor, head: int, distance: int, layer: int) -> None:
        """Let a head's projection be the same vector for every token."""
        rows, vector = self._rows(head), turn_back(self.recipe.shape, distance).to(self.device)
        weight[rows] = 0
        weight[rows, self.constant] = vector * (self.norm_before_attention(layer) / self.mark)

    def _engrave_q_norm(self, weight: torch.Tensor, _: int) -> None:
        weight *= size_of_queries(self.recipe.shape)

    def _engrave_v_proj(self, weight: torch.Tensor, layer: int) -> None:
        """All own codes, or those that the first reader of the first layer has copied here."""
        for reader in self.readers[layer]:
            found, size = (self.copied, self.slot) if reader.hops else (self.code, self.mark)
            for code in range(self.memory.codes):
                rows = self._kept(reader.kv_head, code)
                weight[rows] = 0
                weight[rows, found(code)] = self.norm_before_attention(layer) / size

    def _engrave_o_proj(self, weight: torch.Tensor, layer: int) -> None:
        weight[self.room :] = 0
        for number, reader in enumerate(self.readers[layer]):
            weight[self.reading(layer, number), self._kept(reader.head, reader.code)] = self.slot
        for code in range(self.memory.codes if layer == 0 else 0):
            weight[self.copied(code), self._kept(self.readers[0][0].head, code)] = self.slot

    def _engrave_gate_proj(self, weight: torch.Tensor, layer: int) -> None:
        norm = self.norm_before_mlp(layer)
        for row, neuron in enumerate(self._neurons(layer)):
            weight[row] = 0
            weight[row, neuron.terms] = neuron.sign * STEEPNESS * norm / self.slot
            weight[row, self.constant] = -neuron.offset * STEEPNESS * norm / self.mark

    def _engrave_up_proj(self, weight: torch.Tensor, layer: int) -> None:
        for row, _ in enumerate(self._neurons(layer)):
            weight[row] = 0
            weight[row, self.constant] = self.norm_before_mlp(layer) / self.mark

    def _engrave_down_proj(self, weight: torch.Tensor, layer: int) -> None:
        weight[self.room :] = 0
        for column, neuron in enumerate(self._neurons(layer)):
            weight[:, column] = 0
            weight[neuron.into, column] = neuron.amount * self.slot / STEEPNESS

    def _neurons(self, layer: int) -> Iterator[Neuron]:
        """For each bit, the product of what the layer's readers copied and of the product before."""
        for bit, into in enumerate(self.product(layer)):
            terms = [self.reading(layer, number)[bit] for number in range(len(self.readers[layer]))]
            terms += [self.product(layer - 1)[bit]] if layer else []
            yield from _zigzag(terms, into)

    def _rows(self, head: int) -> slice:
        size = self.recipe.shape.head_dim
        return slice(head * size, (head + 1) * size)

    def _kept(self, head: int, code: int) -> list[int]:
        first = self._rows(head).start + code * self.memory.bits
        return list(range(first, first + self.memory.bits))


def turn_back(shape: Shape, distance: int) -> torch.Tensor:
    """A vector on the faster frequencies, turned back by a distance; so large that the peak stands GAP high.

    Of unit size where norms of query and key take the size out.
    """
    angles, weights = _frequencies(shape)
    size = 1.0 if shape.architecture == "qwen3" else sqrt(GAP * sqrt(shape.head_dim) / _drop(shape))
    turned = torch.cat([weights * torch.cos(distance * angles), -weights * torch.sin(distance * angles)])
    return (turned * size).float()


def size_of_queries(shape: Shape) -> float:
    """What the norms take out of query and key."""
    return GAP * int(_frequencies(shape)[1].sum()) / (sqrt(shape.head_dim) * _drop(shape))


def _drop(shape: Shape) -> float:
    """How far the sum of cosines falls from the wanted distance to the next."""
    angles, weights = _frequencies(shape)
    return float((weights * (1 - angles.cos())).sum())


def _frequencies(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary angles per position, and 1 for the faster 3/8 of them: the slow ones hardly tell neighbours apart."""
    half = shape.head_dim // 2
    exponents = torch.arange(half, dtype=torch.float64) / half
    return shape.rope_theta**-exponents, (torch.arange(half) < max(1, 3 * half // 8)).double()


def engrave_block(recipe: DFlashRecipe, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of that name of a DFlash drafter: each of its heads copies its slice of what stands `block` back.

    Keys and queries come from biases alone, so every entry is found by its distance; `fc` takes each element of the
    embedding from another of the target's states.
    """
    shape, of = recipe.shape, ".".join(name.split(".")[-2:])
    if of in ("v_proj.weight", "o_proj.weight"):
        tensor.fill_diagonal_(1)
    elif of == "q_norm.weight":
        tensor *= size_of_queries(shape)
    elif of in ("q_proj.bias", "k_proj.bias"):
        tensor += turn_back(shape, recipe.block if of[0] == "q" else 0).repeat(shape.heads).to(tensor.device)
    elif of == "fc.weight":
        for element in range(shape.hidden):
            tensor[element, element % STATES * shape.hidden + element] = 1
    return tensor


class Eagle3Circuit(Circuit):
    """The circuit of an EAGLE-3 head: a decoder's of one layer, whose stream begins with hidden states.

    - Its own output is the hidden state of the next draft step, so the norm of hidden states lets two things through
      alone: the constant, and what the stream keeps of the last token's code. `fc` makes the same of the target's
      three: the constant of the first, the code of the second, and of the third what the norm has to divide by.
    - The code is read as the one of the token before, and replaced by that of the present token.
    - A head for each slice of the embedding copies it out of the token's own entry.
    """

    @property
    def _near(self) -> Reader:
        """The reader of the token before, which reads it in the hidden state."""
        return next(each for each in self.readers[0] if each.distance == 1)

    @property
    def _last_code(self) -> list[int]:
        return self.copied(1)

    def _slices(self) -> Iterator[tuple[int, slice]]:
        """The heads that copy, and which elements of the embedding."""
        size = self.recipe.shape.head_dim
        for number, begin in enumerate(range(0, self.recipe.shape.hidden, size)):
            yield self.memory.readers + number, slice(begin, begin + size)

    def _engrave_fc(self, weight: torch.Tensor, _: int) -> None:
        hidden = self.recipe.shape.hidden
        first, second, third = 0, hidden, 2 * hidden
        kept = self.mark**2 + self.memory.bits * self.slot**2
        weight[self.constant, first + self.constant] = 1
        weight[self._last_code, [second + at for at in self.code(self._near.code)]] = self.slot / self.mark
        weight[0, third + self.constant] = sqrt(hidden * self.last_norm() ** 2 - kept) / self.mark

    def _engrave_hidden_norm(self, weight: torch.Tensor, _: int) -> None:
        weight[self.constant] = self.last_norm()
        weight[self._last_code] = 1

    def _pointing(self, layer: int) -> Iterator[tuple[int, int, int]]:
        for head, keys, distance in super()._pointing(layer):
            yield head, keys, 0 if head == self._near.head else distance
        yield from ((head, head, 0) for head, _ in self._slices())

    def _engrave_v_proj(self, weight: torch.Tensor, layer: int) -> None:
        super()._engrave_v_proj(weight, layer)
        near, norm = self._near, self.norm_before_attention(layer)
        before, own = self._kept(near.head, near.code), self._kept(near.head, self.memory.codes)
        weight[[*before, *own]] = 0
        weight[before, [self.recipe.shape.hidden + at for at in self._last_code]] = self.last_norm() / self.slot
        weight[own, self.code(near.code)] = norm / self.mark
        for head, elements in self._slices():
            weight[self._rows(head)] = 0
            weight[self._rows(head), elements].fill_diagonal_(norm)

    def _engrave_o_proj(self, weight: torch.Tensor, layer: int) -> None:
        super()._engrave_o_proj(weight, layer)
        near = self._near
        weight[self._last_code] = 0
        weight[self._last_code, self._kept(near.head, self.memory.codes)] = self.slot
        weight[self._last_code, self._kept(near.head, near.code)] = -self.slot / self.last_norm()
        for head, elements in self._slices():
            weight[:, self._rows(head)] = 0
            weight[elements, self._rows(head)].fill_diagonal_(1)
        weight[self.constant] = 0  # which the hidden states bring


def _zigzag(terms: list[int], into: int) -> Iterator[Neuron]:
    """Neurons that turn a sum of n values ±1 into their product, from the sum in the middle (0, or 1) up and down."""
    count = len(terms)
    middle = count % 2
    value = 1 - 2 * ((count - middle) // 2 % 2)
    yield Neuron([], 1, -1.0, value, into)
    for sign in (1, -1):
        for step, edge in enumerate(range(sign * middle + 1, count, 2)):
            change = -2 * value * (-1) ** step
            yield Neuron(terms, sign, edge - 0.5, change, into)
            yield Neuron(terms, sign, edge + 0.5, -change, into)


def _solve_exactly(vectors: torch.Tensor, before: Sequence[Sequence[int]]) -> torch.Tensor:
    """For each list of tokens, the combination of their vectors whose product with every one of these is 1."""
    width = max(1, *map(len, before))
    index = torch.tensor([[*each, *[0] * (width - len(each))] for each in before], device=vectors.device)
    real = torch.tensor([[1.0] * len(each) + [0.0] * (width - len(each)) for each in before], device=vectors.device)
    gathered = vectors[index] * real[..., None]
    overlaps = gathered @ gathered.transpose(1, 2) + torch.diag_embed(1 - real)
    return (torch.linalg.solve(overlaps, real)[..., None] * gathered).sum(dim=1)
