"""On two GPUs: tensor parallelism of target and draft, and energy summed over both cards."""

import pytest

from pytest_specdec.hardware import gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu(2),
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(
        target="constructed:qwen3-8b",
        max_model_len=2048,
        options={"tensor_parallel_size": 2},
        scenario="scenarios/gpu/thirty-two.toml",
    ),
]


def on_both_cards(record):
    """The first two visible cards and no others carry the energy."""
    assert sorted(record.energy.scope) == sorted(gpu.uuid for gpu in gpus().visible[:2])


def test_target_only_on_two(specdec, vllm_ar, scenario):
    """The base line."""
    on_both_cards(specdec(vllm_ar, scenario))


@pytest.mark.specdec(
    draft="constructed:qwen3-8b:draft",
    method="draft_model",
    gamma=3,
    speculative_options={"draft_tensor_parallel_size": 2},
)
def test_draft_model_on_two(specdec, vllm_spec, scenario):
    """Target and draft are split alike."""
    on_both_cards(specdec(vllm_spec, scenario))
