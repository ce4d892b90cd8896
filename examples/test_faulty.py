"""An engine with a fault, which is red on purpose: this is what you see when an upgrade breaks speculation."""

import pytest


@pytest.mark.specdec(gamma=2, speculative_options={"fault": "wrong token"})
def test_a_wrong_token_is_emitted(specdec, spec_engine, scenario):
    """As assisted decoding in Transformers 4.40 did, it emits tokens that the target would not have chosen."""
    specdec(spec_engine, scenario)
