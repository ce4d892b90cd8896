"""Faults that others met with workload files, one by one: what such a file holds, and what becomes of it here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.unit.workloads.conftest import letters, refusal_of

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.run.describe import workload_part
from pytest_specdec.workloads.scenario import Scenario, load_scenario


def contents(conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
    return letters(["|".join(message["content"] for message in talk) for talk in conversations])


def scenario(source: str, top: str = "") -> Scenario:
    Path("x.toml").write_text(f"max_tokens = 400\n{top}\nsource = {{ {source} }}")
    return load_scenario("x.toml")


def error_of(source: str) -> str:
    return refusal_of(scenario, source)


def list_prompts(of: Scenario) -> list[str]:
    requests = of.realise(5000, 50_000, letters, contents).requests
    return ["".join(map(chr, request.prompt_ids)) for request in requests]


@pytest.mark.parametrize("reference", [{}, {"reference": ["x"]}, {"reference": [["x"], ["y"]]}, {"reference": None}])
def test_spec_bench_reference_is_absent_a_list_or_a_list_of_lists(reference: dict[str, object]) -> None:
    """It is not looked at; of two turns the stated policy asks the first, or both as one."""
    row = {"question_id": 81, "category": "writing", "turns": ["one", "two"], **reference}
    Path("q.jsonl").write_text(json.dumps(row))
    assert list_prompts(scenario('format = "spec_bench", path = "q.jsonl"')) == ["one"]
    assert list_prompts(scenario('format = "spec_bench", path = "q.jsonl", turns = "joined"')) == ["one\n\ntwo"]


def test_azure_trace_with_crlf_no_final_newline_and_seven_digits() -> None:
    """The last row is kept, and 0.1 µs are told apart."""
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4808,10"]
    Path("t.csv").write_bytes("\r\n".join([*rows, "2023-11-16 18:17:03.9799601,3180,8"]).encode())
    loaded = scenario('format = "azure", path = "t.csv"', 'output_length = "source"')
    requests = loaded.realise(5000, 50_000, letters).requests
    assert [(len(request.prompt_ids), request.max_tokens) for request in requests] == [(4808, 10), (3180, 8)]
    assert loaded.source.arrivals(2, 0) == (0.0, 1e-7)


def test_mooncake_timestamps_are_milliseconds_and_zero_is_one_of_them() -> None:
    """The first request is due at 0, and the next 27.482 s later."""
    row = {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]}
    Path("t.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "timestamp": 27482}))
    assert scenario('format = "mooncake", path = "t.jsonl"').source.arrivals(2, 0) == (0.0, 27.482)


@pytest.mark.parametrize("format", ["burstgpt", "azure", "jsonl", "json", "csv", "parquet", "sharegpt", "file"])
def test_a_git_lfs_pointer_is_not_data(format: str) -> None:
    """Whatever is expected in its place, and the remedy is named."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 188000000\n"
    Path("t.jsonl").write_text(pointer)
    assert error_of(f'format = "{format}", path = "t.jsonl"') == (
        "x.toml:3: source.path: t.jsonl is an LFS pointer, not data: git lfs pull"
    )


def test_sharegpt_turns_are_chosen_by_role_and_skips_are_told() -> None:
    """A first entry of the model is no prompt; a conversation without a human is malformed, or skipped and counted."""
    told_first = {"conversations": [{"from": "gpt", "value": "A"}, {"from": "human", "value": "q"}]}
    nobody = {"conversations": [{"from": "gpt", "value": "A"}, {"from": "gpt", "value": "B"}]}
    Path("d.json").write_text(json.dumps([told_first, nobody]))
    assert "d.json:1: no user turn: its roles are 'assistant', 'assistant'" in error_of(
        'format = "sharegpt", path = "d.json"'
    )
    loaded = scenario('format = "sharegpt", path = "d.json", skip_malformed = true')
    assert list_prompts(loaded) == ["q"]
    made = loaded.realise(5000, 50_000, letters, contents)
    assert workload_part(made).skipped_rows == 1
    assert made.notes[1] == "turns before the first user turn left out: 1"


