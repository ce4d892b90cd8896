"""On a GPU: what a prompt token costs in prefill and an output token in decode, where all prompts are read at once.

One step reads all 64 prompts, in over two seconds of an 8B model: no request decodes meanwhile, and both phases
are longer than five steps of the energy counter.
"""

import pytest

MEMORY = "memory=48"
ALL_AT_ONCE = {"max_num_batched_tokens": 64 * 1536, "max_num_seqs": 64}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(
        target=f"constructed:llama-8b?{MEMORY}",
        draft=f"constructed:llama-8b:eagle?{MEMORY}&alpha=0.8",
        method="eagle",
        gamma=4,
        max_model_len=2048,
        options={"enable_sleep_mode": False, "gpu_memory_utilization": 0.42, **ALL_AT_ONCE},
        scenario="scenarios/gpu/long-prompts.toml",
    ),
]


def test_prefill_and_decode_are_told_apart(specdec, vllm_spec, scenario):
    """A prompt token costs less than an output token, in both arms; speculation saves in decode alone."""
    record = specdec(vllm_spec, scenario)
    ours, alone = record.energy, record.target_alone
    assert ours.prefill_joules_per_prompt_token.value < ours.decode_joules_per_output_token.value
    assert ours.decode_joules_per_output_token.value < alone.decode_joules_per_output_token.value
    assert ours.prefill_joules_per_prompt_token.value == pytest.approx(
        alone.prefill_joules_per_prompt_token.value, rel=0.1
    )
