"""What a server of vLLM is asked for beside a gate: requests broken off, chat, conversations, a second server.

The server that drafts by lookup is the suite's own. Prompts walk the constructed pair's own way twice, so that lookup
in the prompt finds what comes next.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.server.engine import ServedEngine
from pytest_specdec.engines.server.process import AS_IT_IS_WRITTEN
from pytest_specdec.models import expected_continuation

TARGET = "constructed:tiny?memory=24"
STARTS = (7, 90, 311, 555, 702, 960)
TOKENS = 32

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.engine("vllm"),
    pytest.mark.specdec(
        target=TARGET,
        gamma=3,
        max_model_len=512,
        server={"protocol": "vllm"},
        options={"chat_template": AS_IT_IS_WRITTEN},
        environment={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    ),
]
ngram = pytest.mark.specdec(method="ngram", reference={"engine": "vllm", "environment": {"OMP_NUM_THREADS": "1"}})


@pytest.fixture
def walks(walks_of):
    """Six of them; three answers at once, two rounds."""
    return walks_of(TARGET, STARTS, TOKENS, concurrency=3, rounds=2)


@ngram
def test_requests_broken_off_leave_the_server_right(specdec_session, openai_server, walks):
    """All are cancelled in flight; after that every answer is what the map says."""
    workload = specdec_session.workload(openai_server, walks)
    with specdec_session.pool.using(openai_server) as engine:
        assert all("cancelled" in answer.error for answer in engine.drop(workload))
        answers = one_pass(engine, workload).generations
    assert [answer.token_ids for answer in answers] == [
        tuple(expected_continuation(TARGET, request.prompt_ids, TOKENS)) for request in workload.requests
    ]


@ngram
def test_chat_gives_the_same_tokens(specdec_session, openai_server, walks):
    """The same server asked by chat, under a template that adds nothing: same prompt ids, same answer."""
    workload = specdec_session.workload(openai_server, walks)
    with specdec_session.pool.using(openai_server) as engine:
        spec = replace(openai_server, server={"url": engine.url, "endpoint": "chat"})
        by_chat = ServedEngine(spec, 600, 600, lambda reference: engine.folder)
        answers = one_pass(by_chat, workload).generations
        by_chat.close()
        plain = one_pass(engine, workload).generations
    assert [(answer.prompt_ids, answer.token_ids) for answer in answers] == [
        (answer.prompt_ids, answer.token_ids) for answer in plain
    ]


@ngram
def test_the_server_writes_conversations(specdec_session, openai_server):
    """By its own chat template, which adds nothing here: the messages' contents, one after another."""
    talk = [{"role": "user", "content": "t7 t90"}, {"role": "assistant", "content": " t311"}]
    with specdec_session.pool.using(openai_server) as engine:
        (conversation,) = engine.encode_messages([talk])
        (text,) = engine.encode(["t7 t90 t311"])
    assert conversation == text
    assert {7, 90, 311} <= set(conversation)


@pytest.mark.thorough
@pytest.mark.specdec(draft="constructed:tiny:draft?memory=24", method="draft_model")
def test_a_drafter_behind_a_server_against_a_second_one(specdec, openai_server, walks):
    """The reference is a server of the target alone, whose log-probabilities rate what differs."""
    record = specdec(openai_server, walks)
    assert 0.3 < record.acceptance.rate.value < 0.9
    assert record.verdict.calibration.ulp_logits.value is not None
