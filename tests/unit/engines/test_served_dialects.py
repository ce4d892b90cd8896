"""How each server's answer is read, in the shape that its own sources give; and its counters, under exact names."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_specdec.engines.server.answers import (
    Answer,
    NativeRating,
    difference,
    events,
    read_counters,
    speculation_of,
)
from pytest_specdec.engines.server.client import Exchange
from pytest_specdec.engines.server.dialects import DIALECTS, VLLM
from pytest_specdec.engines.server.engine import ServedEngine
from pytest_specdec.engines.server.plan import ServerPlan
from pytest_specdec.engines.server.process import command_line, free_port
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Chunk, Speculation
from pytest_specdec.workloads.workload import Conversation, Request

ASKED = Request((5, 9), 3)
USAGE = {"prompt_tokens": 2, "completion_tokens": 3}
SPOKEN: dict[str, list[dict[str, Any] | str]] = {
    "vllm": [
        {"choices": [{"text": "a", "prompt_token_ids": [5, 9], "token_ids": [7, 8], "finish_reason": None}]},
        {"choices": [{"text": "b", "token_ids": [4], "finish_reason": "length"}]},
        {"choices": [], "usage": USAGE},
        "[DONE]",
    ],
    "sglang": [
        {"text": "a", "output_ids": [7, 8], "prompt_token_ids": [5, 9], "meta_info": {
            "finish_reason": None, "prompt_tokens": 2, "completion_tokens": 2, "cached_tokens": 0}},
        {"text": "b", "output_ids": [4], "meta_info": {
            "finish_reason": {"type": "length", "length": 3}, "prompt_tokens": 2, "completion_tokens": 3,
            "cached_tokens": 1, "spec_verify_ct": 4, "spec_num_proposed_drafts": 12, "spec_num_correct_drafts": 4,
            "spec_correct_drafts_histogram": [1, 2, 1]}},
        "[DONE]",
    ],
    "trtllm": [
        {"choices": [{"text": "", "token_ids": [7, 8], "finish_reason": None}]},
        {"choices": [{"text": "", "token_ids": [4], "finish_reason": "length"}]},
        {"choices": [], "usage": USAGE},
        "[DONE]",
    ],
    "llamacpp": [
        {"content": "a", "tokens": [7, 8], "stop": False, "timings": {"predicted_ms": 1.5}},
        {"content": "b", "tokens": [4], "stop": False, "timings": {"predicted_ms": 2.5}},
        {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": 3, "tokens_evaluated": 2},
    ],
    "dynamo": [
        {"choices": [{"text": "a", "index": 0}], "nvext": {"completion_token_ids": [7, 8]}},
        {"choices": [{"text": "b", "finish_reason": "length"}], "nvext": {
            "completion_token_ids": [4], "engine_data": {"prompt_token_ids": [5, 9]}}},
        {"choices": [], "usage": USAGE},
        "[DONE]",
    ],
}  # fmt: skip


def pieces(spoken: list[dict[str, Any] | str]) -> list[tuple[float, bytes]]:
    """Each event in a piece of its own, a second apart."""
    told = [each if isinstance(each, str) else json.dumps(each) for each in spoken]
    return [(10.0 + at, f"data: {data}\n\n".encode()) for at, data in enumerate(told, start=1)]


def read(dialect: str, spoken: list[dict[str, Any] | str]) -> Answer:
    exchange = Exchange(sent=10.5, status=200, pieces=pieces(spoken))
    return Answer(ASKED, exchange, 10.0, "m", DIALECTS[dialect]).read()


@pytest.mark.parametrize("dialect", SPOKEN)
def test_an_answer_in_each_dialect_gives_the_same_generation(dialect: str) -> None:
    """Ids, prompt, end and times; the clock begins with the run."""
    answer = read(dialect, SPOKEN[dialect])
    generation = answer.generation()
    assert answer.error is None
    assert generation.token_ids == (7, 8, 4)
    assert generation.prompt_ids == (5, 9)
    assert generation.finish_reason == "length"
    assert generation.chunks == (Chunk(1.0, 2), Chunk(2.0, 1))
    assert generation.started_s == 0.5


@pytest.mark.parametrize("dialect", SPOKEN)
def test_text_is_told_where_the_server_writes_any(dialect: str) -> None:
    """TensorRT-LLM tells ids instead of it."""
    assert read(dialect, SPOKEN[dialect]).generation().text == (None if dialect == "trtllm" else "ab")


def test_chat_has_no_text_that_is_plain() -> None:
    """A parser of the server's may have taken a part of it."""
    spoken = [{"choices": [{"delta": {"content": "a"}, "token_ids": [7], "finish_reason": "length"}]}]
    assert read("vllm", spoken).generation().text is None


