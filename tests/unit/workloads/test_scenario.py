"""A scenario file becomes a workload: the same one every time, and another one under another seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.unit.workloads.conftest import RANDOM, letters

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.scenario import Choice, Scenario, load_scenario, load_sweep
from pytest_specdec.workloads.workload import Limits, Request

RANDOM_UNDER_SEED_1 = [(847, 764, 257, 496), (652, 789, 96, 31), (434, 762, 5, 447)]
DIGEST_OF_AB_AND_C = "ca2ffa49b7b1"


def no_tokenizer(texts: Sequence[str]) -> list[list[int]]:
    raise AssertionError("asked for a tokenizer")


def write_scenario(folder: Path, text: str, name: str = "x.toml") -> Scenario:
    (folder / name).write_text(text, encoding="utf-8")
    return load_scenario(folder / name)


def prompts(scenario: Scenario, vocabulary: int = 1000) -> list[tuple[int, ...]]:
    return [request.prompt_ids for request in scenario.realise(vocabulary, 512, letters).requests]


def test_defaults_of_the_smallest_scenario(tmp_path: Path) -> None:
    """Only source, count and max_tokens are given; the rest is as documented."""
    scenario = write_scenario(tmp_path, RANDOM)
    told = scenario.model_dump(exclude={"source", "count", "max_tokens", "load"})
    assert told == {
        "name": "x",
        "description": "",
        "seed": 0,
        "chat_template_kwargs": {},
        "min_tokens": 0,
        "ignore_eos": True,
        "stop": (),
        "stop_token_ids": (),
        "output_length": "max_tokens",
        "sampling": {},
        "sampling_in_turn": (),
        "concurrency": 1,
        "waves": None,
        "prefix_cache": "reset",
        "follow_ups": (),
        "rounds": 4,
        "interval": 0.05,
        "warmup_rounds": 1,
        "demand": (),
        "min_speedup": None,
        "max_energy_ratio": None,
        "min_acceptance_rate": None,
        "min_mean_accepted_length": None,
        "max_tie_rate": None,
        "detects": {"near_ties": None, "lossy": None, "total_variation": None},
        "slo": {"ttft_ms": None, "tpot_ms": None, "e2e_ms": None},
        "min_goodput": None,
    }
    assert (scenario.path, scenario.load.kind) == (tmp_path / "x.toml", "closed")


def test_every_limit_reaches_the_request(tmp_path: Path) -> None:
    """What the file says of decoding is what the engine is asked."""
    scenario = write_scenario(
        tmp_path,
        """\
