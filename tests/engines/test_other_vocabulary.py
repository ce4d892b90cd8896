"""A draft that lacks tokens of its target, by the option `use_heterogeneous_vocab`: each answer is the target's own.

Which drafts are accepted depends on where the walk meets a token that the draft lacks: one of eight.
"""

from __future__ import annotations

import pytest

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.models import expected_continuation
from pytest_specdec.run.session import Session
from pytest_specdec.workloads.workload import Request, Workload

TARGET, TOKENS = "constructed:tiny", 64
pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target=TARGET,
        draft="constructed:tiny:draft?vocab=896&alpha=1",
        gamma=3,
        max_model_len=256,
        dtype="float32",
        speculative_options={"use_heterogeneous_vocab": True},
        environment={"OMP_NUM_THREADS": "1"},
    ),
]
PROMPTS = [tuple(range(start, start + 8)) for start in (100, 200, 300, 400)]


def decode(session: Session, spec: EngineSpec) -> float:
    """The share of drafts that was accepted, in answers that are all the known ones."""
    asked = Workload("other", tuple(Request(ids, TOKENS) for ids in PROMPTS), concurrency=4)
    with session.pool.using(spec) as engine:
        run = one_pass(engine, asked)
        assert engine.description.details["draft_tokenizer"] == (
            "another vocabulary: 896 tokens in common, of 1024 and 896"
        )
    known = [tuple(expected_continuation(TARGET, ids, TOKENS)) for ids in PROMPTS]
    assert [generation.token_ids for generation in run.generations] == known
    assert run.speculation is not None
    return run.speculation.accepted_tokens / run.speculation.draft_tokens


def test_vllm_maps_the_tokens_in_common(specdec_session: Session, vllm_spec: EngineSpec) -> None:
    """Token by token."""
    assert decode(specdec_session, vllm_spec) > 0.3


def test_transformers_encodes_drafts_anew(specdec_session: Session, transformers_spec: EngineSpec) -> None:
    """Universal assisted generation, by way of the text."""
    assert decode(specdec_session, transformers_spec) > 0.3
