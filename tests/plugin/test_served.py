"""An engine behind an endpoint: what a failed request is called, that nothing of it is counted, that the rest runs."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.broken_off import break_off
from tests.plugin.conftest import Project

from pytest_specdec.engines.process_group import live_members
from pytest_specdec.engines.server import client
from pytest_specdec.engines.server import engine as server_engine
from pytest_specdec.engines.server.engine import ServedEngine
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineDied, EngineError, Unsupported
from pytest_specdec.generation import Run, Score, Speculation
from pytest_specdec.workloads.workload import Conversation, Request, Workload

FAKE = str(Path(__file__).with_name("fake_server.py"))
COMMAND = [sys.executable, FAKE, "--port", "{port}"]
AMPLE = 600.0
KNOWN = {"vocabulary": 103, "context": 512, "request_timeout": AMPLE}
MARKED = 9
SOUND = Request((5, 12), 8)
UNLUCKY = Request((MARKED, 30), 8)
BOTH = Workload("both", (UNLUCKY, SOUND), 2)
AFTER_12 = (46, 48, 54, 72, 26, 88, 74, 32)

Start = Callable[..., ServedEngine]


@pytest.fixture(autouse=True)
def not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of which a request failed is looked at once: most of these go on."""
    monkeypatch.setattr(server_engine, "DYING_SECONDS", 0.0)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts fake servers, and ends them after the test."""
    engines: list[ServedEngine] = []

    def start(
        *words: str, alone: bool = False, gamma: int | None = None, options: Any = MappingProxyType({}), **said: object
    ) -> ServedEngine:
        server = {"command": COMMAND, "speculation": ["--drafts", *words], **KNOWN, **said}
        spec = EngineSpec(backend="server", target="t", method="served", gamma=gamma, options=options, server=server)
        engines.append(ServedEngine(spec.target_only() if alone else spec, AMPLE, AMPLE, str))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def decode(engine: ServedEngine, workload: Workload) -> Run:
    """One pass."""
    engine.prepare(workload)
    engine.run()
    return engine.collect()


def test_an_answer_has_ids_times_and_counters(start: Start) -> None:
    """Tokens come in the server's own chunks; what it drafted is the difference of its counters around the run."""
    run = decode(start(), BOTH)
    answer = run.generations[1]
    assert answer.token_ids == AFTER_12
    assert answer.prompt_ids == SOUND.prompt_ids
    assert answer.finish_reason == "length"
    assert [chunk.tokens for chunk in answer.chunks] == [3, 3, 2]
    assert (answer.error, answer.cached_tokens) == (None, 0)
    assert run.speculation == Speculation(4, 8, 8, (4, 4))
    assert (run.prefix_cache_hits, run.preemptions) == (0, 2)


def test_the_record_says_where_answers_were_asked_for(start: Start) -> None:
    """By chat is what was asked; a prompt that is no conversation goes as ids all the same, and is told so."""
    engine = start(endpoint="chat", prompt="messages")
    decode(engine, BOTH)
    assert engine.description.details["endpoint"] == "/v1/completions"
    talk = Conversation(({"role": "user", "content": "Hi"},), {}, SOUND.prompt_ids)
    engine.prepare(replace(BOTH, requests=(replace(SOUND, conversation=talk), SOUND, UNLUCKY)))
    assert engine.description.details["endpoint"] == "/v1/chat/completions (1), /v1/completions (2)"


