"""A dataset in a whole run: its prompts are decoded and judged, and the record tells lengths and skipped rows."""

from __future__ import annotations

import json

from tests.plugin.conftest import Project

from pytest_specdec.record import Figure, from_json
from pytest_specdec.record.parts import PromptTokens
from pytest_specdec.telemetry.monitor import NO_PROCESS

ONE = """
@pytest.mark.specdec(gamma=3, speculative_options={"alpha": 1.0})
def test_one(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)
"""
TEST = "test_one[t-draft_model-g3-short]"


def test_conversations_are_encoded_by_the_target_and_recorded(project: Project) -> None:
    """By its chat template, which is asked of the engine; here it gives one id a word, with roles and an opening."""
    rows = [
        {"messages": [{"role": "user", "content": "one two"}]},
        {"q": 1},
        {"messages": [{"role": "user", "content": "x"}]},
    ]
    project.write("scenarios/data.jsonl", "\n".join(map(json.dumps, rows)))
    source = 'source = { format = "jsonl", path = "data.jsonl", column = "messages", skip_malformed = true }'
    project.scenario(f"{source}\nmax_tokens = 8\n")
    project.tests(ONE)
    record = project.records()[TEST]
    assert record.gate == "green"
    assert record.workload.prompt_tokens == PromptTokens(min=3, mean=3.5, p50=3.5, p90=3.9, max=4, total=7)
    assert record.workload.skipped_rows == 1
    assert record.notes[0].startswith("malformed rows skipped: 1, the first data.jsonl:2: no column 'messages'")


def test_acceptance_is_told_by_the_categories_of_the_file(project: Project) -> None:
    """In the record, below the table and in the report. An engine without a process cannot tell how long it waited."""
    rows = [{"category": kind, "turns": ["one two three"]} for kind in ("math", "essay", "math")]
    project.write("scenarios/q.jsonl", "\n".join(map(json.dumps, rows)))
    project.scenario('source = { format = "spec_bench", path = "q.jsonl" }\nmax_tokens = 8\nrounds = 2\n')
    project.tests(ONE)
    printed = project.run("--benchmark-json=out.json", "--specdec-report=page.md").stdout.str()
    (bench,) = json.loads((project.path / "out.json").read_text("utf-8"))["benchmarks"]
    record = from_json(bench["extra_info"]["specdec"])
    told = [(each.name, each.requests, each.delivered_tokens_per_step.value) for each in record.acceptance.by_category]
    assert told == [("essay", 1, 4.0), ("math", 2, 4.0)]
    words = "4.00 tokens a step (2 requests)"
    assert words in printed
    assert words in (project.path / "page.md").read_text("utf-8")
    waited = (record.throughput.waited_for_cores, record.target_alone.waited_for_cores)
    assert waited == (Figure(None, NO_PROCESS),) * 2


def test_answers_as_long_as_the_trace_says(project: Project) -> None:
    """Three and five tokens of two requests, in each of four rounds."""
    trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,9,3\n2023-11-16 18:17:04,6,5\n"
    project.write("scenarios/trace.csv", trace)
    source = 'source = { format = "azure", path = "trace.csv" }\noutput_length = "source"'
    project.scenario(f"{source}\nmax_tokens = 8\n")
    project.tests(ONE)
    record = project.records()[TEST]
    assert (record.gate, record.throughput.tokens, record.workload.prompt_tokens.total) == ("green", 4 * (3 + 5), 15)


def test_a_prompt_of_one_token_that_the_engine_lengthens_is_red(project: Project) -> None:
    """What was sent is held against what the engine says it read, before outputs are looked at."""
    project.scenario('source = { format = "random", length = 1 }\ncount = 2\nmax_tokens = 8\n')
    project.tests(ONE)
    assert project.records()[TEST].workload.prompt_tokens.max == 1
    project.tests(ONE.replace('"alpha": 1.0', '"fault": "BOS doubled"'))
    project.run().stdout.fnmatch_lines(["*inputs differ*"])
    assert TEST not in project.records()


def test_a_malformed_row_fails_the_test_with_its_place(project: Project) -> None:
    """No traceback, and nothing is loaded."""
    project.write("scenarios/data.jsonl", '{"prompt": "a"}\n{"promt": "b"}\n')
    project.scenario('source = { format = "jsonl", path = "data.jsonl" }\nmax_tokens = 8\n')
    project.tests(ONE)
    project.run().stdout.fnmatch_lines(["*source.path: *data.jsonl:2: no column 'prompt': its columns are 'promt'*"])
    assert project.loads() == []
