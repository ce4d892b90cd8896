"""On a GPU: a pair of 8B and 0.6B shape, with CUDA graphs, sleep mode and memory that comes back.

The target-only engine sleeps while a speculative one has the card, and wakes to rescore. The negative control makes a
real engine emit wrong tokens, at a known rate, and the gate must be red on it.
"""

import pytest

from pytest_specdec.hardware import gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(target="constructed:qwen3-8b", max_model_len=2048, scenario="scenarios/batch.toml"),
]
drafter = pytest.mark.specdec(draft="constructed:qwen3-8b:draft", method="draft_model")


def memory_in_use():
    """Bytes in use on the first visible GPU, whoever holds them."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpus().visible[0].uuid)
    return pynvml.nvmlDeviceGetMemoryInfo(handle).used


@pytest.fixture(scope="module", autouse=True)
def memory_comes_back(request):
    """After the last engine of this module the card is as empty as before the first, to within 1 % of the card."""
    before = memory_in_use() if gpus().visible else 0
    yield
    if gpus().visible:
        request.getfixturevalue("specdec_session").pool.close()
        assert abs(memory_in_use() - before) < 0.01 * 80e9


def test_target_only(specdec, vllm_ar, scenario):
    """The base line."""
    specdec(vllm_ar, scenario)


@drafter
def test_draft_model(specdec, vllm_spec, scenario):
    """A drafter that is right on 80 % of the tokens."""
    specdec(vllm_spec, scenario)


@pytest.mark.specdec(
    draft="constructed:qwen3-8b:draft",
    method="draft_model",
    gamma=2,
    speculative_options={"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.9]},
)
def test_an_engine_that_emits_wrong_tokens_is_red(specdec, vllm_spec, scenario):
    """Synthetic acceptance takes drafts whether or not the target agrees: divergent, with large gaps."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)divergent.*below the target's argmax"):
        specdec(vllm_spec, scenario)
