"""States that only real text has, on SmolLM2: loops and ends, answers that are remembered, structures that are spelled.

Each gate must end as its row of docs/states.md says, as those of the constructed pair do.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from tests.states.page import TEXT, row_of
from tests.states.test_states import Reach, hold_against_the_page, outcome_of

from pytest_specdec.engines.server.process import AS_IT_IS_WRITTEN
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.record import Record
from pytest_specdec.run.gate import Gate
from pytest_specdec.workloads.scenario import Scenario

ALONE = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
STATES = {
    "vllm ngram": ("choice", "circles", "past_end", "schema", "to_end"),
    "vllm suffix": ("fresh", "remembered"),
    "served ngram": ("choice", "schema"),
}
TOLD = ("go in circles", "after an end", "acceptance rose")

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target="smollm2?dtype=float32", dtype="float32", gamma=4, max_model_len=512, environment=ALONE, method="ngram"
    ),
]


def scenarios(engine: str) -> list[str]:
    """The files of its states."""
    return [str(TEXT / f"{state}.toml") for state in STATES[engine]]


def figures(record: Record) -> Iterator[str]:
    """The outcome, how much was accepted, what the answers are like, and what a reader is warned of."""
    acceptance, answers = record.acceptance, record.answers
    shares = {"accepted": acceptance.rate.value, "repeated": answers.repeated_share.value}
    steps = {
        "tokens_per_step": acceptance.delivered_tokens_per_step.value,
        "to_end": answers.tokens_per_step_to_end.value,
        "past": answers.tokens_per_step_past_end.value,
    }
    yield record.verdict.outcome
    yield from (f"{name} {value:.0%}" for name, value in shares.items() if value is not None)
    yield from (f"{name} {value:.3g}" for name, value in steps.items() if value is not None)
    if answers.past_end.value:
        yield f"past_end {answers.past_end.value}"
    yield from (each for each in record.warnings if any(words in each for words in TOLD))


@pytest.fixture
def reach(request: pytest.FixtureRequest, specdec: Gate, scenario: Scenario) -> Reach:
    """Put an engine through the state, and hold what became of it against the page."""

    def run(spec: EngineSpec) -> None:
        words = outcome_of(specdec, spec, scenario, figures)
        hold_against_the_page(scenario.name, row_of(request.node.originalname), words)

    return run


@pytest.mark.specdec(scenario=scenarios("vllm ngram"))
def test_vllm_ngram(reach: Reach, vllm_spec: EngineSpec) -> None:
    """Lookup in the prompt and in the answer so far."""
    reach(vllm_spec)


@pytest.mark.skipif(find_spec("arctic_inference") is None, reason="arctic-inference is not here: docs/methods.md")
@pytest.mark.specdec(method="suffix", scenario=scenarios("vllm suffix"))
def test_vllm_suffix(reach: Reach, vllm_spec: EngineSpec) -> None:
    """Lookup in earlier answers too."""
    reach(vllm_spec)


@pytest.mark.engine("vllm")
@pytest.mark.specdec(
    scenario=scenarios("served ngram"),
    server={"protocol": "vllm"},
    reference={"engine": "vllm", "environment": ALONE},
    options={"chat_template": AS_IT_IS_WRITTEN},
    environment={"HF_HUB_OFFLINE": "1", **ALONE},
)
def test_served_ngram(reach: Reach, openai_server: EngineSpec) -> None:
    """The same behind vLLM's server."""
    reach(openai_server)
