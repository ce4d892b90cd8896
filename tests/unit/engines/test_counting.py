"""The fake engine decodes a constructed pair as it is known, and counts as it says; SGLang counted so on an H200."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_specdec.engines.fake import FakeEngine
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Speculation
from pytest_specdec.history.saved import read_run
from pytest_specdec.models import expected_continuation
from pytest_specdec.models.truth import COUNTINGS, expected_counters
from pytest_specdec.workloads.scenario import Scenario
from pytest_specdec.workloads.workload import Request, Workload

TARGET, DRAFT = "constructed:tiny?memory=6&vocab=64", "constructed:tiny:draft?memory=6&vocab=64&alpha=0.7"
PROMPT = (9, 33, 12, 60, 8, 41, 7)
PAIR = EngineSpec(backend="fake", target=TARGET, draft=DRAFT, method="draft_model", gamma=3)


def counted(tokens: int) -> tuple[tuple[int, ...], Speculation | None]:
    """The fake engine's tokens and counters after one prompt."""
    engine = FakeEngine(PAIR)
    engine.prepare(Workload("w", (Request(PROMPT, tokens),), 1))
    engine.run()
    run = engine.collect()
    return run.generations[0].token_ids, run.speculation


@pytest.mark.parametrize("tokens", [1, 2, 4, 9, 40])
def test_the_fake_engine_decodes_a_constructed_pair_as_it_is_known(tokens: int) -> None:
    """Tokens and counters."""
    known = tuple(expected_continuation(TARGET, PROMPT, tokens))
    foretold = expected_counters(COUNTINGS["fake"], (TARGET, DRAFT), [(PROMPT, tokens)], 3)
    assert counted(tokens) == (known, foretold)


def test_a_pair_that_cannot_be_is_an_engine_error() -> None:
    """With the words of the reference's own fault."""
    with pytest.raises(EngineError, match="unknown preset 'tinny'"):
        FakeEngine(EngineSpec(backend="fake", target="constructed:tinny"))


ON_AN_H200 = Path(__file__).parents[3] / "docs" / "evidence" / "results" / "h200-sglang.json"


@pytest.mark.skipif(not ON_AN_H200.exists(), reason="a source distribution is without docs/evidence/results")
def test_sglang_counted_on_an_h200_what_is_foretold(walks_of: Callable[..., Scenario]) -> None:
    """The prompts of tests/gate/gpu/test_sglang.py: two heads and a draft model, to the draft, as vLLM counts."""
    prompts = walks_of("constructed:tiny?memory=24", (7, 90, 311, 555, 702, 960), 65).source.prompts
    drafted = [each for each in read_run(ON_AN_H200).records if each.asked.draft]
    assert len(drafted) == 3
    for record in drafted:
        asked, told, rounds = record.asked, record.acceptance, record.throughput.rounds
        pair, requests = (asked.target, asked.draft or ""), [(prompt, 65) for prompt in prompts] * rounds
        counted = (told.drafts, told.draft_tokens, told.accepted_tokens, told.accepted_per_position)
        foretold = expected_counters(COUNTINGS["vllm"], pair, requests, asked.gamma or 0)
        assert Speculation(*(each.value for each in counted)) == foretold
