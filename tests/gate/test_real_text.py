"""Real text: SmolLM2-135M on English prompts, where near-ties are real and the prompt often says what comes next."""

import pytest

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target="smollm2",
        max_model_len=512,
        gamma=3,
        scenario="scenarios/prose.toml",
        environment={"OMP_NUM_THREADS": "1"},  # a second one waits for the first wherever a core is shared
    ),
]
one_by_one = pytest.mark.specdec(scenario="scenarios/quote.toml")
thorough = pytest.mark.thorough


def test_vllm_target_only(specdec, vllm_ar, scenario):
    """The target-only baseline."""
    specdec(vllm_ar, scenario)


def test_vllm_ngram(specdec, vllm_spec, scenario):
    """Lookup in the prompt: identical, or a tie with its gap and its floor recorded."""
    verdict = specdec(vllm_spec, scenario).verdict
    assert verdict.max_gap_logits.value <= verdict.noise_floor_logits.value
    assert verdict.calibration.tokens > 0


@thorough
@one_by_one
def test_transformers_target_only(specdec, transformers_ar, scenario):
    """The target-only baseline of Transformers, which prompt lookup is divided by as well."""
    specdec(transformers_ar, scenario)


@one_by_one
def test_transformers_prompt_lookup(specdec, transformers_spec, scenario):
    """Prompt lookup, one request after another."""
    specdec(transformers_spec, scenario)


@thorough
@pytest.mark.specdec(target="smollm2?dtype=float32", dtype="float32")
def test_vllm_ngram_float32(specdec, vllm_spec, scenario):
    """In float32 the near-ties are gone: every token is identical."""
    verdict = specdec(vllm_spec, scenario).verdict
    assert set(verdict.counts) == {"identical"}


@thorough
@pytest.mark.specdec(dtype="bfloat16")
def test_vllm_ngram_bfloat16(specdec, vllm_spec, scenario):
    """In bfloat16, also where the processor only emulates it: near-ties are within the floor."""
    verdict = specdec(vllm_spec, scenario).verdict
    assert verdict.max_gap_logits.value <= verdict.noise_floor_logits.value


@thorough
@pytest.mark.specdec(scenario="scenarios/stopped.toml")
def test_vllm_ngram_up_to_a_stop_text(specdec, vllm_spec, scenario):
    """Text is that of the ids up to the stop text, also where a character takes several tokens."""
    record = specdec(vllm_spec, scenario)
    assert record.throughput.tokens < record.throughput.rounds * 4 * 24


@thorough
@pytest.mark.specdec(draft="smollm2?layers=4", method="draft_model", scenario="scenarios/rejected.toml")
def test_transformers_poor_drafter(specdec, transformers_spec, scenario):
    """A drafter cut from the target's first layers is nearly always rejected, and the output must not suffer."""
    assert specdec(transformers_spec, scenario).acceptance.rate.value < 0.5


@thorough
@pytest.mark.specdec(scenario="scenarios/chat.toml")
def test_vllm_ngram_on_conversations(specdec, vllm_spec, scenario):
    """The chat template writes each conversation, of 51, 30 and 71 tokens, and nothing is added to it."""
    lengths = specdec(vllm_spec, scenario).workload.prompt_tokens
    assert (lengths.min, lengths.p50, lengths.max) == (30, 51, 71)


@thorough
@pytest.mark.specdec(scenario="scenarios/chat.toml")
def test_transformers_prompt_lookup_on_conversations(specdec, transformers_spec, scenario):
    """The other engine's backend writes the same."""
    lengths = specdec(transformers_spec, scenario).workload.prompt_tokens
    assert (lengths.min, lengths.p50, lengths.max) == (30, 51, 71)
