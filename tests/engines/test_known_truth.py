"""Engines against the truth that a constructed pair carries: its next-token map, and how its drafter agrees with it."""

import pytest
from scipy.stats import binomtest

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.generation import Speculation
from pytest_specdec.models import expected_continuation, expected_speculation

ALPHA = 0.8  # the drafter's default
GAMMA = 4
LEVEL = 1e-4

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target="constructed:tiny",
        draft="constructed:tiny:draft",
        method="draft_model",
        gamma=GAMMA,
        max_model_len=512,
        environment={"OMP_NUM_THREADS": "1"},
        scenario="scenarios/long.toml",
    ),
]


def decoded(session, engine, scenario):
    workload = session.workload(engine, scenario)
    with session.pool.using(engine) as loaded:
        return workload, one_pass(loaded, workload)


def truth(workload):
    return [
        tuple(expected_continuation("constructed:tiny", each.prompt_ids, each.max_tokens)) for each in workload.requests
    ]


def follows_the_map(session, engine, scenario):
    workload, run = decoded(session, engine, scenario)
    return [generation.token_ids for generation in run.generations] == truth(workload)


def refuted_positions(counted):
    """Draft positions whose acceptance is not α^i by a two-sided binomial test at LEVEL."""
    rows = enumerate(counted.accepted_per_position, start=1)
    return [at for at, accepted in rows if binomtest(accepted, counted.drafts, ALPHA**at).pvalue < LEVEL]


def test_vllm_alone_follows_the_map_on_every_token(specdec_session, vllm_ar, scenario):
    """Every one of the tokens, not most of them."""
    assert follows_the_map(specdec_session, vllm_ar, scenario)


def test_transformers_alone_follows_the_map_on_every_token(specdec_session, transformers_ar, scenario):
    """Every one of the tokens, not most of them."""
    assert follows_the_map(specdec_session, transformers_ar, scenario)


def test_vllm_accepts_what_the_drafter_gets_right(specdec_session, vllm_spec, scenario):
    """Position i is accepted with α^i, and as often as the two maps say, last rounds aside."""
    workload, run = decoded(specdec_session, vllm_spec, scenario)
    assert refuted_positions(run.speculation) == []
    prompts = [request.prompt_ids for request in workload.requests]
    expected = expected_speculation(
        "constructed:tiny", vllm_spec.draft, prompts, workload.requests[0].max_tokens, GAMMA
    )
    assert abs(run.speculation.accepted_tokens - expected.accepted_tokens) <= GAMMA * len(prompts)


def test_transformers_accepts_what_the_drafter_gets_right(specdec_session, transformers_spec, scenario):
    """The same bound for rounds that are counted in Transformers' own loop."""
    _, run = decoded(specdec_session, transformers_spec, scenario)
    assert refuted_positions(run.speculation) == []


def test_another_acceptance_would_be_refuted():
    """The bound itself: as many rounds at α = 0.7 do not pass for 0.8."""
    assert refuted_positions(Speculation(300, 1200, 532, (210, 147, 103, 72))) != []
