"""On a GPU: a pair of 8B and 0.6B shape, with CUDA graphs, sleep mode and memory that comes back; ten minutes of it.

The target-only engine sleeps while a speculative one has the card, and wakes to rescore and to be timed again. The
negative control makes a real engine emit wrong tokens, at a known rate, and the gate must be red on it.
"""

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(
        target="constructed:qwen3-8b",
        max_model_len=2048,
        scenario=["scenarios/gpu/one.toml", "scenarios/gpu/thirty-two.toml"],
    ),
]
DRAFT = {"draft": "constructed:qwen3-8b:draft", "method": "draft_model"}


def test_target_only(specdec, vllm_ar, scenario):
    """The target-only baseline."""
    specdec(vllm_ar, scenario)


@pytest.mark.specdec(**DRAFT, gamma=2)
def test_draft_model(specdec, vllm_spec, scenario):
    """A drafter that is right on 80 % of the tokens."""
    specdec(vllm_spec, scenario)


@pytest.mark.specdec(
    **DRAFT,
    gamma=2,
    speculative_options={"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.9]},
    scenario="scenarios/gpu/thirty-two.toml",
)
def test_an_engine_that_emits_wrong_tokens_is_red(specdec, vllm_spec, scenario):
    """Synthetic acceptance takes drafts whether or not the target agrees: divergent, with large gaps."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)divergent.*below the target's argmax"):
        specdec(vllm_spec, scenario)