name = "other"
source = { format = "ids", prompts = [[5, 6], [7]] }
max_tokens = 9
min_tokens = 2
ignore_eos = false
stop = ["###"]
stop_token_ids = [2]
sampling = { frequency_penalty = 0.5 }
concurrency = 2
""",
    )
    workload = scenario.realise(10, 11, no_tokenizer)
    limits = (9, 2, False, (2,), ("###",), {"frequency_penalty": 0.5})
    assert workload.requests == (Request((5, 6), *limits), Request((7,), *limits))
    assert (workload.name, workload.concurrency) == ("other", 2)


def test_sampling_in_turn_is_each_requests_own(tmp_path: Path) -> None:
    """Beside what all have; and it is another workload."""
    alike = 'source = { format = "ids", prompts = [[5], [6], [7]] }\nmax_tokens = 4\nsampling = { seed = 1 }\n'
    mixed = write_scenario(tmp_path, alike + "sampling_in_turn = [{ min_p = 0.1 }, {}]")
    own = [dict(request.sampling) for request in mixed.realise(10, 11, no_tokenizer).requests]
    assert own == [{"seed": 1, "min_p": 0.1}, {"seed": 2}, {"seed": 3, "min_p": 0.1}]
    assert mixed.digest != write_scenario(tmp_path, alike).digest


def test_a_further_turn_goes_on_from_an_answer(tmp_path: Path) -> None:
    """Behind the turn before, under the same limits, and checked as prompts of the file are; it is another workload."""
    alike = 'source = { format = "ids", prompts = [[5], [6]] }\nmax_tokens = 4\nsampling = { min_p = 0.1 }\n'
    talk = write_scenario(tmp_path, alike + "follow_ups = [[8, 9]]")
    said = talk.add_turn(talk.realise(10, 9, no_tokenizer), [(1, 2), (3,)], talk.follow_ups[0], Limits(10, 9))
    assert [each.prompt_ids for each in said.requests] == [(5,), (6,), (5, 1, 2, 8, 9), (6, 3, 8, 9)]
    assert {(each.max_tokens, each.sampling["min_p"]) for each in said.requests} == {(4, 0.1)}
    assert talk.digest != write_scenario(tmp_path, alike).digest
    with pytest.raises(ConfigurationError, match=r"prompt 2 of .*, after an answer: 9 \+ 4 tokens exceed the engine's"):
        talk.add_turn(said, [(), (1, 2, 3)], (7, 7), Limits(10, 12))
    with pytest.raises(ConfigurationError, match=r"prompt 1 of .*, after an answer: token id 11 outside"):
        talk.add_turn(said, [(), ()], (11,), Limits(10, 12))


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ('load = { kind = "offline" }', "a turn begins after the one before, as in a closed load alone"),
        ('prefix_cache = "keep"', "would be found as prompts of an earlier round"),
    ],
)
def test_further_turns_come_one_after_another(tmp_path: Path, keys: str, mistake: str) -> None:
    """In a closed load, with a cache that is empty when the round begins."""
    with pytest.raises(ConfigurationError, match=f"follow_ups: {mistake}"):
        write_scenario(tmp_path, f"{RANDOM}follow_ups = [[5]]\n{keys}")


def test_a_bias_is_of_token_ids(tmp_path: Path) -> None:
    """TOML has texts for keys; what is no id is refused."""
    biased = write_scenario(tmp_path, RANDOM + "sampling = { logit_bias = { 17 = -100.0 } }")
    assert biased.sampling == {"logit_bias": {17: -100.0}}
    mixed = write_scenario(tmp_path, RANDOM + "sampling_in_turn = [{ logit_bias = { 17 = -100.0 } }, {}]")
    assert mixed.sampling_in_turn == ({"logit_bias": {17: -100.0}}, {})


@pytest.mark.parametrize("keys", ["sampling = {%s}", "sampling_in_turn = [{}, {%s}]"], ids=["all", "in turn"])
@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("logit_bias = { the = -100.0 }", "logit_bias is of token ids, not of 'the'"),
        ('structured_outputs = { chioce = ["a"] }', "structured_outputs has one of choice, regex, json, .*'chioce'"),
        ("logprobs = true", "logprobs is a whole number, not True: write for example 1"),
        ("max_tokens = 3", "not a matter of sampling: use the scenario's key 'max_tokens'"),
    ],
)
def test_a_field_that_the_verdict_reads_is_checked(tmp_path: Path, keys: str, field: str, message: str) -> None:
    """In the table of all requests and in that of each."""
    with pytest.raises(ConfigurationError, match=rf"x\.toml:\d+: sampling\S*: {message}"):
        write_scenario(tmp_path, RANDOM + keys % field)


def test_a_scenario_cannot_be_changed(tmp_path: Path) -> None:
    """It is frozen."""
    scenario = write_scenario(tmp_path, RANDOM)
    with pytest.raises(ValidationError, match="frozen"):
        scenario.max_tokens = 3


def test_random_prompts_are_the_same_every_time_and_need_no_tokenizer(tmp_path: Path) -> None:
    """Ids are pinned, so that records of years compare."""
    scenario = write_scenario(tmp_path, RANDOM + "seed = 1")
    workload = scenario.realise(1000, 512, no_tokenizer)
    assert workload == scenario.realise(1000, 512, no_tokenizer)
    assert [request.prompt_ids for request in workload.requests] == RANDOM_UNDER_SEED_1


@settings(max_examples=30)
@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_another_seed_draws_other_prompts(tmp_path_factory: pytest.TempPathFactory, one: int, other: int) -> None:
    """Twelve ids of a thousand: equal by chance once in 10^36."""
    folder = tmp_path_factory.mktemp("seeds")
    first, second = (write_scenario(folder, f"{RANDOM}seed = {seed}") for seed in (one, other))
    assert (prompts(first) == prompts(second)) == (one == other)
    assert (first.digest == second.digest) == (one == other)


def test_random_prompts_are_uniform_over_the_vocabulary_without_the_first_three(tmp_path: Path) -> None:
    """Every id from 3 to the last occurs, each about as often as another; none else does."""
    text = 'source = { format = "random", length = 1000 }\ncount = 10\nmax_tokens = 8'
    scenario = write_scenario(tmp_path, text)
    ids = [token for request in scenario.realise(13, 2000, no_tokenizer).requests for token in request.prompt_ids]
    assert set(ids) == set(range(3, 13))
    assert all(800 < ids.count(token) < 1200 for token in range(3, 13))


def test_a_range_of_lengths_reaches_both_ends(tmp_path: Path) -> None:
    """[2, 4] gives 2, 3 and 4 tokens."""
    scenario = write_scenario(tmp_path, 'source = { format = "random", length = [2, 4] }\ncount = 60\nmax_tokens = 8')
    assert {len(prompt) for prompt in prompts(scenario)} == {2, 3, 4}


def test_a_larger_count_leaves_the_first_prompts_as_they_were(tmp_path: Path) -> None:
    """A longer run contains the shorter one."""
    few, many = (write_scenario(tmp_path, RANDOM.replace("3", count)) for count in ("3", "30"))
    assert prompts(many)[:3] == prompts(few)


@pytest.mark.parametrize(
    ("source", "beside"),
    [
        ('{ format = "text", prompts = ["ab", "c", "d"] }', {}),
        ('{ format = "ids", prompts = [[97, 98], [99], [100]] }', {}),
        ('{ format = "file", path = "p.txt" }', {"p.txt": "\ufeffab\n\nc\r\nd\n"}),
        (
            '{ format = "file", path = "p.jsonl" }',
            {"p.jsonl": '{"prompt": "ab"}\n{"prompt": "c", "n": 1}\n\n{"prompt": "d"}'},
        ),
        (
            '{ format = "file", path = "in/p.jsonl", column = "q" }',
            {"in/p.jsonl": '\ufeff{"q": "ab"}\n{"q": "c"}\n{"q": "d"}'},
        ),
    ],
    ids=["text", "ids", "txt", "jsonl", "column"],
)
def test_given_prompts_come_in_order_all_or_the_first(tmp_path: Path, source: str, beside: dict[str, str]) -> None:
    """Without `count` all of them, with it the first."""
    for name, text in beside.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    everything = write_scenario(tmp_path, f"source = {source}\nmax_tokens = 8")
    assert prompts(everything) == [(97, 98), (99,), (100,)]
    assert prompts(write_scenario(tmp_path, f"source = {source}\nmax_tokens = 8\ncount = 2")) == [(97, 98), (99,)]


def test_a_prompt_file_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path is relative to the scenario, also when the current folder changes after loading."""
    (tmp_path / "p.txt").write_text("ab")
    (tmp_path / "x.toml").write_text('source = { format = "file", path = "p.txt" }\nmax_tokens = 8')
    monkeypatch.chdir(tmp_path)
    scenario = load_scenario("x.toml")
    monkeypatch.chdir("/")
    assert prompts(scenario) == [(97, 98)]


