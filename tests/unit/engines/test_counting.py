"""The fake engine decodes a constructed pair as it is known, and counts as it says."""

from __future__ import annotations

import pytest

from pytest_specdec.engines.fake import FakeEngine
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Speculation
from pytest_specdec.models import COUNTINGS, expected_continuation, expected_counters
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
