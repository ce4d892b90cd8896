"""Public workload files as they are: every row is read, and what is known of them comes out.

The folder is named by SPECDEC_WORKLOADS. It has `spec_bench_question.jsonl` (hemingkx/Spec-Bench),
`sharegpt_dummy_conversation.json` (lm-sys/FastChat), `mooncake_conversation.jsonl` (kvcache-ai/Mooncake, FAST25) and
`azure_code.csv` (Azure/AzurePublicDataset, code trace of 2023).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.workloads import traces
from pytest_specdec.workloads.scenario import Scenario, load_scenario
from pytest_specdec.workloads.workload import Workload

FOLDER = os.environ.get("SPECDEC_WORKLOADS")

pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="SPECDEC_WORKLOADS names no folder of real workload files: set it to try the readers on them"
)
VOCABULARY, CONTEXT = 50_000, 200_000


def words(texts: Sequence[str]) -> list[list[int]]:
    return [[7] * len(text.split()) for text in texts]


def chat(conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
    return words([" ".join(f"{each['role']} {each['content']}" for each in talk) for talk in conversations])


def scenario(folder: Path, format: str, name: str, source: str = "", top: str = "") -> Scenario:
    path = Path(str(FOLDER)) / name
    (folder / "x.toml").write_text(
        f'max_tokens = 4096\n{top}\n[source]\nformat = "{format}"\npath = "{path}"\n{source}'
    )
    return load_scenario(folder / "x.toml")


def realise(of: Scenario) -> Workload:
    return of.realise(VOCABULARY, CONTEXT, words, chat)


def test_spec_bench_has_480_questions_in_13_categories(tmp_path: Path) -> None:
    """Eighty of them have two turns, and those of one category are found."""
    loaded = scenario(tmp_path, "spec_bench", "spec_bench_question.jsonl")
    assert len(realise(loaded).requests) == 480
    joined = scenario(tmp_path, "spec_bench", "spec_bench_question.jsonl", 'turns = "joined"')
    pairs = zip(realise(loaded).requests, realise(joined).requests, strict=True)
    assert sum(len(one.prompt_ids) < len(both.prompt_ids) for one, both in pairs) == 80
    assert scenario(tmp_path, "spec_bench", "spec_bench_question.jsonl", 'category = "math"').prompt_count == 10
    assert scenario(tmp_path, "spec_bench", "spec_bench_question.jsonl", 'category = "rag"').prompt_count == 80


def test_sharegpt_has_500_conversations_of_one_to_three_questions(tmp_path: Path) -> None:
    """A third each, so that two thirds grow when all is asked."""
    first, whole = (
        realise(scenario(tmp_path, "sharegpt", "sharegpt_dummy_conversation.json", f'turns = "{turns}"'))
        for turns in ("first", "conversation")
    )
    assert len(first.requests) == 500
    pairs = zip(first.requests, whole.requests, strict=True)
    grown = sum(len(one.prompt_ids) < len(other.prompt_ids) for one, other in pairs)
    assert (grown, first.skipped_rows, first.notes) == (333, 0, ("columns that were not used: id",))


def test_the_azure_trace_has_8819_rows_with_the_last_one(tmp_path: Path) -> None:
    """Lengths, output lengths and times are as they stand in the file."""
    loaded = scenario(tmp_path, "azure", "azure_code.csv", top='output_length = "source"')
    told, arrivals = loaded.source.output_lengths(8819, 0), loaded.source.arrivals(8819, 0)
    assert told is not None
    assert arrivals is not None
    assert (loaded.prompt_count, told[0], told[-1]) == (8819, 10, 173)
    assert (arrivals[0], arrivals[1], arrivals[-1]) == (0.0, 0.052, 3435.948056)
    few = realise(scenario(tmp_path, "azure", "azure_code.csv", top="count = 3"))
    assert [len(request.prompt_ids) for request in few.requests] == [4808, 3180, 110]


def test_the_mooncake_trace_has_12031_rows_that_share_prefixes(tmp_path: Path) -> None:
    """The first rows begin with the same block; the last comes 3537 s after the first."""
    loaded = scenario(tmp_path, "mooncake", "mooncake_conversation.jsonl")
    arrivals = loaded.source.arrivals(12_031, 0)
    assert arrivals is not None
    assert (loaded.prompt_count, arrivals[0], arrivals[-1]) == (12_031, 0.0, 3536.999)
    few = realise(scenario(tmp_path, "mooncake", "mooncake_conversation.jsonl", top="count = 3"))
    assert [len(request.prompt_ids) for request in few.requests] == [6758, 7322, 7236]
    assert len({request.prompt_ids[:512] for request in few.requests}) == 1
    assert len({request.prompt_ids[512:1024] for request in few.requests}) == 3


@pytest.mark.parametrize(("order", "rows"), [("file", 100), ("shuffled", 12_031)])
def test_a_hundred_rows_of_the_mooncake_trace_cost_no_more_than_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, rows: int
) -> None:
    """The first need no look at the rest, drawing needs one; and a block that prompts share is made once."""
    read: list[str] = []
    made: list[str] = []
    columns, ids = traces.TRACES["mooncake"], traces.ordinary_ids
    noted = replace(columns, rows=lambda path: (read.append(row.at) or row for row in columns.rows(path)))
    monkeypatch.setitem(traces.TRACES, "mooncake", noted)
    monkeypatch.setattr(traces, "ordinary_ids", lambda name, *how: made.append(name) or ids(name, *how))
    loaded = scenario(tmp_path, "mooncake", "mooncake_conversation.jsonl", f'order = "{order}"', "count = 100")
    assert len(realise(loaded).requests) == 100
    assert len(read) == len(set(read)) == rows
    assert len(made) == len(set(made))
