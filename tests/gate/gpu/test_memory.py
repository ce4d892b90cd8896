"""Known truth with memory at the size of real targets: each token depends on entries of the KV cache in every layer.

CUDA graphs, prefill in chunks and a warm prefix cache are on; one, eight and thirty-two requests at once. The gate
holds each answer against the truth, which no engine has computed: a fault of both arms is seen too.
"""

import pytest

REACH = 48
SIZES = [f"scenarios/gpu/{name}.toml" for name in ("one", "eight", "thirty-two")]
RESIDENT = {"enable_sleep_mode": False, "gpu_memory_utilization": 0.42}
WARM = {"enable_prefix_caching": True, "max_num_batched_tokens": 256, "max_num_seqs": 32, **RESIDENT}

pytestmark = [pytest.mark.gpu, pytest.mark.thorough, pytest.mark.engine("vllm")]


def pair(preset, scenario=SIZES, **speculative):
    """The mark of a pair with memory, whose drafter has two layers."""
    draft = f"constructed:{preset}:draft?memory={REACH}&layers=2"
    drafted = {"draft": draft, "method": "draft_model", "gamma": 3, "speculative_options": speculative}
    return pytest.mark.specdec(
        target=f"constructed:{preset}?memory={REACH}", max_model_len=2048, options=WARM, scenario=scenario, **drafted
    )


@pair("llama-8b")
def test_llama_target_only(is_identical_and_true, vllm_ar, scenario):
    """A shape without norms of queries and keys, 32 layers that read."""
    is_identical_and_true(vllm_ar, scenario)


@pair("llama-8b")
def test_llama_draft_model(is_identical_and_true, vllm_spec, scenario):
    """The drafter has a KV cache of its own, which every draft depends on."""
    is_identical_and_true(vllm_spec, scenario)


@pair("qwen3-8b")
def test_qwen3_target_only(is_identical_and_true, vllm_ar, scenario):
    """A shape with norms of queries and keys, 36 layers that read."""
    is_identical_and_true(vllm_ar, scenario)


@pair("qwen3-8b")
def test_qwen3_draft_model(is_identical_and_true, vllm_spec, scenario):
    """The same with its drafter."""
    is_identical_and_true(vllm_spec, scenario)


@pair(
    "llama-8b",
    "scenarios/gpu/eight.toml",
    rejection_sample_method="synthetic",
    synthetic_acceptance_rates=[0.9, 0.9, 0.9],
)
def test_wrong_tokens_are_red(specdec, vllm_spec, scenario):
    """The negative control: drafts are taken whether or not the target agrees."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)divergent.*below the target's argmax"):
        specdec(vllm_spec, scenario)
