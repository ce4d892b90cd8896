"""On a GPU: how vLLM may verify other than token by token: lossy by name, measured without a verdict; and by blocks.

Synthetic acceptance takes drafts at given rates, whatever the target says. Block verification (Sun et al. 2025) decides
of all drafts of a step together and keeps the target's distribution; vLLM has it in Model Runner V2 alone.
"""

import pytest

RATES = [0.9, 0.8, 0.7, 0.6]
SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": RATES}
BLOCK = {"rejection_sample_method": "block", "draft_sample_method": "probabilistic"}
FLAT = "vocab=64&margin=0.1&dtype=float32"  # at temperature 1.5 the token of the map has 0.6 of the probability
SMALL = {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 4 * 2**30, "enable_sleep_mode": False}
SAMPLED = {
    "target": f"constructed:tiny?{FLAT}",
    "draft": "constructed:tiny:eagle?vocab=64&dtype=float32",
    "dtype": "float32",
    "environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"},
    "scenario": "scenarios/gpu/sampled.toml",
}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(method="eagle", gamma=4, max_model_len=512, options=SMALL),
]


@pytest.mark.specdec(
    target="constructed:small?memory=24",
    draft="constructed:small:eagle?memory=24&alpha=0.8",
    speculative_options=SYNTHETIC,
    unjudged="acceptance is given, not found",
    scenario="scenarios/gpu/thirty-two.toml",
)
def test_synthetic_acceptance_is_measured(specdec, vllm_spec, scenario):
    """Drafts are accepted at the rates that were given, answers are not the target's, and no verdict is green."""
    record = specdec(vllm_spec, scenario)
    assert (record.gate, record.verdict.outcome) == ("unjudged", "not judged")
    assert record.verdict.counts["not judged"] > 0
    assert record.acceptance.rate.value == pytest.approx(sum(RATES) / len(RATES), abs=0.05)


@pytest.mark.specdec(**SAMPLED, speculative_options=BLOCK)
def test_block_verification_keeps_the_distribution(specdec, vllm_spec, scenario):
    """Consistent with the target's own distribution at a temperature, where drafts are accepted and rejected."""
    record = specdec(vllm_spec, scenario)
    assert record.verdict.outcome == "consistent"
    assert 0 < record.acceptance.rate.value < 1


@pytest.mark.specdec(**SAMPLED, speculative_options=SYNTHETIC)
def test_synthetic_acceptance_is_red_at_a_temperature(specdec, vllm_spec, scenario):
    """The negative control: the same gate."""
    with pytest.raises(pytest.fail.Exception, match=r"^different"):
        specdec(vllm_spec, scenario)
