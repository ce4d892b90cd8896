"""docs/scenarios.md tells of every key, and of no other; what it and the error messages give as examples is valid."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from pytest_specdec.workloads.load import Load, Objectives
from pytest_specdec.workloads.scenario import Detects, Scenario, discover, load_scenario
from pytest_specdec.workloads.sources import Source
from pytest_specdec.workloads.sources.source import PromptSource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
MODELS: list[tuple[str, type[BaseModel]]] = [
    ("", Scenario),
    *(("load.", each) for each in get_args(Load)),
    ("detects.", Detects),
    ("slo.", Objectives),
    *(("source.", each) for each in get_args(Source)),
]


def list_documented() -> list[str]:
    """The first cell of each row of each table, without its heading."""
    return re.findall(r"^\| `([^`]+)` \|", DOCS, re.MULTILINE)


def blocks() -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)


def examples() -> Iterator[tuple[str, str, str]]:
    for prefix, model in MODELS:
        for key, field in model.model_fields.items():
            for example in field.examples or ():
                yield prefix, key, str(example)


def test_every_key_of_the_models_is_documented_and_no_other() -> None:
    """Each as often as there are tables that have it: source.format once for each kind of source, say."""
    assert sorted(list_documented()) == sorted(prefix + key for prefix, model in MODELS for key in model.model_fields)


SIMPLE = [key for key, field in Scenario.model_fields.items() if isinstance(field.default, bool | int)]


@pytest.mark.parametrize("key", SIMPLE)
def test_the_default_of_every_number_and_switch_is_documented(key: str) -> None:
    """The third cell of the row is the default of the model."""
    row = re.search(rf"^\| `{key}` \|[^|]*\|([^|]*)\|", DOCS, re.MULTILINE)
    assert row is not None
    assert row[1].strip() == str(Scenario.model_fields[key].default).lower()


@pytest.mark.parametrize("key", Scenario.model_fields)
def test_what_is_needed_is_documented_as_needed(key: str) -> None:
    """A row says "needed" where the model has no default; the name comes from the file, count depends on the source."""
    row = re.search(rf"^\| `{key}` \|[^|]*\|([^|]*)\|", DOCS, re.MULTILINE)
    assert row is not None
    assert (row[1].strip() == "needed") == (Scenario.model_fields[key].is_required() and key != "name")


@pytest.mark.parametrize(("prefix", "key", "example"), list(examples()))
def test_the_example_of_every_key_is_documented(prefix: str, key: str, example: str) -> None:
    """An error message and the page show the same."""
    assert any(example in block.splitlines() for block in blocks())


ONE_OF_ANY_LENGTH = '{ format = "random", length = 3 }'
TOP_LEVEL = [(key, example) for prefix, key, example in examples() if not prefix]


@pytest.mark.parametrize(("key", "example"), TOP_LEVEL)
def test_the_example_of_every_key_is_valid(tmp_path: Path, key: str, example: str) -> None:
    """What an error tells the user to write is accepted, and arrives."""
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "output_tokens": 3}\n' * 8)
    source = '{ format = "vllm_custom", path = "p.jsonl" }' if key == "output_length" else ONE_OF_ANY_LENGTH
    lines = {
        "source": f"source = {source}",
        "count": "count = 8",
        "max_tokens": "max_tokens = 99",
        "slo": "slo = { e2e_ms = 99 }",
        key: example,
    }
    (tmp_path / "x.toml").write_text("\n".join(lines.values()))
    loaded = load_scenario(tmp_path / "x.toml").model_dump(mode="json", exclude_none=True)[key]
    assert loaded == {"source": {"format": "random", "length": [16, 16]}}.get(key, tomllib.loads(example)[key])


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow: pip install pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


MESSAGES = [{"role": "user", "content": "a"}]
QUESTION = {"question_id": 81, "category": "coding", "turns": ["a", "b"]}
TALK = {"conversations": [{"from": "human", "value": "a"}]}
BESIDE: dict[str, dict[str, str]] = {
    "file": {"prompts.jsonl": '{"prompt": "a"}'},
    "jsonl": {"data.jsonl": json.dumps({"messages": MESSAGES})},
    "json": {"data.json": '[{"question": "a"}]'},
    "csv": {"data.csv": "question,answer\na,b"},
    "spec_bench": {"question.jsonl": json.dumps(QUESTION)},
    "mt_bench": {"question.jsonl": json.dumps(QUESTION)},
    "speed_bench": {"qualitative.jsonl": json.dumps({"category": "coding", "messages": MESSAGES})},
    "sharegpt": {"data.json": json.dumps([TALK])},
    "vllm_custom": {"data.jsonl": '{"prompt": "a", "output_tokens": 3}'},
    "azure": {"trace.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,5,10"},
    "mooncake": {"trace.jsonl": '{"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [0]}'},
    "burstgpt": {
        "trace.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,4,3,7,API log"
    },
}
FORMATS = [(word, model) for model in get_args(Source) for word in get_args(model.model_fields["format"].annotation)]


@pytest.mark.parametrize(("word", "model"), FORMATS)
def test_the_blocks_of_the_sources_are_valid(tmp_path: Path, word: str, model: type[BaseModel]) -> None:
    """The page's own block for each format, under a [source] head, with data as that format has them."""
    for name, text in BESIDE.get(word, {}).items():
        (tmp_path / name).write_text(text)
    if word == "parquet":
        write_parquet(tmp_path / "data.parquet", [{"messages": MESSAGES}])
    block = next(each for each in blocks() if each.startswith(f'format = "{word}"'))
    (tmp_path / "x.toml").write_text(f"count = 1\nmax_tokens = 8\n[source]\n{block}")
    assert set(tomllib.loads(block)) == set(model.model_fields)
    assert isinstance(load_scenario(tmp_path / "x.toml").source, model)


@pytest.mark.parametrize("block", [block for block in blocks() if block.startswith("kind =")])
def test_the_blocks_of_the_loads_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str) -> None:
    """Under a [load] head, where a trace finds a source with times."""
    monkeypatch.setattr(PromptSource, "arrivals", lambda self, count, seed: range(count))
    source = 'source = { format = "random", length = 3 }'
    (tmp_path / "x.toml").write_text(f"{source}\ncount = 4\nmax_tokens = 8\n[load]\n{block}")
    assert load_scenario(tmp_path / "x.toml").due_s


def test_the_shipped_scenarios_load_and_say_why_they_exist() -> None:
    """Each begins with a comment, has a description, and is small."""
    files = discover([ROOT / "scenarios"])
    loaded = {path.stem: load_scenario(path) for path in files}
    assert {"short", "single", "prose", "chat"} <= set(loaded)
    assert all(path.read_text(encoding="utf-8").startswith("# ") for path in files)
    assert all(scenario.description for scenario in loaded.values())
    assert loaded["single"].concurrency == 1


def words(texts: Sequence[str]) -> list[list[int]]:
    return [[7] * len(text.split()) for text in texts]


@pytest.mark.parametrize("name", ["short", "single", "prose", "chat"])
def test_a_shipped_scenario_fits_the_smallest_model(name: str) -> None:
    """A vocabulary of 1024 ids, a context of 2048, and a tokenizer of one id a word."""
    scenario = load_scenario(ROOT / "scenarios" / f"{name}.toml")
    workload = scenario.realise(1024, 2048, words, lambda talks: [words([str(talk)])[0] for talk in talks])
    assert len(workload.requests) == scenario.prompt_count
    assert all(0 < len(request.prompt_ids) <= 100 for request in workload.requests)
