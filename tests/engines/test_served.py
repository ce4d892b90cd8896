"""What a server of vLLM is asked for beside a gate: requests broken off, chat, conversations, a second server.

The server that drafts by lookup is the suite's own. Prompts walk the constructed pair's own way twice, so that lookup
in the prompt finds what comes next.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import pytest
from tests.broken_off import break_off

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.server.engine import ServedEngine
from pytest_specdec.engines.server.process import AS_IT_IS_WRITTEN
from pytest_specdec.errors import EngineError
from pytest_specdec.models import expected_continuation
from pytest_specdec.workloads.scenario import load_scenario

TARGET = "constructed:tiny?memory=24"
STARTS = (7, 90, 311, 555, 702, 960)
TOKENS = 32
ASKED_TO_THINK = AS_IT_IS_WRITTEN + "{% if thinking %} t800 t801 t802{% endif %}"
SAID = 30
ADDED = 3

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


@pytest.fixture
def talks(tmp_path):
    """A maker of scenarios of four conversations, each a message of thirty words."""
    rows = (" ".join(f"t{start + 5 * word}" for word in range(SAID)) for start in (10, 200, 400, 600))
    messages = [{"messages": [{"role": "user", "content": words}]} for words in rows]
    (tmp_path / "talks.jsonl").write_text("\n".join(map(json.dumps, messages)))

    def made(*lines):
        source = 'source = { format = "jsonl", path = "talks.jsonl", column = "messages", chat_template = true }'
        file = tmp_path / "talks.toml"
        file.write_text("\n".join([source, "max_tokens = 16", "concurrency = 2", "rounds = 2", *lines]))
        return load_scenario(file)

    return made


@ngram
def test_requests_broken_off_leave_the_server_right(specdec_session, openai_server, walks):
    """All are cancelled in flight; after that every answer is what the map says."""
    workload = specdec_session.workload(openai_server, walks)
    with specdec_session.pool.using(openai_server) as engine:
        assert all("was lost" in answer.error for answer in break_off(engine, workload))
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
def test_a_server_that_drafts_is_no_baseline(specdec_session, openai_server, walks):
    """By its own counters, which are read around each pass: it is refused as the target alone at this url."""
    workload = specdec_session.workload(openai_server, walks)
    with specdec_session.pool.using(openai_server) as engine:
        alone = replace(openai_server.target_only(), backend="server", server={"url": engine.url})
        with (
            closing(ServedEngine(alone, 600, 600, lambda reference: engine.folder)) as baseline,
            pytest.raises(EngineError, match=r"^the baseline drafted [1-9]\d* tokens: .*the server at its url$"),
        ):
            one_pass(baseline, workload)


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


@pytest.mark.thorough
@pytest.mark.specdec(
    draft="constructed:tiny:draft?memory=24",
    method="draft_model",
    server={"protocol": "vllm", "endpoint": "chat", "prompt": "messages"},
    options={"chat_template": ASKED_TO_THINK},
)
@pytest.mark.parametrize("thinks", [False, True])
def test_a_conversation_is_written_by_the_servers_own_template(specdec, openai_server, talks, thinks):
    """By chat, with the values that the scenario gives its template: the server's prompt ids are those that were
    expected, and with `thinking` each is as much longer as the template then adds."""
    scenario = talks(f"chat_template_kwargs = {{ thinking = {str(thinks).lower()} }}")
    record = specdec(openai_server, scenario)
    assert (record.verdict.outcome, record.engine.details["endpoint"]) == ("identical", "/v1/chat/completions")
    assert "chat_template_kwargs" in record.coverage.exercised.fields
    assert record.workload.prompt_tokens.min == SAID + (ADDED if thinks else 0)
