"""Bytes and FLOPs of a step against sums done by hand, and nulls with reasons where the shape or device is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_specdec.metrics.roofline import PEAKS, Shape, Step, roofline_part
from pytest_specdec.record import missing
from pytest_specdec.record.parts import RooflinePart

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "intermediate_size": 16,
    "vocab_size": 100,
}
LLAMA_3_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
ONE = Step("bfloat16", sequences=1, context=1000)
H200 = "NVIDIA H200"


def test_weights_are_counted_by_matrix() -> None:
    """A layer: q and o 8×8, k and v 8×4, three of 8×16. The head: 8×100."""
    assert Shape.of(TINY).weights == 2 * (2 * 64 + 2 * 32 + 3 * 128) + 800
    assert Shape.of(TINY).cached_per_token == 2 * 2 * 2 * 2


def test_a_known_model_has_its_published_size() -> None:
    """8.03 B parameters, of which the input embedding is not read."""
    embedding = 4096 * 128256
    assert Shape.of(LLAMA_3_8B).weights + embedding == pytest.approx(8.03e9, rel=0.001)


def test_a_step_moves_weights_once_and_each_cache() -> None:
    step, shape = Step("float32", sequences=3, context=10, tokens=2), Shape.of(TINY)
    weights = shape.weights
    assert shape.bytes_of(step) == 4 * (weights + 3 * 10 * 16)
    assert shape.flops_of(step) == 3 * 2 * (2 * weights + 4 * (2 * 4 * 2) * 10)


@pytest.mark.parametrize(
    ("sequences", "tokens", "bound"), [(1, 1, True), (1, 5, True), (256, 1, True), (256, 5, False)]
)
def test_decoding_is_memory_bound_until_enough_tokens_share_the_weights(
    sequences: int, tokens: int, bound: bool
) -> None:
    step = Step("bfloat16", sequences, context=100, tokens=tokens)
    part = roofline_part(LLAMA_3_8B, step, "NVIDIA H100 80GB HBM3", 0.01)
    assert part.memory_bound.value is bound
    assert bound is (part.flops_per_byte.value < part.ridge_flops_per_byte.value)


def test_the_roof_explains_a_share_of_the_measured_step() -> None:
    """15 GB at 4.8 TB/s take 3.2 ms: of a step of 6.4 ms, half."""
    part = roofline_part(LLAMA_3_8B, ONE, H200, 2 * Shape.of(LLAMA_3_8B).bytes_of(ONE) / PEAKS[H200].bandwidth)
    assert part.roof_share.value == pytest.approx(0.5)
    assert part.bytes_per_second.value == pytest.approx(2.4e12)


@pytest.mark.parametrize(
    ("config", "step", "reason"),
    [
        (None, ONE, "config.json cannot be read"),
        ({"model_type": "mixtral"}, ONE, "model type 'mixtral' is not known"),
        ({"model_type": "llama", "hidden_size": 8}, ONE, "config.json lacks num_hidden_layers, num_attention_heads"),
        ({**TINY, "quantization_config": {"bits": 4}}, ONE, "quantised"),
        (TINY, replace(ONE, dtype="fp8"), "width of dtype 'fp8'"),
    ],
)
def test_an_unknown_shape_is_null_with_the_reason(config: dict[str, Any] | None, step: Step, reason: str) -> None:
    part = roofline_part(config, step, H200, 0.01)
    assert reason in part.memory_bound.reason
    assert part == missing(RooflinePart, part.memory_bound.reason)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "bfloat16"), (H200, "float32")])
def test_an_unknown_peak_leaves_bytes_and_flops(device: str, dtype: str) -> None:
    part = roofline_part(TINY, replace(ONE, dtype=dtype), device, 0.01)
    assert part.bytes_per_step.value > 0
    assert (part.memory_bound.value, part.roof_share.value) == (None, None)
    assert part.memory_bound.reason == f"peak FLOPs and bandwidth of {device} in {dtype} are not known here"


def test_a_step_that_was_not_timed_has_no_rate() -> None:
    part = roofline_part(TINY, ONE, H200, None)
    assert (part.bytes_per_second.value, part.roof_share.value, part.memory_bound.value) == (None, None, True)
    assert part.bytes_per_second.reason == "a step's time is not known"
