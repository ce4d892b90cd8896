"""What a pair with memory reads: at which distances, by which heads, and how much of the residual stream that takes.

A reader is a query head whose score depends on the distance alone, with one peak: it copies the code of the token so
many positions back out of its KV head's cache. A model multiplies all codes that it has read, so a distance that is
read twice, in two layers, cancels: only the `net` distances decide the next token. So every layer of a target reads
its own entries at many distances, and a drafter of one layer need read but four. With `codes`, a token
has several: readers of one entry read different ones, so that a foreign token seldom has the same by chance.

In all layers but the first, every second KV head keeps no token's own code but the one that the very first reader
copied there, from `hop` positions back: such an entry depends on its context, and not on its token alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_specdec.errors import ModelError
from pytest_specdec.models.presets import Shape

LEAST_REACH = 6  # below it, the net distances are not four
MOST_BITS = 3
MOST_CODES = 8
GOLDEN = 0.6180339887498949  # its multiples, modulo 1, are evenly spread however many there are


@dataclass(frozen=True)
class Memory:
    """`reach`: the largest distance that is read. `readers`: reading heads of a layer. `bits`: of each of `codes`."""

    reach: int
    readers: int
    bits: int = 2
    codes: int = 1

    def __post_init__(self) -> None:
        if self.reach < LEAST_REACH:
            raise ModelError(f"memory={self.reach} is too short; the least is {LEAST_REACH}")
        if not 1 <= self.bits <= MOST_BITS:
            raise ModelError(f"bits={self.bits} is not within 1..{MOST_BITS}")
        if not 1 <= self.codes <= MOST_CODES:
            raise ModelError(f"codes={self.codes} is not within 1..{MOST_CODES}")

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
        """Which of a token's codes is read at each net distance: the first wherever it may have been copied before."""
        return 1 % self.codes, 0, 0, 0


@dataclass(frozen=True)
class Reader:
    """A layer's query head, whether its KV head keeps what was copied before, and which code it reads how far back."""

    layer: int
    head: int
    hops: bool
    distance: int
    code: int = 0


def default_readers(shape: Shape) -> int:
    """Four, for the four net distances, or one for each KV head where these are more."""
    return min(shape.heads, max(4, shape.kv_heads))


def kv_head(shape: Shape, head: int) -> int:
    """The KV head of a query head."""
    return head // (shape.heads // shape.kv_heads)


def readings(memory: Memory, shape: Shape) -> list[list[Reader]]:
    """The readers of each layer; the first of the first layer is the one whose reading others keep.

    Raises ModelError where the shape has too few heads.
    """
    made = list(_readers(memory, shape))
    return [[reader for reader in made if reader.layer == layer] for layer in range(shape.layers)]


def count_reserved(memory: Memory, shape: Shape) -> int:
    """Elements of the residual stream that are set apart: a constant, the code, each reading and each product."""
    return 1 + memory.bits * (memory.codes + shape.layers + sum(map(len, readings(memory, shape))))


def _readers(memory: Memory, shape: Shape) -> Iterator[Reader]:
    own, keeping = _heads(memory, shape)
    hop, reach = memory.hop, memory.reach
    first, last = [(hop, 0), (1, memory.net_codes[0])], memory.net[2:]
    if min(len(own), len(keeping)) >= 2:
        yield from _net(own, first)
        yield from _net(keeping, [(distance - hop, 0) for distance in last])
    elif len(own) >= len(memory.net):
        yield from _net(own, [*first, *((distance, 0) for distance in last)])
    else:
        raise ModelError(f"memory reads {len(memory.net)} distances with {len(own)} readers in all; raise readers")
    yield from _cancelling(own, reach, memory.codes)
    yield from _cancelling(keeping, reach - hop, 1)


def _heads(memory: Memory, shape: Shape) -> tuple[list[Reader], list[Reader]]:
    """Heads that find a token's own code, and heads that find what was copied; spread over KV heads and layers."""
    if not 1 <= memory.readers <= shape.heads:
        raise ModelError(f"readers={memory.readers} is not within 1..{shape.heads}, the heads of a layer")
    heads = []
    for number in range(memory.readers):
        place, group = divmod(number, shape.kv_heads)
        head = group * (shape.heads // shape.kv_heads) + place
        heads += [Reader(layer, head, layer > 0 and group % 2 == 1, 0) for layer in range(shape.layers)]
    return [head for head in heads if not head.hops], [head for head in heads if head.hops]


def _net(heads: list[Reader], wanted: Sequence[tuple[int, int]]) -> Iterator[Reader]:
    """Heads that read at these distances these codes."""
    for distance, code in wanted:
        yield _at(heads.pop(0), distance, code)


def _cancelling(heads: list[Reader], furthest: int, codes: int) -> Iterator[Reader]:
    """Pairs of heads of two layers that read one code at one distance; a head without a partner reads nothing."""
    pairs = 0
    while heads:
        first = heads.pop(0)
        other = next((head for head in heads if head.layer != first.layer), None)
        if other is not None:
            heads.remove(other)
            pairs += 1
            distance = 1 + int(furthest * (pairs * GOLDEN % 1))
            yield _at(first, distance, pairs % codes)
            yield _at(other, distance, pairs % codes)


def _at(head: Reader, distance: int, code: int) -> Reader:
    return Reader(head.layer, head.head, head.hops, distance, code)