def test_chat_is_told_by_channel() -> None:
    """Pieces are joined; reasoning that comes under both of its names is told once; a completion has no channels."""
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning": "so ", "reasoning_content": "so "},
        {"reasoning_content": "be it"},
        {"content": "a"},
        {"content": "b", "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}, {"index": 1, "function": {"name": "g"}}]},
    ]
    spoken: list[dict[str, Any] | str] = [{"choices": [{"delta": each, "token_ids": [7]}]} for each in deltas]
    assert dict(read("vllm", spoken).generation().channels or ()) == {
        "content": "ab",
        "reasoning": "so be it",
        "tool 0, name": "f",
        "tool 0, arguments": "{}",
        "tool 1, name": "g",
    }
    assert read("vllm", SPOKEN["vllm"]).generation().channels is None


def test_log_probabilities_are_those_that_came_with_the_tokens() -> None:
    """Of a completion that asked for them, where it is known that the server tells them; a missing one shows."""
    told = ([-0.5, None], [-0.25])
    spoken: list[dict[str, Any] | str] = [{"choices": [{"logprobs": {"token_logprobs": each}}]} for each in told]
    asked = replace(ASKED, sampling={"logprobs": 1})

    def logprobs(dialect: str, request: Request, path: str = "/v1/completions") -> Any:
        exchange = Exchange(path, sent=10.5, status=200, pieces=pieces(spoken))
        return Answer(request, exchange, 10.0, "m", DIALECTS[dialect]).read().generation().logprobs

    assert logprobs("vllm", asked) == (-0.5, None, -0.25)
    assert logprobs("vllm", ASKED) is logprobs("sglang", asked) is logprobs("vllm", asked, "/v1/chat") is None


@pytest.mark.parametrize("dialect", SPOKEN)
def test_an_answer_without_its_end_is_an_error(dialect: str) -> None:
    """Whatever the dialect, what was cut off is no answer."""
    assert "cut off after 2 tokens" in str(read(dialect, SPOKEN[dialect][:1]).error)


WHOLE = {"tokens": [7, 8, 4], "stop_type": "limit", "tokens_predicted": 3, "tokens_evaluated": 2}


def read_whole(fault: str | None = None) -> Answer:
    """An answer that was not asked for piece by piece, though it came in two."""
    spoken = json.dumps(WHOLE).encode()
    came = [(11.0, spoken[:9]), (12.0, spoken[9:])]
    exchange = Exchange(sent=10.5, status=200, pieces=came, fault=fault)
    return Answer(ASKED, exchange, 10.0, "m", DIALECTS["llamacpp"], streamed=False).read()


def test_a_whole_answer_does_not_tell_when_its_tokens_came() -> None:
    """It has all of them."""
    answer = read_whole()
    assert answer.error is None
    assert (answer.generation().token_ids, answer.generation().chunks) == ((7, 8, 4), ())


def test_tokens_of_one_step_are_one_chunk() -> None:
    """llama.cpp streams each in an event of its own; its clock stands still within a step."""
    times = (0.1, 0.1, 1.5, 1.5, 1.5, 2.5)
    spoken: list[dict[str, Any] | str] = [{"tokens": [7], "timings": {"predicted_ms": at}} for at in times]
    assert read("llamacpp", spoken).generation().chunks == (Chunk(2.0, 2), Chunk(5.0, 3), Chunk(6.0, 1))


