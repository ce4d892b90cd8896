"""Datasets in a scenario: each format, each key, and what reaches the workload, its digest and its errors."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.workloads.conftest import letters, refusal_of

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.record.parts import PromptTokens
from pytest_specdec.run.describe import workload_part
from pytest_specdec.workloads.scenario import Scenario, load_scenario
from pytest_specdec.workloads.workload import Workload

SYSTEM, ASK, ANSWER, AGAIN = (
    {"role": role, "content": text}
    for role, text in (("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"))
)
TALK = [SYSTEM, ASK, ANSWER, AGAIN]
SHAREGPT = [
    {"from": "system", "value": "s"},
    {"from": "human", "value": "a"},
    {"from": "gpt", "value": "b"},
    {"from": "human", "value": "c"},
    {"from": "gpt", "value": "d"},
]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def chat(conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
    """A chat template: each message in the brackets of its role, and an open one for the answer."""
    return letters(
        ["".join(f"<{each['role'][0]}:{each['content']}>" for each in talk) + "<a:" for talk in conversations]
    )


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def scenario(format: str, path: str, text: str, source: str = "", top: str = "") -> Scenario:
    """A scenario on a file with this text; `source` and `top` are further lines of the two tables."""
    Path(path).write_bytes(text.encode())
    toml = f'max_tokens = 8\n{top}\n[source]\nformat = "{format}"\npath = "{path}"\n{source}\n'
    Path("x.toml").write_text(toml)
    return load_scenario("x.toml")


def workload(of: Scenario) -> Workload:
    return of.realise(5000, 5000, letters, chat)


def list_prompts(of: Scenario) -> list[str]:
    """The prompts, as the texts that the two tokenizers above would have been given."""
    return ["".join(map(chr, request.prompt_ids)) for request in workload(of).requests]


def error_of(format: str, path: str, text: str, source: str = "", top: str = "") -> str:
    """The error on loading such a scenario, without the folder."""
    return refusal_of(scenario, format, path, text, source, top)


@pytest.mark.parametrize(
    ("format", "path", "text"),
    [
        ("jsonl", "d.jsonl", lines({"prompt": "ab", "n": 1}, {"prompt": "c"})),
        ("json", "d.json", json.dumps([{"prompt": "ab"}, {"prompt": "c"}], indent=1)),
        ("csv", "d.csv", 'n,prompt\r\n1,"ab"\r\n2,c'),
    ],
)
def test_a_column_of_texts(format: str, path: str, text: str) -> None:
    """Bare by default, in the order of the file, all of it or the first."""
    assert list_prompts(scenario(format, path, text)) == ["ab", "c"]
    assert list_prompts(scenario(format, path, text, top="count = 1")) == ["ab"]
    assert list_prompts(scenario(format, path, text, "chat_template = true")) == ["<u:ab><a:", "<u:c><a:"]


def test_a_request_keeps_the_conversation_that_its_prompt_was_written_of() -> None:
    """For a server that writes it itself; it is no part of what is decoded, nor of its digest."""
    rows = lines({"messages": TALK}, {"messages": [ASK]})
    asked, top = 'column = "messages"\nchat_template = true', "chat_template_kwargs = { thinking = true }"
    made = scenario("jsonl", "d.jsonl", rows, asked, top).realise(1000, 1000, letters, chat)
    kept = [request.whole_conversation for request in made.requests]
    assert [each and (each.messages, each.template) for each in kept] == [
        ((SYSTEM, ASK), {"thinking": True}),
        ((ASK,), {"thinking": True}),
    ]
    bare = replace(made, requests=tuple(replace(each, conversation=None) for each in made.requests))
    assert (bare, bare.digest) == (made, made.digest)
    plain = scenario("jsonl", "d.jsonl", rows, 'column = "messages"\nchat_template = false')
    assert {each.conversation for each in plain.realise(1000, 1000, letters, chat).requests} == {None}


def test_a_column_of_a_parquet_file() -> None:
    """Texts and messages."""
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow: pip install pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist([{"q": "ab", "m": [ASK]}, {"q": "c", "m": [AGAIN]}]), "d.parquet")
    for column, expected in (("q", ["ab", "c"]), ("m", ["<u:a><a:", "<u:c><a:"])):
        source = f'source = {{ format = "parquet", path = "d.parquet", column = "{column}" }}'
        Path("x.toml").write_text(f"max_tokens = 8\n{source}")
        assert list_prompts(load_scenario("x.toml")) == expected


POLICIES = {"first": "<s:s><u:a><a:", "joined": "<s:s><u:a\n\nc><a:", "conversation": "<s:s><u:a><a:b><u:c><a:"}


@pytest.mark.parametrize(("turns", "expected"), POLICIES.items())
def test_what_of_a_conversation_is_asked(turns: str, expected: str) -> None:
    """Messages and ShareGPT alike; what the assistant says after the last user turn is never sent."""
    source = f'turns = "{turns}"'
    messages = lines({"messages": TALK}, {"messages": [*TALK, ANSWER]})
    assert list_prompts(scenario("jsonl", "d.jsonl", messages, f'column = "messages"\n{source}')) == [expected] * 2
    sharegpt = json.dumps([{"id": "1", "conversations": SHAREGPT}])
    assert list_prompts(scenario("sharegpt", "d.json", sharegpt, source)) == [expected]
    assert list_prompts(scenario("sharegpt", "d.jsonl", sharegpt.strip("[]"), source)) == [expected]


def test_a_conversation_without_a_chat_template_is_its_bare_texts() -> None:
    """A blank line between, and nothing of who says it."""
    bare = 'column = "messages"\nturns = "conversation"\nchat_template = false'
    assert list_prompts(scenario("jsonl", "d.jsonl", lines({"messages": TALK}), bare)) == ["s\n\na\n\nb\n\nc"]


def test_texts_and_conversations_in_one_column_keep_their_order() -> None:
    """Each is encoded as what it is."""
    rows = lines({"p": "x"}, {"p": [ASK]}, {"p": "y"})
    assert list_prompts(scenario("jsonl", "d.jsonl", rows, 'column = "p"')) == ["x", "<u:a><a:", "y"]


@pytest.mark.parametrize("format", ["spec_bench", "mt_bench", "speed_bench"])
def test_questions_by_turns_and_category(format: str) -> None:
    """The first turn, or both as one; all categories, or one."""
    rows = lines(
        {"question_id": 1, "category": "math", "turns": ["a", "b"]},
        {"question_id": 2, "category": "qa", "turns": ["c"]},
        {"question_id": 3, "category": "math", "turns": ["d"]},
    )
    assert list_prompts(scenario(format, "q.jsonl", rows)) == ["<u:a><a:", "<u:c><a:", "<u:d><a:"]
    kinds = workload(scenario(format, "q.jsonl", rows)).categories
    assert kinds == ("math", "qa", "math")
    joined = 'turns = "joined"\nchat_template = false\ncategory = "math"'
    assert list_prompts(scenario(format, "q.jsonl", rows, joined)) == ["a\n\nb", "d"]


def test_speed_bench_as_its_script_prepares_it() -> None:
    """One message for each user turn, and further columns that do not matter."""
    row = {"question_id": "x", "category": "qa", "sub_category": "y", "messages": [ASK, AGAIN], "multiturn": True}
    assert list_prompts(scenario("speed_bench", "q.jsonl", lines(row))) == ["<u:a><a:"]
    assert list_prompts(scenario("speed_bench", "q.jsonl", lines(row), 'turns = "joined"')) == ["<u:a\n\nc><a:"]


def test_speed_bench_as_downloaded_is_refused() -> None:
    """Its rows say that the text is elsewhere."""
    row = {"category": "qa", "turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]}
    assert error_of("speed_bench", "q.jsonl", lines(row)).startswith(
        "x.toml:5: source.path: q.jsonl:1: a placeholder, not a question: prepare the dataset with SPEED-Bench's own"
    )


def test_a_category_that_does_not_exist() -> None:
    """Those that do are listed, at the line of the key."""
    rows = lines({"category": "qa", "turns": ["a"]}, {"category": "math", "turns": ["a"]})
    assert error_of("spec_bench", "q.jsonl", rows, 'category = "maths"') == (
        "x.toml:6: source.category: no row of q.jsonl is of category 'maths': there are 'math', 'qa'"
    )


def test_the_custom_dataset_of_vllm() -> None:
    """With the chat template, as vLLM does, and with output lengths if they are there."""
    rows = lines({"prompt": "ab", "output_tokens": 3}, {"prompt": "c", "output_tokens": 12})
    loaded = scenario("vllm_custom", "d.jsonl", rows, top='output_length = "source"')
    assert list_prompts(loaded) == ["<u:ab><a:", "<u:c><a:"]
    assert [request.max_tokens for request in workload(loaded).requests] == [3, 8]
    assert workload(loaded).notes == ("answers cut to max_tokens = 8: 1 of 2",)
    assert [request.max_tokens for request in workload(scenario("vllm_custom", "d.jsonl", rows)).requests] == [8, 8]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ({"prompt": "a", "output_tokens": 3}, {"prompt": "b"}, {"prompt": "c"}),
            "x.toml:5: source.path: d.jsonl:2 and 1 more rows: no column 'output_tokens':"
            ' add it, or write output_length = "max_tokens"',
        ),
        (
            ({"prompt": "a", "output_tokens": 0},),
            "x.toml:5: source.path: d.jsonl:1: column 'output_tokens' is 0, not a whole number of 1 or more;"
            " correct such rows, or leave them out with skip_malformed = true",
        ),
    ],
)
def test_an_output_length_that_a_row_does_not_tell(rows: Sequence[dict[str, Any]], message: str) -> None:
    """Never a guess in its place."""
    assert error_of("vllm_custom", "d.jsonl", lines(*rows), top='output_length = "source"') == message


def test_an_output_length_that_no_row_of_the_format_tells() -> None:
    """The line is that of the key, and formats that do are named."""
    message = error_of("jsonl", "d.jsonl", lines({"prompt": "a"}), top='output_length = "source"')
    assert message == (
        "x.toml:2: output_length: a source of format 'jsonl' tells no output lengths:"
        ' remove it, or use a trace or format = "vllm_custom"'
    )


def test_an_output_length_below_min_tokens() -> None:
    """The row is named."""
    rows = lines({"prompt": "a", "output_tokens": 3})
    loaded = scenario("vllm_custom", "d.jsonl", rows, top='output_length = "source"\nmin_tokens = 4')
    assert refusal_of(workload, loaded) == (
        "prompt 1 of x.toml (d.jsonl:1): its answer of 3 tokens is shorter than min_tokens = 4: lower it"
    )


MOONCAKE = [
    {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 0, "input_length": 1024, "output_length": 6, "hash_ids": [0, 2]},
    {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [3, 1]},
]


def test_mooncake_shares_blocks_of_512_tokens_by_their_hash() -> None:
    """The same hash id is the same block, another one another; the last block ends where the length says."""
    first, second, third = (
        each.prompt_ids for each in workload(scenario("mooncake", "t.jsonl", lines(*MOONCAKE))).requests
    )
    assert (len(first), len(second), len(third)) == (700, 1024, 600)
    assert first[:512] == second[:512] != third[:512]
    assert first[512:600] == third[512:] != second[512:600]
    assert set(second) <= set(range(3, 5000))


def test_the_seed_draws_the_ids_of_a_trace_and_a_larger_count_keeps_the_first() -> None:
    """Same seed, same ids; another one, others."""
    rows = AZURE + "2023-11-16 18:17:03,40,1\n" * 3
    one, again, other = (workload(scenario("azure", "t.csv", rows, top=f"seed = {seed}")) for seed in (1, 1, 2))
    few = workload(scenario("azure", "t.csv", rows, top="seed = 1\ncount = 2"))
    assert one == again
    assert few.requests == one.requests[:2]
    assert len({request.prompt_ids for each in (one, other) for request in each.requests}) == 6


@pytest.mark.parametrize(
    ("format", "rows", "expected"),
    [
        ("mooncake", lines(*MOONCAKE), (0.0, 0.0, 1.5)),
        (
            "azure",
            AZURE + "2023-11-16 23:59:59.9799600,5,1\n2023-11-16 23:59:59.9799601,5,1\n2023-11-17 00:00:01,5,1\n",
            (0.0, 1e-7, 1.02004),
        ),
        ("azure", AZURE + "2024-05-10 00:00:00.009930+00:00,5,1\n2024-05-10 02:00:01.009930+02:00,5,1\n", (0.0, 1.0)),
        ("burstgpt", BURST + "5,GPT-4,4,3,7,API log\n45.5,ChatGPT,4,3,7,API log\n", (0.0, 40.5)),
    ],
)
def test_arrivals_are_seconds_from_the_first_row(format: str, rows: str, expected: tuple[float, ...]) -> None:
    """Each trace declares its unit: milliseconds, a clock, seconds."""
    loaded = scenario(format, "t", rows)
    assert loaded.source.arrivals(len(expected), 0) == expected
    assert loaded.source.arrivals(1, 0) == (0.0,)


def test_shuffled_rows_of_a_trace_have_no_arrivals() -> None:
    """They came in no order; nor has any other source some."""
    assert scenario("mooncake", "t.jsonl", lines(*MOONCAKE), 'order = "shuffled"').source.arrivals(3, 0) is None
    assert scenario("jsonl", "d.jsonl", lines({"prompt": "a"})).source.arrivals(1, 0) is None


def test_arrivals_and_output_lengths_are_of_the_drawn_rows() -> None:
    """A skipped row shifts neither."""
    rows = AZURE + "2023-11-16 18:17:03,5,1\n2023-11-16 18:17:04,x,2\n2023-11-16 18:17:05,6,3\n"
    loaded = scenario("azure", "t.csv", rows, "skip_malformed = true", 'output_length = "source"')
    assert loaded.source.arrivals(2, 0) == (0.0, 2.0)
    assert [(len(each.prompt_ids), each.max_tokens) for each in workload(loaded).requests] == [(5, 1), (6, 3)]


REMEDY = "correct such rows, or leave them out with skip_malformed = true"


WHOLE = "not a whole number of 1 or more"
TEXT = "is not a text of one character or more: give it one"
CLOCK = "not a date and time like 2023-11-16 18:17:03.9799600"
MALFORMED = [
    ("azure", AZURE + "2023-11-16 18:17:03,0,1", f":2: column 'ContextTokens' is 0, {WHOLE}"),
    ("azure", AZURE + "2023-11-16 18:17:03,4.5,1", f":2: column 'ContextTokens' is '4.5', {WHOLE}"),
    ("azure", AZURE + "16.11.2023,4,1", f":2: column 'TIMESTAMP' is '16.11.2023', {CLOCK}"),
    ("azure", AZURE + "2023-13-16 18:17:03,4,1", f":2: column 'TIMESTAMP' is '2023-13-16 18:17:03', {CLOCK}"),
    (
        "azure",
        "TIMESTAMP,Context,GeneratedTokens\n2023-11-16 18:17:03,4,1",
        ":2: no column 'ContextTokens': its columns are 'TIMESTAMP', 'Context', 'GeneratedTokens';"
        " a trace of azure has 'TIMESTAMP', 'ContextTokens' and 'GeneratedTokens'",
    ),
    (
        "azure",
        AZURE + "2023-11-16 18:17:04,4,1\n2023-11-16 18:17:03,4,1",
        ":3: its 'TIMESTAMP' lies before that of a row above: sort the file by it",
    ),
    ("burstgpt", BURST + "5,GPT-4,4,0,4,API log", f":2: column 'Response tokens' is 0, {WHOLE}"),
    ("burstgpt", BURST + "-5,GPT-4,4,3,7,API log", ":2: column 'Timestamp' is '-5', not a time of 0 or more"),
    ("burstgpt", BURST + "nan,GPT-4,4,3,7,API log", ":2: column 'Timestamp' is 'nan', not a time of 0 or more"),
    (
        "mooncake",
        lines({**MOONCAKE[0], "hash_ids": [1]}),
        ":1: column 'hash_ids' has 1 blocks of 512 tokens for a length of 700: "
        "say another block_size if the trace has one",
    ),
    ("mooncake", lines({**MOONCAKE[0], "hash_ids": ["a", 1]}), ":1: column 'hash_ids' is not a list of whole numbers"),
    ("mooncake", lines({**MOONCAKE[0], "input_length": True}), f":1: column 'input_length' is True, {WHOLE}"),
    ("mooncake", lines({**MOONCAKE[0], "timestamp": None}), ":1: column 'timestamp' is None, not a time of 0 or more"),
    ("jsonl", lines({"prompt": ""}), f":1: column 'prompt' {TEXT}"),
    ("jsonl", lines({"prompt": None}), f":1: column 'prompt' {TEXT}"),
    (
        "jsonl",
        lines({"prompt": []}),
        ":1: column 'prompt' is not a list of one turn or more: each is an object with 'role' and 'content'",
    ),
    (
        "jsonl",
        lines({"prompt": [ANSWER]}),
        ":1: no user turn: its roles are 'assistant'; name a row that asks something",
    ),
    (
        "jsonl",
        lines({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}),
        ":1: 'content' of turn 1 of column 'prompt' has parts of type 'image', which are not sent: only text is",
    ),
    ("spec_bench", lines({"turns": ["a", ""]}), f":1: turn 2 of column 'turns' {TEXT}"),
    ("spec_bench", lines({"turns": "a"}), ":1: column 'turns' is not a list of one text or more: give it one"),
    (
        "spec_bench",
        lines({"turn": "a"}),
        ":1: no column 'turns': its columns are 'turn'; a question of spec_bench has \"turns\"",
    ),
    (
        "sharegpt",
        json.dumps([{"conversations": [{"from": "tool", "value": "x"}]}]),
        ":1: turn 1 of column 'conversations' has the unknown role 'tool':"
        " known are 'human', 'user', 'gpt', 'chatgpt', 'bing', 'bard', 'assistant', 'system'",
    ),
    (
        "sharegpt",
        json.dumps([{"conversations": ["x"]}]),
        ":1: turn 1 of column 'conversations' is not an object with 'from' and 'value'",
    ),
    (
        "vllm_custom",
        lines({"text": "a"}),
        ":1: no column 'prompt': its columns are 'text'; a row of vLLM's custom dataset has \"prompt\"",
    ),
]


@pytest.mark.parametrize(("format", "text", "message"), MALFORMED)
def test_a_malformed_row(format: str, text: str, message: str) -> None:
    """The file, the line, the column and the remedy, at the scenario's line that names the file."""
    assert error_of(format, "data", text) == f"x.toml:5: source.path: data{message}; {REMEDY}"


