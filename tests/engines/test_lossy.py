"""A lossy mode of a real engine: red where tokens are judged, figures without a verdict where the mark asks for that.

Transformers' ensemble verifies drafts with a mean of both models, so that more of them are accepted than are the
target's own choice. vLLM's synthetic acceptance does not run on a CPU; llama.cpp's is in tests/llamacpp.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.run.gate import Gate
from pytest_specdec.workloads.scenario import Scenario

WHY = "verified with a mean of both models"
LOSSY = {"assistant_ensemble_weight": 0.5}

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target="constructed:tiny?memory=12",
        draft="constructed:tiny:draft?memory=12&alpha=0.5",
        method="draft_model",
        gamma=3,
        dtype="float32",
        max_model_len=128,
        environment={"OMP_NUM_THREADS": "1"},
        scenario=str(Path(__file__).parents[2] / "scenarios" / "short.toml"),
    ),
]


@pytest.mark.specdec(speculative_options=LOSSY)
def test_an_ensemble_of_transformers_is_red(specdec: Gate, transformers_spec: EngineSpec, scenario: Scenario) -> None:
    """Its tokens are not the target's, by the target's rating and by what is known of the pair."""
    with pytest.raises(pytest.fail.Exception, match=r"^divergent: "):
        specdec(transformers_spec, scenario)


@pytest.mark.specdec(speculative_options=LOSSY, unjudged=WHY)
def test_an_ensemble_of_transformers_is_measured(
    specdec: Gate, transformers_spec: EngineSpec, scenario: Scenario
) -> None:
    """Figures, how many answers are the target's own, and no verdict."""
    record = specdec(transformers_spec, scenario)
    assert (record.gate, record.verdict.outcome, record.asked.unjudged) == ("unjudged", "not judged", WHY)
    assert record.acceptance.rate.value
    assert record.verdict.counts["not judged"] > record.verdict.counts["identical"]
