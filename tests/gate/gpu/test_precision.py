"""On a GPU: precision and kernels as users set them, on a pair whose near-ties are real.

What both arms have alike must never be red: weights in eight bits, a KV cache in eight bits, another attention kernel,
a LoRA adapter, batch invariance of the target. What one arm alone has is told by name and red on real text, which
needs no GPU: tests/engines.
"""

from dataclasses import replace
from importlib.util import find_spec

import pytest
from tests.engines.adapters import write_adapter

PAIR = {"target": "constructed:small?margin=0.003&layers_share=4", "max_model_len": 512}
DRAFT = {"draft": "constructed:small:draft", "method": "draft_model", "gamma": 4}
# No share of the card is measured, so that other engines may come and go on it meanwhile.
SMALL = {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 4 * 2**30, "enable_sleep_mode": False}
ALIKE = {
    "weights": {"quantization": "fp8"},
    "cache": {"kv_cache_dtype": "fp8"},
    "triton": {"attention_backend": "TRITON_ATTN"},
    "flex": {"attention_backend": "FLEX_ATTENTION"},
}
INVARIANT = {
    **PAIR,
    "options": SMALL,
    "environment": {"VLLM_BATCH_INVARIANT": "1"},
    "scenario": "scenarios/gpu/thirty-two.toml",
}
FLASHINFER = SMALL | {"attention_backend": "FLASHINFER"}

pytestmark = [pytest.mark.gpu, pytest.mark.thorough, pytest.mark.engine("vllm")]


def alike(test):
    """A mark for each setting that both arms have, with a drafter."""
    for options in ALIKE.values():
        test = pytest.mark.specdec(**PAIR, **DRAFT, options=SMALL | options, scenario="scenarios/gpu/thirty-two.toml")(
            test
        )
    return test


@alike
def test_what_both_arms_have_is_green(specdec, vllm_spec, scenario):
    """Identical, or a tie within what the target shows of itself."""
    assert specdec(vllm_spec, scenario).verdict.outcome in ("identical", "tie")


@pytest.mark.skipif(find_spec("flashinfer") is None, reason="FlashInfer is not here: pip install flashinfer-python")
@pytest.mark.specdec(**PAIR, **DRAFT, options=FLASHINFER, scenario="scenarios/gpu/thirty-two.toml")
def test_flashinfer_in_both_arms_is_green(specdec, vllm_spec, scenario):
    """Kernels that are compiled when first called."""
    assert specdec(vllm_spec, scenario).verdict.outcome in ("identical", "tie")


@pytest.mark.specdec(**PAIR, **DRAFT, options=SMALL, scenario="scenarios/gpu/thirty-two.toml")
def test_an_adapter_in_both_arms_is_green(specdec, vllm_spec, scenario, tmp_path):
    """Its kernels multiply by two more matrices in every layer, in the target and where drafts are verified."""
    options = vllm_spec.options | {"adapter": write_adapter(PAIR["target"], tmp_path)}
    record = specdec(replace(vllm_spec, options=options), scenario)
    assert record.verdict.outcome in ("identical", "tie")


@pytest.mark.specdec(**INVARIANT)
def test_batch_invariance_of_the_target(specdec, vllm_ar, scenario):
    """At batch 1 and 32 alike."""
    assert specdec(vllm_ar, scenario).verdict.outcome == "identical"


@pytest.mark.specdec(**INVARIANT, **DRAFT)
def test_batch_invariance_is_not_that_of_verification(specdec, vllm_spec, scenario):
    """vLLM 0.26 promises it over batches, not over the γ + 1 tokens of a step: near-ties, red where it was asked for.

    github.com/vllm-project/vllm/issues/54506: once that holds, this gate is identical, and this test says so.
    """
    with pytest.raises(pytest.fail.Exception, match="VLLM_BATCH_INVARIANT was asked for, and a tie is none then"):
        specdec(vllm_spec, scenario)
