"""vLLM behind its HTTP server, drafting by lookup, against the target alone, which vLLM runs in a worker.

Prompts walk the constructed pair's own way twice, so that lookup in the prompt finds what comes next.
"""

import pytest

from pytest_specdec.engines.server.process import AS_IT_IS_WRITTEN

TARGET = "constructed:tiny?memory=24"

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(
        target=TARGET,
        method="ngram",
        gamma=3,
        max_model_len=512,
        server={"protocol": "vllm"},
        reference={"engine": "vllm", "environment": {"OMP_NUM_THREADS": "1"}},
        options={"chat_template": AS_IT_IS_WRITTEN},
        environment={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    ),
]


def test_lookup_behind_a_server(specdec, openai_server, walks_of):
    """Exact over HTTP, and drafts are accepted: the server's own counters say so."""
    walks = walks_of(TARGET, (7, 90, 311, 555, 702, 960), 32, concurrency=3, rounds=2)
    assert specdec(openai_server, walks).acceptance.rate.value > 0.8