def test_two_user_turns_without_an_answer_are_no_conversation() -> None:
    """Unless one asks for the first, or both as one."""
    rows = lines({"m": [ASK, AGAIN]})
    assert list_prompts(scenario("jsonl", "d.jsonl", rows, 'column = "m"\nturns = "joined"')) == ["<u:a\n\nc><a:"]
    assert error_of("jsonl", "d.jsonl", rows, 'column = "m"\nturns = "conversation"') == (
        "x.toml:5: source.path: d.jsonl:1: two user turns and no answer between them:"
        f' write turns = "first" or "joined"; {REMEDY}'
    )


def test_skipped_rows_reach_the_workload_and_its_record() -> None:
    """How many, the first of them, and lengths of what is left; the file's name without its folder."""
    rows = lines({"prompt": "abc"}, {"q": 1}, {"prompt": ""}, {"prompt": "a"})
    made = workload(scenario("jsonl", "d.jsonl", rows, "skip_malformed = true"))
    part = workload_part(made)
    first = "d.jsonl:2: no column 'prompt': its columns are 'q'; name one with `column`"
    assert (part.requests, part.skipped_rows) == (2, 2)
    assert made.notes == (f"malformed rows skipped: 2, the first {first}",)
    assert part.prompt_tokens == PromptTokens(min=1, mean=2.0, p50=2.0, p90=pytest.approx(2.8), max=3, total=4)


