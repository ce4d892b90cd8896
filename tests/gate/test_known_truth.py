"""Engines against the truth that a constructed pair carries: its next-token map, and its drafter's agreement with it."""

import pytest
from scipy.stats import binomtest

from pytest_specdec.measure.rounds import one_pass
from pytest_specdec.models import expected_continuation, expected_speculation

ALPHA = 0.8  # the drafter's default
GAMMA = 4
LEVEL = 1e-4

pytestmark = pytest.mark.specdec(
    target="constructed:tiny",
    draft="constructed:tiny:draft",
    method="draft_model",
    gamma=GAMMA,
    max_model_len=512,
    scenario="scenarios/long.toml",
)


def decoded(session, engine, scenario):
    workload = session.workload(engine, scenario)
    with session.pool.using(engine) as loaded:
        return workload, one_pass(loaded, workload)


def truth(workload):
    return [tuple(expected_continuation("constructed:tiny", request.prompt_ids, request.max_tokens)) for request in workload.requests]


@pytest.mark.cpu
@pytest.mark.parametrize("fixture", ["vllm_ar", "transformers_ar"])
def test_target_only_follows_the_map_on_every_token(request, fixture, specdec_session, vllm_ar, transformers_ar, scenario):
    """Every one of the tokens, not most of them."""
    workload, run = decoded(specdec_session, request.getfixturevalue(fixture), scenario)
    assert [generation.token_ids for generation in run.generations] == truth(workload)


@pytest.mark.cpu
def test_vllm_accepts_what_the_drafter_gets_right(specdec_session, vllm_spec, scenario):
    """Position i is accepted with α^i, within a two-sided binomial test at level 10^-4, and as often as the maps say."""
    workload, run = decoded(specdec_session, vllm_spec, scenario)
    counted = run.speculation
    for position, accepted in enumerate(counted.accepted_per_position, start=1):
        assert binomtest(accepted, counted.drafts, ALPHA**position).pvalue > LEVEL
    prompts = [request.prompt_ids for request in workload.requests]
    expected = expected_speculation("constructed:tiny", vllm_spec.draft, prompts, workload.requests[0].max_tokens, GAMMA)
    assert abs(counted.accepted_tokens - expected.accepted_tokens) <= GAMMA * len(prompts)


@pytest.mark.cpu
def test_transformers_accepts_what_the_drafter_gets_right(specdec_session, transformers_spec, scenario):
    """The same bound for rounds that are counted in Transformers' own loop."""
    _, run = decoded(specdec_session, transformers_spec, scenario)
    counted = run.speculation
    for position, accepted in enumerate(counted.accepted_per_position, start=1):
        assert binomtest(accepted, counted.drafts, ALPHA**position).pvalue > LEVEL
