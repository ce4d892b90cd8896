"""The constructed pair: small models whose output and acceptance are known beforehand, on each engine and method.

Matrices this small are not worth a second thread, and two threads wait for one another where a core is busy.
"""

import pytest

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target="constructed:tiny",
        max_model_len=512,
        environment={"OMP_NUM_THREADS": "1"},
        scenario="scenarios/short.toml",
    ),
]
drafter = pytest.mark.specdec(draft="constructed:tiny:draft", method="draft_model")


def test_vllm_target_only(specdec, vllm_ar, scenario):
    """Target-only decoding is sane, and the base line of vLLM."""
    specdec(vllm_ar, scenario)


@drafter
def test_vllm_draft_model(specdec, vllm_spec, scenario):
    """A drafter of another size, right on 80 % of the tokens."""
    specdec(vllm_spec, scenario)


@pytest.mark.specdec(draft="constructed:tiny:eagle", method="eagle", gamma=4)
def test_vllm_eagle(specdec, vllm_spec, scenario):
    """An EAGLE head accepts everything: its fc passes the embedding through."""
    record = specdec(vllm_spec, scenario)
    assert record.acceptance.rate.value == 1.0


def test_transformers_target_only(specdec, transformers_ar, scenario):
    """Target-only decoding is sane, and the base line of Transformers."""
    specdec(transformers_ar, scenario)


@pytest.mark.specdec(draft="constructed:tiny:draft", method="draft_model", gamma=4)
def test_transformers_assisted(specdec, transformers_spec, scenario):
    """Assisted generation with the same drafter."""
    specdec(transformers_spec, scenario)