def test_a_file_with_a_messages_column_only() -> None:
    """Never an empty request: its columns are listed, and with the right one it is accepted."""
    Path("d.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "q"}]}))
    for format in ("jsonl", "file"):
        message = error_of(f'format = "{format}", path = "d.jsonl"')
        assert "no column 'prompt': its columns are 'messages'; name one with `column`" in message
    assert list_prompts(scenario('format = "jsonl", path = "d.jsonl", column = "messages"')) == ["q"]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("jsonl", '{"prompt":"a"}'),
        ("json", '[{"prompt":"a"}]'),
        ("csv", "prompt\na"),
        ("vllm_custom", '{"prompt":"a"}'),
        ("spec_bench", '{"turns":["a"]}'),
        ("sharegpt", '{"conversations":[{"from":"human","value":"a"}]}'),
        ("file", '{"prompt":"a"}'),
    ],
)
def test_a_byte_order_mark_loses_no_record(format: str, text: str) -> None:
    """Files are read as utf-8-sig."""
    Path("d.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert list_prompts(scenario(f'format = "{format}", path = "d.jsonl"')) == ["a"]


def test_rows_that_exceed_the_context_are_named_before_anything_runs() -> None:
    """Prompt plus output budget is held against the context, to the token; rows are named by their lines."""
    rows = [
        {"timestamp": 0, "input_length": n, "output_length": 9, "hash_ids": list(range(64))} for n in (32758, 32368)
    ]
    Path("t.jsonl").write_text(
        "\n" + "\n".join(map(json.dumps, [rows[1], rows[0], {**rows[1], "input_length": 32369}]))
    )
    loaded = scenario('format = "mooncake", path = "t.jsonl"')
    remedy = "tokens exceed the engine's context of 32768: shorten it or raise max_model_len"
    assert refusal_of(loaded.realise, 5000, 32768, letters).splitlines() == [
        f"prompt 2 of x.toml (t.jsonl:3): 32758 + 400 {remedy}",
        f"prompt 3 of x.toml (t.jsonl:4): 32369 + 400 {remedy}",
    ]


@pytest.mark.parametrize("length", [1, 4000])
def test_a_stated_prompt_length_is_met_to_the_token(length: int) -> None:
    """Ids are sent, never a text that would be encoded again; the record has the length of what was sent."""
    row = {"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": list(range(-(-length // 512)))}
    Path("t.jsonl").write_text(json.dumps(row))
    for source in (f'format = "random", length = {length}', 'format = "mooncake", path = "t.jsonl"'):
        part = workload_part(scenario(source, "count = 1").realise(5000, 50_000, letters))
        assert set(asdict(part.prompt_tokens).values()) == {length}


def notes_of(source: str, row: object) -> tuple[str, ...]:
    Path("d.jsonl").write_text(json.dumps(row))
    return scenario(source).realise(5000, 50_000, letters, contents).notes


MESSAGES = 'format = "jsonl", path = "d.jsonl", column = "messages"'


def test_content_in_parts_is_joined_and_other_parts_are_named() -> None:
    """As OpenAI has it: texts are one text; a picture cannot be left out unseen."""
    parts: list[dict[str, object]] = [{"type": "text", "text": "Name a "}, {"type": "text", "text": "river."}]
    Path("d.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": parts}]}))
    assert list_prompts(scenario(MESSAGES)) == ["Name a river."]
    Path("d.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": [*parts, {"type": "image_url"}]}]}))
    assert "'content' of turn 1 of column 'messages' has parts of type 'image_url', which are not sent" in error_of(
        MESSAGES
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": None, "tool_calls": [{}]},
                ]
            },
            "turn 2 of column 'messages' has 'tool_calls', which is not sent",
        ),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, "column 'tools' is not sent"),
        ({"messages": [{"role": "user", "content": "a\ud800"}]}, "has half a character at 1 (a lone surrogate)"),
    ],
)
def test_what_changes_an_answer_and_is_not_sent_is_named(row: object, said: str) -> None:
    """Tools and their calls are part of what an agent was asked."""
    Path("d.jsonl").write_text(json.dumps(row))
    assert said in error_of(MESSAGES)


def test_columns_that_nobody_reads_are_noted() -> None:
    """No column is lost in silence."""
    row = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "id": 1}
    assert notes_of(MESSAGES, row) == ("columns that were not used: id, max_tokens",)


def test_aiperf_inputs_are_read_payload_by_payload() -> None:
    """Each is a request, whatever its session; its place is told by session and number."""
    payload = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    Path("inputs.json").write_text(json.dumps({"data": [{"session_id": "s1", "payloads": [payload, payload]}]}))
    source = 'format = "json", path = "inputs.json", column = "messages"'
    assert list_prompts(scenario(source)) == ["Hi", "Hi"]
    assert error_of(source.replace("messages", "prompt")).count("inputs.json session s1 payload 1") == 1


def test_sharegpt_with_role_and_content_is_read() -> None:
    """The keys are those of its first turn."""
    Path("d.json").write_text(json.dumps([{"conversations": [{"role": "user", "content": "Hi"}]}]))
    assert list_prompts(scenario('format = "sharegpt", path = "d.json"')) == ["Hi"]


def test_mooncake_with_sessions_delays_and_blocks_of_another_size() -> None:
    """A request that follows in its session has no time of its own, and the record says so."""
    rows = [
        {"timestamp": 0, "session_id": "s", "input_length": 700, "output_length": 20, "hash_ids": [1, 2]},
        {"delay": 50, "session_id": "s", "input_length": 700, "output_length": 20, "hash_ids": [1, 3]},
    ]
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = 'format = "mooncake", path = "d.jsonl", block_size = 600'
    loaded = scenario(source, "ignore_eos = true").realise(5000, 50_000, letters)
    first, second = (request.prompt_ids for request in loaded.requests)
    assert (first[:600] == second[:600], first[600:] == second[600:]) == (True, False)
    assert loaded.notes == (
        "requests of sessions that were due a delay after the one before: 1; they are sent as the load says",
    )
    assert "has 2 blocks of 512 tokens for a length of 1300" in _mooncake_error(rows[0], 1300)


def _mooncake_error(row: Mapping[str, object], length: int) -> str:
    Path("d.jsonl").write_text(json.dumps({**row, "input_length": length}))
    return error_of('format = "mooncake", path = "d.jsonl"')


def test_a_trace_with_texts_says_how_to_read_them() -> None:
    """A text is no length."""
    Path("d.jsonl").write_text(json.dumps({"timestamp": 0, "text_input": "Hi", "output_length": 2}))
    assert 'write format = "jsonl", column = "text_input"' in error_of('format = "mooncake", path = "d.jsonl"')


def test_bursts_that_would_be_one_moment_are_refused() -> None:
    """Gaps of so small a shape are all zero, whose mean no factor makes 1/rate."""
    Path("x.toml").write_text(
        'max_tokens = 4\ncount = 4\nsource = { format = "random", length = 4 }\n'
        'load = { kind = "open", rate = 1.0, arrivals = "gamma", burstiness = 1e-9 }'
    )
    with pytest.raises(
        ConfigurationError, match=r"load.burstiness: expected the gamma distribution's shape, 0.05 or more"
    ):
        load_scenario("x.toml")
