"""γ by the number of requests under way, in vLLM: each position is held against the drafts that reached it."""

from __future__ import annotations

import pytest
from tests.engines.test_memory import REACH, TARGET, random_prompts

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.methods import BY_BATCH_SIZE
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.metrics.acceptance import acceptance_part
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.models import expected_continuation
from pytest_specdec.run.session import Session
from pytest_specdec.verdict.coverage import Drafting
from pytest_specdec.workloads.workload import Request, Workload

GAMMAS = {BY_BATCH_SIZE: [[1, 2, 4], [3, 4, 2], [5, 8, 0]]}
LENGTHS = (33, 33, 33, 33, 65, 65, 97, 97)
ASKED = tuple(Request(tuple(ids), n) for ids, n in zip(random_prompts([REACH + 1] * 8), LENGTHS, strict=True))
pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target=TARGET,
        draft=f"constructed:tiny:draft?memory={REACH}&alpha=1",
        method="draft_model",
        gamma=4,
        max_model_len=512,
        dtype="float32",
        speculative_options=GAMMAS,
        environment={"OMP_NUM_THREADS": "1"},
    ),
]


def test_gamma_follows_the_batch(specdec_session: Session, vllm_spec: EngineSpec) -> None:
    """No draft while there are eight, two tokens while there are four, then four; and the drafter is always right."""
    with specdec_session.pool.using(vllm_spec) as engine:
        run = one_pass(engine, Workload("batches", ASKED, concurrency=8))
    known = [tuple(expected_continuation(TARGET, each.prompt_ids, each.max_tokens)) for each in ASKED]
    assert [answer.token_ids for answer in run.generations] == known
    counted = run.speculation
    assert counted is not None
    assert counted.drafted == counted.tried == counted.accepted_per_position
    assert counted.drafted[0] == counted.drafts > counted.drafted[3] > 0
    part = acceptance_part(Rounds((run,), (1.0,)), vllm_spec.gamma)
    assert (part.rate.value, part.marginal.value, part.conditional.value) == (1.0, (1.0,) * 4, (1.0,) * 4)
    assert [answer.draft_tokens for answer in run.generations[:4]] == [0] * 4
    assert Drafting(vllm_spec, {0: run}, at_once=8, requests=ASKED).failures == []


@pytest.mark.thorough
@pytest.mark.specdec(target="constructed:tiny", method="medusa", draft="constructed:tiny:medusa")
def test_a_crash_names_the_option(specdec_session: Session, vllm_spec: EngineSpec) -> None:
    """Medusa in vLLM 0.32 asserts, without a word, that γ is the largest one."""
    message = f"AssertionError.*{BY_BATCH_SIZE}"
    with pytest.raises(EngineError, match=message), specdec_session.pool.using(vllm_spec) as engine:
        one_pass(engine, Workload("batches", ASKED, concurrency=8))