def test_a_file_whose_rows_are_all_malformed() -> None:
    """Skipping all of them leaves nothing, and is told."""
    assert error_of("jsonl", "d.jsonl", lines({"q": 1}, {"q": 2}), "skip_malformed = true") == (
        "x.toml:5: source.path: each of its 2 rows is malformed, the first"
        " d.jsonl:1: no column 'prompt': its columns are 'q'; name one with `column`"
    )
    assert error_of("csv", "d.csv", "prompt\n") == "x.toml:5: source.path: d.csv has no rows: name one with data"


def test_a_file_that_is_not_there() -> None:
    """As for prompt files."""
    Path("x.toml").write_text('max_tokens = 8\nsource = { format = "csv", path = "none.csv" }')
    with pytest.raises(ConfigurationError, match=r"x\.toml:2: source\.path: no such file .*none\.csv: the path is"):
        load_scenario("x.toml")


def test_more_rows_asked_for_than_there_are() -> None:
    """Malformed rows that are skipped do not count."""
    rows = lines({"prompt": "a"}, {"q": "b"}, {"prompt": "c"})
    assert error_of("jsonl", "d.jsonl", rows, "skip_malformed = true", "count = 3") == (
        "x.toml:2: count: 3 prompts asked for, the source has 2: lower count to 2 or add prompts"
    )


