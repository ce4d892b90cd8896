"""A hint at what bounds decoding: bytes moved and FLOPs done a step, by the model's shape, against the device's peaks.

A step reads every weight once, whatever the batch, and each sequence's keys and values; it does two FLOPs a weight for
each token. By the roofline model (Williams et al. 2009) the border is peak FLOPs over peak bandwidth. This is
arithmetic, not measurement, so the share of a measured step that it explains is given too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import RooflinePart

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
GATED_MODELS = ("gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3")
NO_STEP = "a step's time is not known"


@dataclass(frozen=True)
class Peak:
    """A device's peaks by its maker's data sheet: dense FLOP/s in 16-bit formats, and bytes/s of its memory."""

    flops: float
    bandwidth: float


PEAKS = {
    "NVIDIA H200": Peak(989e12, 4.8e12),
    "NVIDIA H100 80GB HBM3": Peak(989e12, 3.35e12),
    "NVIDIA H100 PCIe": Peak(756e12, 2.0e12),
    "NVIDIA A100-SXM4-80GB": Peak(312e12, 2.039e12),
    "NVIDIA A100-SXM4-40GB": Peak(312e12, 1.555e12),
    "NVIDIA L4": Peak(121e12, 0.3e12),
}


@dataclass(frozen=True)
class Step:
    """One forward pass: `sequences` of `context` tokens each, of which `tokens` are computed now (γ+1 to verify)."""

    dtype: str
    sequences: int
    context: float
    tokens: int = 1

    @classmethod
    def of(cls, rounds: Rounds, dtype: str, sequences: int, gamma: int) -> Step:
        """A step of these rounds in the middle of an answer; `sequences` at once."""
        lengths = [len(answer.prompt_ids) + len(answer.token_ids) / 2 for answer in rounds.answers]
        return cls(dtype, min(sequences, len(lengths)), sum(lengths) / max(1, len(lengths)), gamma + 1)


@dataclass(frozen=True)
class Shape:
    """A dense decoder's sizes, under the names of a Hugging Face `config.json`."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """Raises ValueError for an architecture that is not dense and gated, and for one that lacks a size."""
        kind = config.get("model_type")
        if kind not in GATED_MODELS:
            raise ValueError(f"the shape of model type {kind!r} is not known here; known: {', '.join(GATED_MODELS)}")
        heads = config.get("num_attention_heads")
        derived = {
            "num_key_value_heads": heads,
            "head_dim": config["hidden_size"] // heads if heads and config.get("hidden_size") else None,
        }
        sizes = {name: config.get(name) or derived.get(name) for name in cls.__dataclass_fields__}
        lacking = [name for name, size in sizes.items() if not size]
        if lacking:
            raise ValueError(f"the model's config.json lacks {', '.join(lacking)}")
        return cls(**{name: int(size) for name, size in sizes.items() if size})

    @property
    def weights(self) -> int:
        """Weights that a step reads: attention, MLP and output head, not the embedding's other rows."""
        queries = self.num_attention_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        attention = self.hidden_size * (2 * queries + 2 * keys)
        mlp = 3 * self.hidden_size * self.intermediate_size  # the gate, up and down
        return self.num_hidden_layers * (attention + mlp) + self.hidden_size * self.vocab_size

    @property
    def cached_per_token(self) -> int:
        """Numbers in the cache for one token: a key and a value of each layer."""
        return self.num_hidden_layers * 2 * self.num_key_value_heads * self.head_dim

    def bytes_of(self, step: Step) -> float:
        """Weights once, and every sequence's cache."""
        return (self.weights + step.sequences * step.context * self.cached_per_token) * DTYPE_BYTES[step.dtype]

    def flops_of(self, step: Step) -> float:
        """Two for each weight and token, and two for each query's product with every key, and with every value."""
        queries = self.num_hidden_layers * self.num_attention_heads * self.head_dim
        return step.sequences * step.tokens * (2 * self.weights + 4 * queries * step.context)


def roofline_part(config: Mapping[str, Any] | None, step: Step, device: str, step_s: float | None) -> RooflinePart:
    """The record's hint for one step of the target.

    `config`: the target's config.json, None where it cannot be read. `device`: its name as torch has it. `step_s`: the
    measured step in seconds. `roof_share`: the time that the nearer roof asks for over `step_s`; far below 1, launches
    and the processor bound decoding, not the roofs.
    """
    try:
        shape = _shape(config, step.dtype)
    except ValueError as error:
        return missing(RooflinePart, str(error))
    read, done = shape.bytes_of(step), shape.flops_of(step)
    known = replace(
        missing(RooflinePart, f"peak FLOPs and bandwidth of {device} in {step.dtype} are not known here"),
        bytes_per_step=Figure(read),
        flops_per_step=Figure(done),
        flops_per_byte=Figure(done / read),
        bytes_per_second=Figure(read / step_s if step_s else None, NO_STEP),
    )
    peak = PEAKS.get(device) if DTYPE_BYTES[step.dtype] == 2 else None
    if peak is None:
        return known
    roof_s, ridge = max(read / peak.bandwidth, done / peak.flops), peak.flops / peak.bandwidth
    return replace(
        known,
        ridge_flops_per_byte=Figure(ridge),
        memory_bound=Figure(done / read < ridge),
        roof_share=Figure(roof_s / step_s if step_s else None, NO_STEP),
    )


def _shape(config: Mapping[str, Any] | None, dtype: str) -> Shape:
    if config is None:
        raise ValueError("the target's config.json cannot be read here")
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"the width of dtype {dtype!r} is not known here; known: {', '.join(DTYPE_BYTES)}")
    if config.get("quantization_config"):
        raise ValueError("the weights are quantised, so their bytes do not follow from the dtype")
    return Shape.of(config)