def test_what_is_said_of_a_server_comes_before_its_model_s_files(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vocabulary, context and ends; what is not said is theirs, or of the context what the server tells."""
    monkeypatch.chdir(tmp_path)
    Path("t").mkdir()
    Path("t/config.json").write_text(json.dumps({"vocab_size": 64, "max_position_embeddings": 32, "eos_token_id": 2}))
    said = start(eos_token_ids=[7], context=256).description
    left_open = start(vocabulary=None, context=None).description
    assert (said.vocabulary, said.context, said.details["eos_token_ids"]) == (103, 256, [7])
    assert (left_open.vocabulary, left_open.context, left_open.details["eos_token_ids"]) == (64, 512, [2])


def test_each_round_begins_with_an_empty_prefix_cache(start: Start) -> None:
    """Unless the workload keeps it: then both prompts, of two tokens each, are found again."""
    engine = start()
    runs = [decode(engine, each) for each in (BOTH, BOTH, replace(BOTH, keeps_prefix_cache=True))]
    assert [run.prefix_cache_hits for run in runs] == [0, 0, 4]
    assert [each.cached_tokens for each in runs[-1].generations] == [2, 2]


def test_a_prefix_cache_that_is_not_emptied_is_told(start: Start) -> None:
    """By the hits, where they are counted; else it is an error, unless the workload keeps it."""
    counting = start("--fault", "pending")
    assert [decode(counting, BOTH).prefix_cache_hits for _ in range(2)] == [0, 4]
    silent = start("--fault", "pending", protocol="sglang")
    with pytest.raises(EngineError, match=r'was not emptied: .*requests are pending; .*prefix_cache = "keep"'):
        decode(silent, BOTH)
    assert decode(silent, replace(BOTH, keeps_prefix_cache=True)).generations[0].error is None


def test_the_target_alone_is_the_same_command_without_speculation(start: Start) -> None:
    """It says the same tokens, one at a time, and rates them in logits."""
    engine = start(alone=True)
    run = decode(engine, BOTH)
    assert run.generations[1].token_ids == AFTER_12
    assert run.speculation == Speculation(0, 0, 0, (0, 0))
    assert [chunk.tokens for chunk in run.generations[1].chunks] == [1] * 8
    (scores,) = engine.score([SOUND], [[*AFTER_12[:7], 4]])
    assert scores[0] == Score(0.0, 10.0, AFTER_12[0], 10.0)
    assert scores[7] == Score(10.0, 10.0, AFTER_12[7], 10.0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("503", "HTTP 503: overloaded"),
        ("truncate", "the stream was cut off after 3 tokens: no end was said"),
        ("cut", "the connection was lost after 3 tokens"),
        ("error", "the server broke off: out of memory"),
        ("other model", "answered by the model 'another', not by 't' that was asked"),
        ("usage", "8 token ids arrived, but the server counts 9 (usage)"),
        (
            "no ids",
            'no token ids in an answer of 8 tokens: the server must tell them (asked by {"return_token_ids": true}',
        ),
    ],
)
def test_a_failed_request_is_named_and_the_other_counts(start: Start, fault: str, words: str) -> None:
    """The fault befalls one of two requests: its error says what happened, and the other's answer is whole."""
    run = decode(start("--fault", fault, "--only", str(MARKED)), BOTH)
    failed, whole = run.generations
    assert failed.error is not None
    assert failed.error.startswith(words)
    assert whole.error is None
    assert whole.token_ids == AFTER_12


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the client, a request's limit is over once another one has its whole answer and it a part, not before."""
    carry, under_way = client.Client._carry, list[client.Exchange]()

    async def carried(self: client.Client, exchange: client.Exchange, limit_s: float) -> None:
        under_way.append(exchange)
        await carry(self, exchange, limit_s)
        if exchange.fault is None:
            while not all(b"\n\n" in each.answer for each in under_way):
                await asyncio.sleep(0.001)
            monkeypatch.setattr(self._loop, "time", lambda: time.monotonic() + 2 * AMPLE)

    monkeypatch.setattr(client.Client, "_carry", carried)


@pytest.mark.usefixtures("impatient")
def test_a_request_that_hangs_is_named_and_the_other_counts(start: Start) -> None:
    """It is given up at its limit, with what it had said until then."""
    failed, whole = decode(start("--fault", "hang", "--only", str(MARKED)), BOTH).generations
    assert (failed.error, whole.error) == ("no whole answer within 600 s after 3 tokens", None)
    assert whole.token_ids == AFTER_12


@pytest.fixture
def watched_to_its_end(not_watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of which a request failed is given time to end: in these tests it does."""
    monkeypatch.setattr(server_engine, "DYING_SECONDS", AMPLE)


@pytest.mark.usefixtures("watched_to_its_end")
def test_a_server_that_dies_in_a_run_is_one_error_with_its_last_words(start: Start) -> None:
    """The next test gets a new one; nothing of the old one is left."""
    engine = start("--fault", "die", "--only", str(MARKED))
    engine.prepare(BOTH)
    with pytest.raises(EngineDied, match=r"died while decoding(.|\n)*about to die"):
        engine.run()
    engine.close()
    assert live_members(engine.description.pid or 0) == []


def test_if_every_request_fails_there_is_nothing_to_judge(start: Start) -> None:
    """The error counts them and tells the first one's."""
    with pytest.raises(EngineError, match="2 of 2 requests failed; the first: HTTP 503: overloaded"):
        decode(start("--fault", "503"), BOTH)


@pytest.mark.parametrize(("fault", "way"), [("refusal", "HTTP 400"), ("refusal in the stream", "the server broke off")])
def test_what_the_server_refuses_by_vetted_words_is_no_fault(start: Start, fault: str, way: str) -> None:
    """If it refuses every request; a request that is wrong, under the same status, is a fault."""
    with pytest.raises(Unsupported, match=f"refuses: {way}: logit_bias is not supported with speculative decoding"):
        decode(start("--fault", fault), BOTH)
    with pytest.raises(EngineError, match="2 of 2 requests failed; the first: HTTP 400: no such field"):
        decode(start("--fault", "wrong field"), BOTH)


@pytest.mark.parametrize("fault", ["dying words", "dying words in the stream"])
def test_an_error_of_the_server_s_own_is_no_refusal(start: Start, fault: str) -> None:
    """Whatever its words."""
    with pytest.raises(EngineError, match="2 of 2 requests failed") as failed:
        decode(start("--fault", fault), BOTH)
    assert failed.type is EngineError


def test_a_request_that_is_refused_beside_an_answer_is_its_own_error(start: Start) -> None:
    """The answer is judged all the same."""
    refused, answered = decode(start("--fault", "refusal", "--only", str(MARKED)), BOTH).generations
    assert refused.error == "HTTP 400: logit_bias is not supported with speculative decoding"
    assert (answered.error, answered.token_ids) == (None, AFTER_12)


def test_a_target_alone_that_misses_one_answer_is_no_reference(start: Start) -> None:
    """A speculative engine cannot be held against what did not come."""
    engine = start(alone=True, command=[*COMMAND, "--fault", "503", "--only", str(MARKED)])
    with pytest.raises(EngineError, match="1 of 2 requests failed"):
        decode(engine, BOTH)


def test_a_server_that_tells_no_counters_is_refused(start: Start) -> None:
    """Equal output proves nothing if it is not known whether anything was drafted."""
    with pytest.raises(EngineError, match=r"does not tell what it drafted .*vllm:spec_decode_num_drafts_total"):
        decode(start("--fault", "no counters"), BOTH)


def test_after_requests_were_broken_off_in_flight_the_server_is_still_right(start: Start) -> None:
    """Each is cancelled after its first piece and says so; the next run is whole."""
    engine = start("--pause", "0.02")
    assert [answer.error for answer in break_off(engine, BOTH)] == ["the connection was lost after 3 tokens"] * 2
    assert decode(engine, BOTH).generations[1].token_ids == AFTER_12


def test_latency_counts_from_the_moment_a_request_was_due(start: Start) -> None:
    """One place, and answers that take longer than the gaps: requests are sent late, and their due moments are kept."""
    due = (0.0, 0.01, 0.02, 0.03)
    run = decode(start("--pause", "0.02"), Workload("open", (SOUND,) * 4, 1, due))
    assert tuple(answer.scheduled_s for answer in run.generations) == due
    assert run.sent_apart
    sent = [answer.started_s or 0.0 for answer in run.generations]
    assert all(later - earlier > 0.05 for earlier, later in pairwise(sent))


def test_arrivals_follow_one_schedule(start: Start) -> None:
    """Never early and in order, in real time; that nothing adds up is tested on a clock that cannot be held up."""
    due = tuple(at * 0.004 for at in range(100))
    run = decode(start(), Workload("open", (SOUND,) * 100, 100, due))
    sent = [answer.started_s or 0.0 for answer in run.generations]
    assert sent == sorted(sent)
    assert min(moment - at for moment, at in zip(sent, due, strict=True)) >= 0


def test_a_server_that_does_not_start_says_why(start: Start) -> None:
    """Its command and its last words are in the error."""
    with pytest.raises(EngineError, match=r"ended before it was ready: .*fake_server(.|\n)*no such model"):
        start("--fault", "does not start")


def test_an_endpoint_without_the_model_names_both(start: Start) -> None:
    """What it serves, and what was wanted."""
    with pytest.raises(EngineError, match="serves t, not llama: name one of them"):
        start(model="llama")


def test_an_endpoint_that_cannot_rate_points_to_a_reference(start: Start) -> None:
    """The remedy is in the error."""
    with pytest.raises(EngineError, match=r'name a reference in this process, e\.g\. .*reference="vllm"'):
        start(alone=True, protocol="trtllm").score([SOUND], [AFTER_12])


def start_sglang(start: Start, gamma: int = 2, *words: str, **told: object) -> ServedEngine:
    """A server that answers as SGLang does, and says of itself that it drafts chains of two tokens."""
    chain = {"speculative_eagle_topk": 1, "speculative_num_steps": 2, "speculative_num_draft_tokens": 3}
    return start("--told", json.dumps({"version": "0.5.17", **chain, **told}), *words, gamma=gamma, protocol="sglang")


def test_what_sglang_drafted_is_the_sum_of_what_its_answers_tell(start: Start) -> None:
    """Nothing is told of an answer of one token, which was never verified, and of positions where none was accepted."""
    engine = start_sglang(start)
    several = Workload("several", (SOUND, replace(SOUND, max_tokens=1), replace(SOUND, max_tokens=4)), 3)
    assert decode(engine, several).speculation == Speculation(4, 8, 8, (4, 4))
    assert decode(start_sglang(start, gamma=4), several).speculation == Speculation(4, 8, 8, (4, 4, 0, 0))
    assert decode(engine, Workload("one", (replace(SOUND, max_tokens=1),), 1)).speculation == Speculation(0, 0, 0)
    rejecting = start_sglang(start, 2, "--fault", "all rejected")
    assert decode(rejecting, several).speculation == Speculation(4, 8, 0, (0, 0))


def test_a_server_that_tells_no_drafts_of_some_answers_is_an_error(start: Start) -> None:
    """They have tokens that a step brought, and no counts: it did not speculate, or does not tell."""
    with pytest.raises(EngineError, match=r"does not tell what it drafted .*return_prompt_token_ids"):
        decode(start(protocol="sglang", speculation=[]), BOTH)


def test_sglang_alone_tells_no_counters(start: Start) -> None:
    """So it is not proven that it did not speculate, whatever the length of its answers."""
    engine = start(alone=True, protocol="sglang")
    assert decode(engine, BOTH).speculation is None
    assert decode(engine, Workload("one", (replace(SOUND, max_tokens=1),), 1)).speculation is None


@pytest.mark.parametrize(
    ("gamma", "told"),
    [
        (3, {}),
        (2, {"speculative_eagle_topk": 4}),
        (2, {"speculative_num_draft_tokens": 4}),
        (2, {"speculative_num_steps": 4}),
        (2, {"speculative_adaptive": True}),
    ],
)
def test_only_chains_of_gamma_drafts_are_foretold_of_sglang(start: Start, gamma: int, told: dict[str, object]) -> None:
    """A tree, another γ or one that adapts is counted otherwise, so there no counting is claimed."""
    assert start_sglang(start).description.details["counting"] == "vllm"
    assert "counting" not in start_sglang(start, gamma, **told).description.details


@pytest.mark.parametrize("named", [{"model": "ada"}, {"options": {"adapter": "/ada"}}], ids=["listed", "asked"])
def test_sglang_is_asked_for_no_adapter(start: Start, named: dict[str, object]) -> None:
    """Its requests name no model, so the base would answer in the adapter's name; beside one, the base is asked for."""
    with pytest.raises(EngineError, match=r"asks for a server's only base model, not for /?ada: .*not been run"):
        start("--adapters", "ada", protocol="sglang", **named)
    assert start("--adapters", "ada", protocol="sglang").description.details["served_model"] == "t"


def test_a_field_that_sglang_has_not_is_named(start: Start) -> None:
    """SGLang itself breaks its stream off there, without a word; the seed goes under its own name."""
    engine = start_sglang(start)
    with pytest.raises(EngineError, match=r"protocol 'sglang' has no 'logprobs': leave it out, or say one of .*top_k"):
        decode(engine, Workload("rated", (replace(SOUND, sampling={"logprobs": 1}),), 1))
    assert decode(engine, Workload("seed", (replace(SOUND, sampling={"seed": 1}),), 1)).generations[0].error is None


MARK = f"""
import pytest

def served(*speculation, **said):
    server = {{"command": {COMMAND!r}, "speculation": ["--drafts", *speculation], **{KNOWN!r}, **said}}
    return pytest.mark.specdec(target="t", scenario="scenarios/short.toml", server=server)
"""
SOUND_TEST = """
@served()
def test_sound(specdec, openai_server, scenario):
    record = specdec(openai_server, scenario)
    assert record.verdict.outcome == "identical"
"""
FAULTY_TEST = """
@served("--fault", "{fault}")
def test_{name}(specdec, openai_server, scenario):
    specdec(openai_server, scenario)
"""
AT_ONCE = ("--specdec-warmup=0", "--specdec-rounds=2")
FAULTS = {
    "wrong token": "divergent",
    "503": "2 of 2 requests failed; the first: HTTP 503: overloaded",
    "truncate": "2 of 2 requests failed; the first: the stream was cut off after 3 tokens",
    "hang": "2 of 2 requests failed; the first: no whole answer within 0.5 s",
    "other model": "2 of 2 requests failed; the first: answered by the model 'another', not by 't'",
    "usage": "2 of 2 requests failed; the first: 8 token ids arrived, but the server counts 9",
}
SOON_GIVEN_UP = """
@pytest.hookimpl(wrapper=True, specname="pytest_specdec_start_engine")
def pytest_give_up_soon(spec):
    engine = yield
    if spec.speculates and "hang" in spec.server.get("speculation", ()):
        engine._timeout = 0.5
    return engine
"""


def test_faulty_servers_are_red_and_the_rest_of_the_session_runs(project: Project) -> None:
    """Each test has a server of its own: it fails with its fault's name and leaves no timing; the last one passes."""
    are_red_beside_a_sound_one(project, FAULTS)


def test_a_command_that_drafts_without_its_speculation_is_no_baseline(project: Project) -> None:
    """Its counters say so."""
    header = MARK.replace("'--port'", "'--drafts', '--port'")
    project.tests(SOUND_TEST, header=header)
    result = project.run("--benchmark-timer=time.perf_counter", *AT_ONCE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the baseline drafted*"])


@pytest.mark.parametrize("drafts", [False, True])
def test_a_reference_at_a_url_must_not_draft(project: Project, start: Start, drafts: bool) -> None:
    """The one server that is named answers for the target alone: nothing is compared with it, if it drafts itself."""
    reference = {"url": start(alone=not drafts).url, "vocabulary": 103, "context": 512}
    project.tests(SOUND_TEST, header=MARK.replace("server=", f"reference={reference!r}, server="))
    result = project.run("--benchmark-timer=time.perf_counter", *AT_ONCE)
    result.assert_outcomes(**{"failed" if drafts else "passed": 1})
    if drafts:
        result.stdout.fnmatch_lines(
            ["the baseline drafted * tokens: *the server at its url", "* served *engine error*"]
        )


def test_a_red_gate_asks_whether_a_server_of_another_name_has_the_same_model(project: Project, start: Start) -> None:
    """It has one model, and is taken at its word."""
    server = {"url": start("--fault", "wrong token").url, **KNOWN}
    keys = f"target='mine', scenario='scenarios/short.toml', server={server!r}, reference='fake'"
    gate = "def test_it(specdec, openai_server, scenario):\n    specdec(openai_server, scenario)\n"
    project.tests(f"@pytest.mark.specdec({keys})\n{gate}", header="import pytest\n")
    result = project.run("--benchmark-timer=time.perf_counter", *AT_ONCE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the server calls its model t, and the target is mine: are they the same?"])


@pytest.mark.usefixtures("watched_to_its_end")
def test_a_server_that_dies_is_red_and_the_rest_of_the_session_runs(project: Project) -> None:
    """The other test has a server of its own."""
    are_red_beside_a_sound_one(project, {"die": "died while decoding"})


def are_red_beside_a_sound_one(project: Project, faults: dict[str, str]) -> None:
    """Each faulty one red in its words and without a timing, the sound one green with one."""
    project.conftest(SOON_GIVEN_UP)
    faulty = [FAULTY_TEST.format(fault=fault, name=fault.replace(" ", "_")) for fault in faults]
    project.tests("".join([*faulty, SOUND_TEST]), header=MARK)
    result = project.run("--benchmark-json=out.json", "--benchmark-timer=time.perf_counter", *AT_ONCE)
    result.assert_outcomes(passed=1, failed=len(faults))
    told = {fault: _what_is_told_of(fault, result.stdout.str()) for fault in faults}
    assert {fault: faults[fault] in words for fault, words in told.items()} == dict.fromkeys(faults, True)
    kept = json.loads((project.path / "out.json").read_text())["benchmarks"]
    assert [bench["name"] for bench in kept] == ["test_sound[t-served-short]"]


def _what_is_told_of(fault: str, printed: str) -> str:
    """What pytest prints of the failed test of this fault, up to the next one's heading."""
    _, _, after = printed.partition(f"_ test_{fault.replace(' ', '_')}[")
    return after.partition("\n____")[0]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"url": "http://127.0.0.1:1"}, "nothing says what this server's target alone answers"),
        ({"comand": ["x"]}, "server: unknown key 'comand'; did you mean 'command'?"),
        ({"protocol": "vlm"}, "it must be one of vllm, sglang, trtllm, llamacpp, dynamo"),
        ({"url": "127.0.0.1:8000"}, "it must begin with http:// or https://"),
        ({"command": "serve"}, "server['command'] is 'serve': 'str' instances are not allowed"),
        ({"protocol": "sglang", "endpoint": "chat"}, "sglang streams no token ids by chat"),
        ({"stream": False, "endpoint": "chat"}, "a server is asked by chat in streams only"),
        ({"prompt": "messages"}, "say server['endpoint'] = \"chat\" too"),
    ],
)
def test_a_wrong_mark_is_refused_when_tests_are_collected(
    project: Project, said: dict[str, object], words: str
) -> None:
    """One error with the remedy, before anything is started."""
    project.tests(
        f"""
@pytest.mark.specdec(server={said!r})
def test_it(specdec, openai_server, scenario): ...
"""
    )
    result = project.run()
    result.assert_outcomes(errors=1)
    assert words in result.stdout.str()