def test_rows_beyond_count_are_not_read() -> None:
    """Nor judged: the same file is an error when one asks for more."""
    rows = lines({"prompt": "a"}, {"prompt": "b"}) + "no JSON\n"
    assert list_prompts(scenario("jsonl", "d.jsonl", rows, top="count = 2")) == ["a", "b"]
    assert "d.jsonl:3: not JSON" in error_of("jsonl", "d.jsonl", rows, top="count = 3")


def test_the_digest_is_of_the_content_not_of_the_path() -> None:
    """A moved file, another format and a larger file are the same workload; an edited row is not."""
    rows = lines({"prompt": "ab"}, {"prompt": "c"})
    same = [
        scenario("jsonl", "d.jsonl", rows),
        scenario("jsonl", "moved.jsonl", rows, "skip_malformed = true"),
        scenario("jsonl", "d.jsonl", rows + lines({"prompt": "z"}), top="count = 2"),
        scenario("csv", "d.csv", "prompt\nab\nc\n"),
        scenario("file", "d.txt", "ab\nc\n"),
    ]
    others = [
        scenario("jsonl", "d.jsonl", lines({"prompt": "ab"}, {"prompt": "d"})),
        scenario("jsonl", "d.jsonl", rows, "chat_template = true"),
        scenario("jsonl", "d.jsonl", rows, top="count = 1"),
    ]
    assert len({each.digest for each in same}) == 1
    assert len({each.digest for each in (same[0], *others)}) == 4


