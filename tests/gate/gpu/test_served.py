"""On a GPU: vLLM behind its HTTP server with a head, beside the target alone behind another, as users deploy it.

Rates rise until an arm no longer keeps up. Both servers stand on one card, so each has less than half of its memory.
"""

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(
        target="constructed:llama-8b?memory=48",
        draft="constructed:llama-8b:eagle?memory=48&alpha=0.8",
        method="eagle",
        gamma=4,
        max_model_len=2048,
        server={},
        options={"gpu_memory_utilization": 0.42, "max_num_seqs": 256},
        scenario=["scenarios/gpu/thirty-two.toml", "scenarios/gpu/rates.toml"],
    ),
]


def test_a_head_behind_a_server(specdec, openai_server, scenario):
    """Exact over HTTP, whatever the rate; energy is that of the servers' card."""
    record = specdec(openai_server, scenario)
    assert record.verdict.known_truth.wrong.value == 0
    assert record.energy.joules_per_token.value is not None