def test_the_digest_is_stable_over_what_does_not_define_the_workload(tmp_path: Path) -> None:
    """Order, comments, layout, description, name, rounds and thresholds; and where prompts are kept."""
    (tmp_path / "p.txt").write_text("ab\nc")
    same = [
        'source = { format = "text", prompts = ["ab", "c"] }\nmax_tokens = 8\n',
        'load.kind = "closed"\nmax_tokens = 8 # eight\nrounds = 9\n[source]\nprompts = ["ab", "c"]\nformat = "text"\n',
        'source = { format = "text", prompts = ["ab", "c", "d"] }\nmax_tokens = 8\ncount = 2\nseed = 5',
        'source = { format = "file", path = "p.txt" }\nmax_tokens = 8\ndescription = "x"\nname = "y"',
        'source = { format = "text", prompts = ["ab", "c"] }\nmax_tokens = 8\nwarmup_rounds = 0\nmin_speedup = 2\n',
    ]
    assert {write_scenario(tmp_path, text).digest for text in same} == {DIGEST_OF_AB_AND_C}


@pytest.mark.parametrize(
    "change",
    [
        "count = 2",
        "max_tokens = 9",
        "min_tokens = 1",
        "ignore_eos = false",
        'stop = ["a"]',
        "stop_token_ids = [4]",
        "sampling = { temperature = 0.5 }",
        "seed = 1",
        "concurrency = 2",
        'source = { format = "random", length = 5 }',
        'source = { format = "random", length = [4, 5] }',
    ],
)
def test_the_digest_tells_every_other_workload(tmp_path: Path, change: str) -> None:
    """Each key that defines the workload changes it."""
    key = change.partition(" ")[0]
    kept = [line for line in RANDOM.splitlines() if not line.startswith(key)]
    assert write_scenario(tmp_path, "\n".join([*kept, change])).digest != write_scenario(tmp_path, RANDOM).digest