@pytest.mark.parametrize(
    ("change", "top"),
    [({}, "seed = 1"), ({"input_length": 701}, ""), ({"hash_ids": [0, 9]}, ""), ({}, 'output_length = "source"')],
)
def test_the_digest_of_a_trace_is_of_what_defines_its_ids(change: dict[str, Any], top: str) -> None:
    """Length, blocks and seed; and the output lengths, if they are asked for."""
    plain = scenario("mooncake", "t.jsonl", lines(MOONCAKE[0])).digest
    assert scenario("mooncake", "t.jsonl", lines({**MOONCAKE[0], **change}), top=top).digest != plain
    untouched = {**MOONCAKE[0], "timestamp": 99, "output_length": 77}
    assert scenario("mooncake", "moved.jsonl", lines(untouched)).digest == plain


HUB = 'max_tokens = 8\ncount = {count}\nsource = {{ format = "hugging_face", dataset = "a/b", split = "test"{more} }}'


def hub(monkeypatch: pytest.MonkeyPatch, answer: Any, more: str = "", count: int = 2) -> Scenario:
    """A scenario on the dataset a/b, with a library whose `load_dataset` gives or raises this answer."""

    def load_dataset(*arguments: Any, **options: Any) -> Iterator[dict[str, Any]]:
        calls.append((*arguments, options))
        if isinstance(answer, Exception):
            raise answer
        return iter(answer)

    library = types.ModuleType("datasets")
    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    calls.clear()
    monkeypatch.setitem(sys.modules, "datasets", library)
    Path("x.toml").write_text(HUB.format(count=count, more=more))
    return load_scenario("x.toml")


