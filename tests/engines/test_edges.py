"""Edges at which decoders break, all at once, on real vLLM: chunked prefill, a full context, a warm prefix cache."""

import pytest

pytestmark = pytest.mark.specdec(
    target="constructed:tiny",
    draft="constructed:tiny:draft",
    method="draft_model",
    gamma=4,
    max_model_len=256,
    environment={"OMP_NUM_THREADS": "1"},
    options={"enable_prefix_caching": True, "max_num_batched_tokens": 48, "max_num_seqs": 8},
    scenario="scenarios/edges.toml",
)


def test_the_target_alone_fills_its_context(specdec, vllm_ar, scenario):
    """Every token is rated at both batch sizes, the one that fills the context too; equal outputs count once."""
    record = specdec(vllm_ar, scenario)
    assert record.verdict.calibration.tokens == 2 * 56
    assert record.throughput.prefix_cache_hits.value == whole_blocks_found_again(record)


def test_a_drafter_near_the_end_of_the_context(specdec, vllm_spec, scenario):
    """Drafts past the end are the engine's to avoid; the record says what was on."""
    record = specdec(vllm_spec, scenario)
    assert record.verdict.outcome == "identical"
    assert record.throughput.prefix_cache_hits.value == whole_blocks_found_again(record)
    assert len(record.acceptance.rate_per_request.value) == 2
    assert record.engine.details["prefix_caching"] is True
    assert record.engine.details["prefill_chunk"] == 48
    assert record.coverage.exercised.chunk_edges.value > 0  # at 240 of 256 tokens


@pytest.mark.specdec(scenario="scenarios/cold.toml")
def test_each_round_begins_with_an_empty_cache(specdec, vllm_ar, scenario):
    """Unless the scenario keeps it: the same prompts in every round, and not one token of them from the cache."""
    record = specdec(vllm_ar, scenario)
    assert record.throughput.rounds > 1
    assert record.engine.details["prefix_caching"] is True
    assert record.throughput.prefix_cache_hits.value == 0


@pytest.mark.thorough
@pytest.mark.specdec(
    options={"distributed_executor_backend": "mp"},
    environment={"VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn", "OMP_NUM_THREADS": "1"},
    scenario="scenarios/short.toml",
)
def test_the_model_runs_in_a_process_of_its_own(specdec, vllm_ar, scenario):
    """As with several GPUs: what runs the model knows nothing of ours, and is asked for its weights all the same."""
    assert specdec(vllm_ar, scenario).engine.details["weights_bytes"] > 0


@pytest.mark.specdec(
    environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "1"},
    scenario="scenarios/short.toml",
)
def test_the_core_runs_in_a_process_of_its_own(specdec, vllm_spec, scenario):
    """As behind vLLM's server: its scheduler cannot be told steps to rate in, and all else is measured all the same."""
    record = specdec(vllm_spec, scenario)
    assert record.engine.details["core_in_own_process"]
    assert record.verdict.outcome == "identical"
    assert record.verdict.near_ties.shape == "as many rows as a step of verification"
    assert record.verdict.foretold.accepted_tokens == record.acceptance.accepted_tokens
    assert record.acceptance.conditional.value is not None


def whole_blocks_found_again(record):
    """In each round but the very first; the last token of a prompt is always computed, for its logits."""
    block = record.engine.details["block_size"]
    warm = record.throughput.rounds if record.throughput.warmup_rounds else record.throughput.rounds - 1
    return warm * 2 * (199 // block * block)