def test_each_prompt_is_sampled_by_a_seed_of_its_own(tmp_path: Path) -> None:
    """Equal random numbers would make answers depend on one another; without a seed the engine has none."""
    text = RANDOM + "sampling = { temperature = 0.5, seed = 7 }\n"
    requests = write_scenario(tmp_path, text).realise(1000, 64, no_tokenizer).requests
    assert [request.sampling["seed"] for request in requests] == [7, 8, 9]
    unseeded = write_scenario(tmp_path, text.replace(", seed = 7", "")).realise(1000, 64, no_tokenizer).requests
    assert {tuple(request.sampling) for request in unseeded} == {("temperature",)}


def test_an_edited_prompt_file_is_another_workload(tmp_path: Path) -> None:
    """The digest is of the prompts, not of the file's name."""
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "ab"}))
    before = write_scenario(tmp_path, 'source = { format = "file", path = "p.jsonl" }\nmax_tokens = 8').digest
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "ac"}))
    assert load_scenario(tmp_path / "x.toml").digest != before


def test_keys_from_elsewhere_take_the_place_of_the_files(tmp_path: Path) -> None:
    """Another load leaves the file's concurrency, which belongs to the file's own load, out."""
    file = tmp_path / "x.toml"
    file.write_text('source = { format = "random", length = 3 }\ncount = 8\nmax_tokens = 9\nconcurrency = 4\n')
    assert load_scenario(file, {"count": 2, "concurrency": 1}).prompt_count == 2
    assert load_scenario(file, {"max_tokens": 5}).concurrency == 4
    assert load_scenario(file, {"load": {"kind": "closed"}}).concurrency == 1
    with pytest.raises(ConfigurationError, match=r"x\.toml with someone: count: expected a whole number"):
        load_scenario(file, {"count": "many"}, {"count": "someone"})


def test_each_value_of_a_swept_concurrency_is_the_scenario_with_that_value(tmp_path: Path) -> None:
    """By its digest too; `waves` has a low one ask fewer prompts, the first of them."""
    file = tmp_path / "x.toml"
    one = 'source = { format = "random", length = 3 }\ncount = 8\nmax_tokens = 9\nwaves = 2\nconcurrency = '
    file.write_text(f"{one}[1, 3, 8]\n")
    swept = load_sweep(file, {}, {})
    assert [choice.label for choice in swept] == ["x-c1", "x-c3", "x-c8"]
    assert [(each.concurrency, each.prompt_count) for each in swept.values()] == [(1, 2), (3, 6), (8, 8)]
    with pytest.raises(ConfigurationError, match=r"x\.toml: concurrency is swept, a gate each"):
        load_scenario(file)
    file.write_text(f"{one}3\n")
    assert [choice.concurrency for choice in load_sweep(file, {"concurrency": [1, 2]}, {})] == [1, 2]
    with pytest.raises(ConfigurationError, match=r"toml:\d+: concurrency: 4 stands twice: write each value once"):
        load_sweep(file, {"concurrency": [1, 4, 4]}, {})
    assert load_sweep(file, {}, {})[Choice(file)].digest == swept[Choice(file, 3)].digest
    requests = [each.realise(1000, 64, no_tokenizer).requests for each in swept.values()]
    assert requests[2][:6] == requests[1]