calls: list[tuple[Any, ...]] = []


def test_a_dataset_of_the_hub_is_streamed_in_the_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the scenario opens nothing; then name, config, split and revision are passed on."""
    loaded = hub(monkeypatch, [{"q": "a"}, {"q": "b"}, {"q": "c"}], ', column = "q", config = "main", revision = "r"')
    assert calls == []
    assert list_prompts(loaded) == ["a", "b"]
    assert calls == [("a/b", "main", {"split": "test", "revision": "r", "streaming": True})]
    assert workload(loaded).digest
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            ConnectionError("Couldn't reach 'a/b' on the Hub (offline)"),
            "x.toml: source.dataset: a/b cannot be read (ConnectionError: Couldn't reach 'a/b' on the Hub (offline)):"
            ' check name, config, split and network, or fetch it once and write format = "parquet" or "jsonl"',
        ),
        (
            [{"question": "a"}],
            "x.toml: source.dataset: a/b row 1: no column 'prompt': its columns are 'question'; name one with `column`;"
            f" {REMEDY}",
        ),
        ([{"prompt": "a"}], "x.toml: source.dataset: 2 prompts asked for, a/b has 1: lower count"),
    ],
)
def test_a_dataset_of_the_hub_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, answer: Any, message: str) -> None:
    """The scenario and the key are named, for the digest as well as for the workload."""
    loaded = hub(monkeypatch, answer)
    for ask in (lambda: loaded.digest, lambda: workload(loaded)):
        assert refusal_of(ask) == message


def test_a_dataset_of_the_hub_needs_a_count() -> None:
    """How many rows there are is not known before the run."""
    Path("x.toml").write_text('max_tokens = 8\nsource = { format = "hugging_face", dataset = "a/b", split = "test" }')
    assert refusal_of(load_scenario, "x.toml") == (
        "x.toml:1: count: missing, and a dataset of the Hugging Face Hub is not opened before the run:"
        " add for example count = 8"
    )


def test_a_conversation_for_an_engine_without_chat_templates() -> None:
    """An engine that knows none says so, and the remedy."""
    loaded = scenario("vllm_custom", "d.jsonl", lines({"prompt": "a"}))
    with pytest.raises(ConfigurationError, match="this engine applies no chat template: set chat_template = false"):
        loaded.realise(5000, 5000, letters)