def test_a_whole_answer_that_was_broken_off_is_an_error() -> None:
    """Nothing is read of it."""
    assert read_whole("the connection was lost").error == "the connection was lost after 0 tokens"


def test_a_stream_that_leaves_ids_out_is_told_with_the_remedy() -> None:
    """llama.cpp streams of each character the last token alone."""
    spoken: list[dict[str, Any] | str] = [{"tokens": [4]}, {**WHOLE, "tokens": []}]
    missing = "1 token ids arrived, but the server counts 3 (usage)"
    assert read("llamacpp", spoken).error == f"{missing}; if its stream leaves some out, say server['stream'] = False"


def test_what_was_drafted_for_an_answer_is_told_with_it() -> None:
    """SGLang's counts come with the answer: of four steps one accepted nothing, two one token, and one two."""
    answer = read("sglang", SPOKEN["sglang"])
    assert answer.told == Speculation(4, 12, 4, (3, 1))
    assert answer.generation().cached_tokens == 1


def read_all(*told: tuple[int, list[int]]) -> Answer:
    """SGLang's events, each of so many tokens by its own count; the text is that of these ids."""
    end = {"type": "length", "length": 3}
    spoken: list[dict[str, Any] | str] = [
        {"text": str(ids), "output_ids": ids, "meta_info": {"completion_tokens": count, "finish_reason": end}}
        for count, ids in told
    ]
    return read("sglang", [*spoken, "[DONE]"])


def test_what_comes_again_with_each_event_counts_once() -> None:
    """SGLang tells all of it each time, sometimes before it counts it, unless it is told to stream increments."""
    generation = read_all((2, [7, 8]), (2, [7, 8, 4]), (3, [7, 8, 4])).generation()
    assert (generation.token_ids, generation.chunks) == ((7, 8, 4), (Chunk(1.0, 2), Chunk(2.0, 1)))
    assert (generation.text, generation.error) == ("[7, 8, 4]", None)


@pytest.mark.parametrize("then", [[9, 8, 4], [7]], ids=["other", "fewer"])
def test_a_stream_that_tells_other_tokens_than_before_is_an_error(then: list[int]) -> None:
    """Else the answer would be a mixture of both."""
    error = f"the stream told [7, 8] first, and then {then[:2]}"
    assert read_all((2, [7, 8]), (len(then), then), (3, [*then, 4, 4][:3])).error == error


def test_a_request_to_sglang_has_its_sampling_apart() -> None:
    """Under SGLang's own names."""
    request = Request((5,), 4, min_tokens=2, stop_token_ids=(9,), sampling={"seed": 3})
    body = ServerPlan(protocol="sglang").body(request, None, "m")
    assert (body["input_ids"], body["stream"]) == ([5], True)
    sampling = body["sampling_params"]
    assert (sampling["max_new_tokens"], sampling["min_new_tokens"], sampling["temperature"]) == (4, 2, 0.0)
    assert (sampling["stop_token_ids"], sampling["sampling_seed"]) == ([9], 3)
    assert sampling.keys() & {"min_tokens", "seed"} == set()
    assert body.keys() & {"model", "max_tokens", "min_tokens", "stream_options"} == set()


def test_sglang_rates_the_last_token_where_the_next_one_would_be() -> None:
    """Each by its distance to the best: the first is the best, the second is 1.5 below, the last is not among them."""
    rating = NativeRating([5, 9], [7, 8, 4], (0, []), 64, most=2)
    body = rating.body("m")
    assert (body["input_ids"], body["logprob_start_len"], body["token_ids_logprob"]) == ([5, 9, 7, 8], 1, [4])
    told: dict[str, list[Any]] = {
        "input_token_logprobs": [[None, 9, None], [-0.5, 7, None], [-2.0, 8, None]],
        "input_top_logprobs": [None, [[-0.5, 7, None], [-1.0, 3, None]], [[-0.5, 6, None], [-1.0, 3, None]]],
        "output_top_logprobs": [[[-0.25, 6, None], [-1.0, 3, None]]],
        "output_token_ids_logprobs": [[[-4.25, 4, None]]],
    }
    scores = rating.scores({"meta_info": told}, raw=False)
    assert [(each.gap, each.argmax) for each in scores] == [(0.0, 7), (1.5, 6), (4.0, 6)]
    with pytest.raises(EngineError, match="2 ratings for 3 tokens"):
        rating.scores({"meta_info": {name: rows[:2] for name, rows in told.items()}}, raw=False)


