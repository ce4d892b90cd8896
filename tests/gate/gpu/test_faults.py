"""Faults of the KV cache and of positions, planted into vLLM on a GPU under CUDA graphs: a pair with memory sees each.

The kit is that of tests/engines, which plants the same into both engines on a CPU.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.engines.faulty_worker import OPTIONS, PROMPT, FaultyWorker

from pytest_specdec.engines.spec import EngineSpec

MEMORY = "memory=24"
FAULTS = {
    "a stale entry of one layer": ("of another request", {"layer": 3}),
    "a zeroed entry of one layer": ("zeroed", {"layer": 5}),
    "a foreign block": ("block of another request", {"length": PROMPT + 4}),
    "positions off by one from a token on": ("positions off by one", {"position": PROMPT + 4}),
    "a rejected entry kept": ("rollback one too few", {}),
}

pytestmark = [pytest.mark.gpu, pytest.mark.engine("vllm")]


@pytest.fixture(scope="module")
def engine(specdec_session):
    """vLLM with a drafter and CUDA graphs."""
    spec = EngineSpec(
        backend="vllm",
        target=f"constructed:small?{MEMORY}",
        draft=f"constructed:small:draft?{MEMORY}&alpha=0.8",
        method="draft_model",
        gamma=4,
        max_model_len=256,
        options={**OPTIONS["vllm"], "max_num_seqs": 8},
    )
    with closing(FaultyWorker(spec, specdec_session.settings)) as worker:
        assert worker.description.details["cuda_graphs"] != "NONE"
        yield worker


@pytest.mark.parametrize(("fault", "where"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_seen(engine, fault, where):
    """Tokens are wrong."""
    assert engine.wrong_tokens(fault, where) > 0


def test_without_a_fault_every_token_is_right(engine):
    """After all faults, too: each was undone."""
    assert engine.wrong_tokens(None, {}) == 0
