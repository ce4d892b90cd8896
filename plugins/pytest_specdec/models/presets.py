"""Shapes of decoders, and the pairs that have a name: from one that a CPU decodes in milliseconds to 8 B models'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_specdec.errors import ModelError

Architecture: TypeAlias = Literal["llama", "qwen3"]


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

    def __post_init__(self) -> None:
        if self.architecture not in ("llama", "qwen3"):
            raise ModelError(f"architecture {self.architecture!r} is not supported; use 'llama' or 'qwen3'")
        sizes = (self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim, self.intermediate)
        if min(sizes) < 1 or self.head_dim % 2 or self.heads % self.kv_heads:
            raise ModelError(f"{self} is no decoder: sizes ≥ 1, head_dim even, heads a multiple of kv_heads")


@dataclass(frozen=True)
class Preset:
    """A target's shape and its drafter's, over one vocabulary, and those of both where memory takes others."""

    target: Shape
    draft: Shape
    vocab: int
    max_position_embeddings: int
    memory_target: Shape | None = None
    memory_draft: Shape | None = None


PRESETS = {
    "tiny": Preset(
        target=Shape("llama", 256, 4, 4, 2, 64, 512),
        draft=Shape("llama", 64, 1, 1, 1, 64, 128),
        vocab=1024,
        max_position_embeddings=2048,
        memory_target=Shape("llama", 256, 4, 8, 2, 64, 512),
        memory_draft=Shape("llama", 192, 1, 4, 1, 64, 256),
    ),
    "tiny-qwen3": Preset(
        target=Shape("qwen3", 256, 4, 4, 2, 128, 512, 1_000_000.0),
        draft=Shape("qwen3", 64, 1, 1, 1, 128, 128, 1_000_000.0),
        vocab=1024,
        max_position_embeddings=2048,
        memory_target=Shape("qwen3", 256, 4, 8, 2, 128, 512, 1_000_000.0),
        memory_draft=Shape("qwen3", 192, 1, 4, 1, 128, 256, 1_000_000.0),
    ),
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
