"""On a GPU: where speculation pays, from one request at once to 256, on the 8B pair with memory.

The head that users switch on, at three acceptances and six γ, a draft model of two layers, and lookup in the prompt.
Both engines stay on the card, so that turns cost no sleep and no waking. It takes longer than a session may last:
`--specdec-resume` takes up what earlier runs have not measured.
"""

import pytest

MEMORY = "memory=48"
TARGET = f"constructed:llama-8b?{MEMORY}"
HEAD = f"constructed:llama-8b:eagle?{MEMORY}&alpha="
DRAFT = f"constructed:llama-8b:draft?{MEMORY}&layers=2"
RESIDENT = {"enable_sleep_mode": False, "gpu_memory_utilization": 0.42}
GAMMAS = (4, 2, 1, 8, 3, 6)  # first what most people choose: a run may be ended before the last one

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.thorough,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(
        target=TARGET,
        max_model_len=2048,
        options={"max_num_seqs": 256, **RESIDENT},
        scenario="scenarios/gpu/map.toml",
    ),
]


def test_target_only(specdec, vllm_ar, scenario):
    """The target-only baseline at each concurrency."""
    assert specdec(vllm_ar, scenario).verdict.known_truth.wrong.value == 0


@pytest.mark.specdec(draft=f"{HEAD}0.8", method="eagle", gamma=GAMMAS)
def test_eagle(specdec, vllm_spec, scenario):
    """A head that is right on 80 % of the tokens."""
    assert specdec(vllm_spec, scenario).verdict.known_truth.wrong.value == 0


@pytest.mark.specdec(draft=f"{HEAD}0.9", method="eagle", gamma=GAMMAS)
def test_good_eagle(specdec, vllm_spec, scenario):
    """On 90 %."""
    assert specdec(vllm_spec, scenario).verdict.known_truth.wrong.value == 0


@pytest.mark.specdec(draft=f"{HEAD}0.6", method="eagle", gamma=GAMMAS)
def test_poor_eagle(specdec, vllm_spec, scenario):
    """On 60 %."""
    assert specdec(vllm_spec, scenario).verdict.known_truth.wrong.value == 0


@pytest.mark.specdec(draft=DRAFT, method="draft_model", gamma=GAMMAS)
def test_draft_model(specdec, vllm_spec, scenario):
    """A drafter of two layers."""
    assert specdec(vllm_spec, scenario).verdict.known_truth.wrong.value == 0


@pytest.mark.parametrize("concurrency", [1, 4, 16, 32, 64, 128, 256])
@pytest.mark.specdec(method="ngram", gamma=GAMMAS)
def test_ngram(specdec, vllm_spec, walks_of, concurrency):
    """Lookup finds the target's own walk in the prompt."""
    walks = walks_of(TARGET, range(3, 3 + 2 * concurrency), 128, concurrency=concurrency)
    assert specdec(vllm_spec, walks).acceptance.rate.value > 0.8


@pytest.mark.specdec(
    draft=f"{HEAD}0.8",
    method="eagle",
    gamma=4,
    speculative_options={"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9] * 4},
    scenario="scenarios/gpu/thirty-two.toml",
)
def test_wrong_tokens_are_red(specdec, vllm_spec, scenario):
    """The negative control: drafts are taken whether or not the target agrees."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)divergent.*below the target's argmax"):
        specdec(vllm_spec, scenario)
