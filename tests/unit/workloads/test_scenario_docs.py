"""docs/scenarios.md tells of every key, and of no other; examples, there and in error messages, are valid."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from pytest_specdec.workloads.load import Load, Objectives
from pytest_specdec.workloads.prompts import PromptSource
from pytest_specdec.workloads.scenario import Detects, Scenario, Source, discover, load_scenario

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
    """The keys in the first cell of each row of each table."""
    cells = re.findall(r"^\| (`[^|]+`) \|", DOCS, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def blocks() -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)


def examples() -> Iterator[tuple[str, str, str]]:
    for prefix, model in MODELS:
        for key, field in model.model_fields.items():
            for example in field.examples or ():
                yield prefix, key, str(example)


def test_every_key_of_the_models_is_documented_and_no_other() -> None:
    """Each once, though several kinds of source have it."""
    assert sorted(list_documented()) == sorted({prefix + key for prefix, model in MODELS for key in model.model_fields})


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


BESIDE: dict[str, dict[str, str]] = {
    "file": {"prompts.jsonl": '{"prompt": "a"}'},
    "jsonl": {"data.jsonl": '{"messages": [{"role": "user", "content": "a"}]}'},
    "spec_bench": {"question.jsonl": '{"question_id": 81, "category": "coding", "turns": ["a", "b"]}'},
    "sharegpt": {"data.json": '[{"conversations": [{"from": "human", "value": "a"}]}]'},
    "vllm_custom": {"data.jsonl": '{"prompt": "a", "output_tokens": 3}'},
    "mooncake": {"trace.jsonl": '{"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [0]}'},
}
SOURCES = [block for block in blocks() if block.startswith("format =")]


@pytest.mark.parametrize("block", SOURCES, ids=lambda block: block.splitlines()[0])
def test_the_blocks_of_the_sources_are_valid(tmp_path: Path, block: str) -> None:
    """Under a [source] head, with data as that format has them; each has every key that its format knows."""
    written = tomllib.loads(block)
    for name, text in BESIDE.get(written["format"], {}).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "x.toml").write_text(f"count = 1\nmax_tokens = 8\n[source]\n{block}")
    assert set(written) == set(type(load_scenario(tmp_path / "x.toml").source).model_fields)


def test_each_kind_of_source_has_a_block() -> None:
    """But for the two traces that are Mooncake's without its blocks."""
    formats = {tomllib.loads(block)["format"] for block in SOURCES}
    kinds = [set(get_args(model.model_fields["format"].annotation)) for model in get_args(Source)]
    assert [kind for kind in kinds if not kind & formats] == [{"azure", "burstgpt"}]


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