def test_an_event_that_comes_in_parts_has_the_time_of_its_last_byte() -> None:
    """Two events in three pieces; line ends of either kind, comments and names."""
    parts = [(1.0, b"data: {}"), (2.0, b"\n\n: ping\r\n\r\nevent: error\r\nda"), (3.0, b"ta: x\r\n\r\ndata: lost")]
    assert [(event.at_s, event.name, event.data) for event in events(parts)] == [(2.0, None, "{}"), (3.0, "error", "x")]


def test_counters_have_exact_names_and_are_added_over_label_sets() -> None:
    """A counter whose name only begins alike is another one, and so is a creation time."""
    page = """# HELP vllm:spec_decode_num_drafts_total x
vllm:spec_decode_num_drafts_total{engine="0",model_name="a,b"} 4.0
vllm:spec_decode_num_drafts_total{engine="1"} 6.0
vllm:spec_decode_num_drafts_created{engine="0"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total 30.0
vllm:spec_decode_num_accepted_tokens_total 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0",engine="0"} 8.0
"""
    counted = read_counters(page, VLLM.counters)
    totals = {"drafts": 10, "draft_tokens": 30, "accepted_tokens": 12}
    assert counted == {**totals, 0: 8, 1: 4}
    before = {"drafts": 4, "draft_tokens": 12, "accepted_tokens": 6, 0: 5, 1: 1}
    assert speculation_of(difference(counted, before)) == Speculation(6, 18, 6, (3, 3))
    assert speculation_of(difference(counted, {})) == Speculation(10, 30, 12, (8, 4))


def test_counters_of_a_release_that_calls_them_without_total_are_found() -> None:
    """With their type told or not, and not beside the name with it."""
    page = "llamacpp:spec_decode_num_drafts 4\nllamacpp:spec_decode_num_draft_tokens 12\n"
    typed = f"# TYPE llamacpp:spec_decode_num_drafts counter\n{page}"
    both = f"{page}llamacpp:spec_decode_num_drafts_total 5\n"
    counted = [read_counters(each, DIALECTS["llamacpp"].counters) for each in (page, typed, both)]
    assert [(each["drafts"], each["draft_tokens"]) for each in counted] == [(4, 12), (4, 12), (5, 12)]


@pytest.mark.parametrize("page", ["other_total 3", "<html>not here</html>", "vllm:spec_decode_num_drafts_total NaN"])
def test_a_page_without_counters_is_no_zero(page: str) -> None:
    """What is not told is not known."""
    moved = difference(read_counters(page, VLLM.counters), {})
    assert speculation_of(moved) is None
    assert moved.get("prefix_cache_hits") is None


def test_a_request_is_greedy_whatever_the_model_says() -> None:
    """vLLM takes a model's own sampling settings as defaults, so each is sent; the request's own come last."""
    body = ServerPlan().body(Request((5,), 4, sampling={"top_k": 3}), None, "m")
    assert (body["temperature"], body["repetition_penalty"], body["top_k"]) == (0.0, 1.0, 3)
    assert body["prompt"] == [5]
    assert body["ignore_eos"] is True
    assert body["return_token_ids"] is True


def test_a_whole_answer_is_asked_for_without_a_stream() -> None:
    """vLLM refuses stream options then."""
    body = ServerPlan(stream=False).body(Request((5,), 4), None, "m")
    assert body.keys() & {"stream", "stream_options"} == set()


