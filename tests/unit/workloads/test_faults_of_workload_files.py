"""Faults that others met with workload files, one by one: what such a file holds, and what becomes of it here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.run.describe import workload_part
from pytest_specdec.workloads.scenario import Scenario, load_scenario


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def letters(texts: Sequence[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


def contents(conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
    return letters(["|".join(message["content"] for message in talk) for talk in conversations])


def scenario(source: str, top: str = "") -> Scenario:
    Path("x.toml").write_text(f"max_tokens = 400\n{top}\nsource = {{ {source} }}")
    return load_scenario("x.toml")


def error_of(source: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        scenario(source)
    return str(caught.value).replace(f"{Path.cwd()}/", "")


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
    with pytest.raises(ConfigurationError) as caught:
        loaded.realise(5000, 32768, letters)
    remedy = "tokens exceed the engine's context of 32768: shorten it or raise max_model_len"
    assert str(caught.value).splitlines() == [
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