def test_settings_name_an_endpoint_and_its_reference(project: Project) -> None:
    """The server that runs is asked at its URL first: its reference, in this process, decodes for no other."""
    project.tests("def test_it(specdec, openai_server, scenario):\n    specdec(openai_server, scenario)\n")
    result = project.run("--specdec-server-url=http://127.0.0.1:1", "--specdec-server-reference=fake")
    result.assert_outcomes(failed=1)
    assert project.loads() == ["t-served"]
    result.stdout.fnmatch_lines(["*http://127.0.0.1:1/v1/models: Cannot connect to host*"])


def test_vllm_behind_a_server_is_parametrized_like_vllm(project: Project) -> None:
    """Drafts and γ multiply out for a server that is built from them, and not for one that brings its own."""
    project.tests(
        """
@pytest.mark.specdec(gamma=[2, 4], server={})
def test_built(specdec, openai_server, scenario): ...

@pytest.mark.specdec(gamma=[2, 4], draft=None, server={})
def test_by_lookup(specdec, openai_server, scenario): ...
"""
    )
    assert project.ids() == [
        "test_built[t-draft_model-g2-short]",
        "test_built[t-draft_model-g4-short]",
        "test_by_lookup[t-ngram-g2-short]",
        "test_by_lookup[t-ngram-g4-short]",
    ]