TALK = Conversation(({"role": "user", "content": "Hi"},), {"enable_thinking": False}, (5, 6))
SAID = Request((5, 6), 4, conversation=TALK)


def test_a_conversation_goes_as_it_is_with_what_its_template_takes() -> None:
    """By chat, where messages are asked for; else the same prompt goes as text, or as ids."""
    asking = ServerPlan(endpoint="chat", prompt="messages")
    body = asking.body(SAID, None, "m")
    assert asking.route(SAID).path == "/v1/chat/completions"
    assert (body["messages"], body["chat_template_kwargs"]) == ([*TALK.messages], {"enable_thinking": False})
    by_text = ServerPlan(endpoint="chat", prompt="text").body(SAID, "<u>Hi", "m")
    assert by_text["messages"] == [{"role": "user", "content": "<u>Hi"}]
    assert "chat_template_kwargs" not in by_text
    assert ServerPlan().body(SAID, None, "m")["prompt"] == [5, 6]


@pytest.mark.parametrize("request_", [Request((5, 6), 4), replace(SAID, prompt_ids=(5, 6, 7))], ids=["ids", "longer"])
def test_what_is_no_conversation_goes_as_ids(request_: Request) -> None:
    """As a further turn does, after an answer's own ids, and a second look's prompt."""
    asking = ServerPlan(endpoint="chat", prompt="messages")
    assert asking.route(request_).path == "/v1/completions"
    assert asking.body(request_, None, "m")["prompt"] == [*request_.prompt_ids]


def test_messages_are_under_the_servers_own_template() -> None:
    """A server that is started here for messages is given none; for a prompt as text, one that adds nothing."""
    spec = EngineSpec(backend="server", target="t")
    places = {"model": "/m", "draft": "", "host": "h", "port": 1}
    plans = [ServerPlan(endpoint="chat", prompt=prompt) for prompt in ("messages", "text")]
    assert ["--chat-template" in command_line(plan, spec, places, on_cpu=True) for plan in plans] == [False, True]


def test_the_target_alone_is_vllm_without_speculation_and_with_raw_logits() -> None:
    """Otherwise the command is the same."""
    spec = EngineSpec(backend="server", target="t", method="ngram", gamma=3, options={"enforce_eager": False})
    places = {"model": "/m", "draft": "", "host": "h", "port": 1}
    speculative = command_line(ServerPlan(), spec, places, on_cpu=True)
    alone = command_line(ServerPlan(), spec.target_only(), places, on_cpu=True)
    drafting = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']
    assert speculative[-2:] == drafting
    assert [part for part in alone if part not in ("--logprobs-mode", "raw_logits")] == speculative[:-2]
    assert {"--no-enforce-eager", "--enable-prompt-tokens-details"} <= set(alone)


def test_no_port_is_given_twice() -> None:
    """A server and its counters' page, say, must not take the same one."""
    ports = [free_port() for _ in range(500)]
    assert len(set(ports)) == 500


def test_a_served_engine_is_another_engine_and_others_keep_their_keys() -> None:
    """Server and reference are part of the key; without them it is what it was before there were any."""
    plain = EngineSpec(backend="vllm", target="t")
    served = EngineSpec(backend="server", target="t", server={"url": "http://a"}, reference=plain)
    assert plain.key == "74078e626bfc"
    assert served.key != EngineSpec(backend="server", target="t", server={"url": "http://b"}, reference=plain).key
    assert served.target_only() == plain


@pytest.mark.parametrize("page", ["[]", "{}", "not JSON", '{"data": []}', '"text"', '{"data": [1]}'])
def test_a_page_that_lists_no_model_is_shown(page: str) -> None:
    """What the server said instead, at which url."""
    engine = object.__new__(ServedEngine)
    engine._client = SimpleNamespace(url="http://h:1", text=lambda path, timeout: page)  # type: ignore[assignment]
    with pytest.raises(EngineError, match=f"http://h:1/v1/models lists no model: {re.escape(page)}"):
        engine._models()
