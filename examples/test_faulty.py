"""An engine with a fault, which is red on purpose: this is what you see when an upgrade breaks speculation."""

import pytest


@pytest.mark.specdec(gamma=4, speculative_options={"fault": "wrong token accepted"})
def test_a_wrong_draft_is_accepted(specdec, spec_engine, scenario):
    """Verification lets a token through that the target would not have chosen."""
    specdec(spec_engine, scenario)
