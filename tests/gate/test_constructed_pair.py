"""The constructed pair with memory: output, accepted drafts and what is read of the KV cache are known beforehand.

On each engine and method the gate holds tokens and counters of both arms against what is known. Matrices this small
are not worth a second thread, and two threads wait for one another where a core is busy.
"""

import pytest

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target="constructed:tiny?memory=24",
        max_model_len=512,
        environment={"OMP_NUM_THREADS": "1"},
        scenario="scenarios/short.toml",
    ),
]
drafter = pytest.mark.specdec(draft="constructed:tiny:draft?memory=24", method="draft_model")


def is_known(record):
    """Whether every token and every counter was held against the truth."""
    return record.verdict.known_truth.wrong.value == 0 and record.verdict.foretold.drafts == record.acceptance.drafts


def test_vllm_target_only(specdec, vllm_ar, scenario):
    """Every token of target-only decoding is the known one, and it is the target-only baseline of vLLM."""
    assert specdec(vllm_ar, scenario).verdict.known_truth.wrong.value == 0


@drafter
def test_vllm_draft_model(specdec, vllm_spec, scenario):
    """A drafter of another size, right on 80 % of the tokens."""
    assert is_known(specdec(vllm_spec, scenario))


@pytest.mark.specdec(draft="constructed:tiny:eagle?memory=24", method="eagle", gamma=4)
def test_vllm_eagle(specdec, vllm_spec, scenario):
    """An EAGLE head accepts everything: its fc passes the embedding through."""
    record = specdec(vllm_spec, scenario)
    assert is_known(record)
    assert record.acceptance.rate.value == 1.0


def test_transformers_target_only(specdec, transformers_ar, scenario):
    """Every token of target-only decoding is the known one, and it is the target-only baseline of Transformers."""
    assert specdec(transformers_ar, scenario).verdict.known_truth.wrong.value == 0


@pytest.mark.specdec(draft="constructed:tiny:draft?memory=24", method="draft_model", gamma=4)
def test_transformers_assisted(specdec, transformers_spec, scenario):
    """Assisted generation with the same drafter."""
    assert is_known(specdec(transformers_spec, scenario))
