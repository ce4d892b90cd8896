"""docs/scenarios.md tells of every key, and of no other; what it and the error messages give as examples is valid."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from pytest_specdec.workloads.load import Load
from pytest_specdec.workloads.objectives import Objectives
from pytest_specdec.workloads.scenario import Scenario, discover, load_scenario
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
    ("slo.", Objectives),
    *(("source.", each) for each in get_args(Source)),
]


def documented() -> list[str]:
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
    """Each as often as there are tables that have it: source.format four times, say."""
    assert sorted(documented()) == sorted(prefix + key for prefix, model in MODELS for key in model.model_fields)


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


TOP_LEVEL = [(key, example) for prefix, key, example in examples() if not prefix]


@pytest.mark.parametrize(("key", "example"), TOP_LEVEL)
def test_the_example_of_every_key_is_valid(tmp_path: Path, key: str, example: str) -> None:
    """What an error tells the user to write is accepted, and arrives."""
    lines = {
        "source": 'source = { format = "random", length = 3 }',
        "count": "count = 8",
        "max_tokens": "max_tokens = 99",
        "slo": "slo = { e2e_ms = 99 }",
        key: example,
    }
    (tmp_path / "x.toml").write_text("\n".join(lines.values()))
    loaded = load_scenario(tmp_path / "x.toml").model_dump(mode="json")[key]
    assert loaded == {"source": {"format": "random", "length": [16, 16]}}.get(key, tomllib.loads(example)[key])


@pytest.mark.parametrize("model", get_args(Source))
def test_the_blocks_of_the_sources_are_valid(tmp_path: Path, model: type[BaseModel]) -> None:
    """The page's own block for each format, under a [source] head."""
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}')
    word = get_args(model.model_fields["format"].annotation)[0]
    block = next(each for each in blocks() if each.startswith(f'format = "{word}"'))
    count = "count = 1\n" if word == "random" else ""
    (tmp_path / "x.toml").write_text(f"{count}max_tokens = 8\n[source]\n{block}")
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
    assert {"short", "single", "prose"} <= set(loaded)
    assert all(path.read_text(encoding="utf-8").startswith("# ") for path in files)
    assert all(scenario.description for scenario in loaded.values())
    assert loaded["single"].concurrency == 1


@pytest.mark.parametrize("name", ["short", "single", "prose"])
def test_a_shipped_scenario_fits_the_smallest_model(name: str) -> None:
    """A vocabulary of 1024 ids, a context of 2048, and a tokenizer of one id a word."""
    scenario = load_scenario(ROOT / "scenarios" / f"{name}.toml")
    workload = scenario.realise(1024, 2048, lambda texts: [[7] * len(text.split()) for text in texts])
    assert len(workload.requests) == scenario.prompt_count
    assert all(0 < len(request.prompt_ids) <= 100 for request in workload.requests)
