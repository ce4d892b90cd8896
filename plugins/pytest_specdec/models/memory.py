"""The shape of a decoder, and what a pair with memory reads: at which distances, by which heads, in how much room.

A reader is a query head whose score depends on the distance alone: it copies the code of the token so many positions
back out of its KV head's cache. A model multiplies all codes that it has read, so a distance that is read twice, in two
layers, cancels: only the `net` distances decide the next token. Of a token's several `codes`, readers of one entry read
different ones. In all layers but the first, every second KV head keeps no token's own codes but those that the very
first reader copied there, from `hop` positions back; what cancels is read of an own entry and of such a copy, where it
can be: a fault of all layers alike does not cancel then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pytest_specdec.errors import ModelError

Architecture: TypeAlias = Literal["llama", "qwen3", "mimo"]  # the last is Qwen2's, with a layer for MTP


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder: widths in elements, `layers` and `heads` as counts."""

    architecture: Architecture
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float = 10_000.0


@dataclass(frozen=True)
class Memory:
    """`reach`: the largest distance that is read. `readers`: reading heads of a layer. `bits`: of each of `codes`."""

    reach: int
    readers: int
    bits: int = 2
    codes: int = 4

    @property
    def classes(self) -> int:
        """How many maps the pair has; the product of the codes that were read chooses among them."""
        return 1 << self.bits

    @property
    def hop(self) -> int:
        """The distance of the first reader, whose reading other heads keep."""
        return self.reach // 3

    @property
    def net(self) -> tuple[int, ...]:
        """The distances that decide the next token: those that are read an odd number of times."""
        return 1, self.hop, 2 * self.reach // 3, self.reach

    @property
    def net_codes(self) -> tuple[int, ...]:
        """Which of a token's codes is read at each net distance."""
        return 1 % self.codes, 0, 2 % self.codes, 3 % self.codes


@dataclass(frozen=True)
class Reader:
    """A layer's query head, whether its KV head keeps what was copied before, and which code it reads how far back.

    `kv_head`: the KV head that it reads; `place`: its number among the query heads of that.
    """

    layer: int
    head: int
    kv_head: int
    place: int
    hops: bool
    distance: int = 0
    code: int = 0


def readings(memory: Memory, shape: Shape) -> list[list[Reader]]:
    """The readers of each layer; the first of the first layer is the one whose reading others keep.

    Raises ModelError where the shape has too few heads.
    """
    made = _readers(memory, shape)
    return [[reader for reader in made if reader.layer == layer] for layer in range(shape.layers)]


def count_reserved(memory: Memory, shape: Shape) -> int:
    """Elements of the residual stream that are set apart: a constant, the code, each reading and each product."""
    copied = memory.codes - 1 + sum(map(len, readings(memory, shape)))  # the first reader copies all codes
    return 1 + memory.bits * (memory.codes + shape.layers + copied)


def _readers(memory: Memory, shape: Shape) -> list[Reader]:
    own, keeping = _heads(memory, shape)
    near, hop, further, furthest = zip(memory.net, memory.net_codes, strict=True)
    if min(len(own), len(keeping)) >= 2:
        copies = [(distance - memory.hop, code) for distance, code in (further, furthest)]
        deciding = [*_take(own, (hop, near)), *_take(keeping, copies)]
    elif len(own) >= len(memory.net):
        deciding = _take(own, (hop, near, further, furthest))
    else:
        raise ModelError(f"memory reads {len(memory.net)} distances with {len(own)} readers in all; raise readers")
    return [*deciding, *_cancelling([*own, *keeping], memory, deciding)]


def _heads(memory: Memory, shape: Shape) -> tuple[list[Reader], list[Reader]]:
    """Heads that find a token's own code, and heads that find what was copied; spread over KV heads and layers."""
    if not 1 <= memory.readers <= shape.heads:
        raise ModelError(f"readers={memory.readers} is not within 1..{shape.heads}, the heads of a layer")
    heads = []
    for number in range(memory.readers):
        place, group = divmod(number, shape.kv_heads)
        head = group * (shape.heads // shape.kv_heads) + place
        heads += [Reader(layer, head, group, place, layer > 0 and group % 2 == 1) for layer in range(shape.layers)]
    return [head for head in heads if not head.hops], [head for head in heads if head.hops]


def _take(heads: list[Reader], wanted: Iterable[tuple[int, int]]) -> list[Reader]:
    return [replace(heads.pop(0), distance=distance, code=code) for distance, code in wanted]


def _cancelling(heads: list[Reader], memory: Memory, deciding: Sequence[Reader]) -> Iterator[Reader]:
    """Pairs of heads that read one code of one token, as far back and of a code as is read least where they are."""
    backs = Counter((each.layer, each.hops, each.distance + each.hops * memory.hop) for each in deciding)
    codes = Counter((each.layer, each.kv_head, each.code) for each in deciding)
    for number, pair in enumerate(_pairs(heads)):
        nearest, turned = 1 + memory.hop * any(each.hops for each in pair), (pair[0].layer + pair[0].place) % 3
        inwards = range(nearest, memory.reach + 1)[:: -1 if turned else 1]  # from the far end on, or from the near one
        back = min(inwards, key=lambda back: sum(backs[each.layer, each.hops, back] for each in pair))
        others = [(number + step) % memory.codes for step in range(memory.codes)]
        code = min(others, key=lambda code: sum(codes[each.layer, each.kv_head, code] for each in pair))
        for each in pair:
            backs[each.layer, each.hops, back] += 1
            codes[each.layer, each.kv_head, code] += 1
            yield replace(each, distance=back - each.hops * memory.hop, code=code)


def _pairs(heads: list[Reader]) -> Iterator[tuple[Reader, Reader]]:
    """Heads of two layers, one that finds own codes with one that finds copies; one without a partner reads nothing."""
    while heads:
        first = heads.pop(0)
        others = [each for each in heads if each.layer != first.layer]
        unlike = [each for each in others if each.hops != first.hops]
        for other in (unlike or others)[:1]:
            heads.remove(other)
            yield first, other
