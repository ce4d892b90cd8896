"""Every mistake in a scenario file is told with file, line, key and remedy, and all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.workloads.conftest import RANDOM, refusal_of

from pytest_specdec.workloads import mistakes
from pytest_specdec.workloads.scenario import Scenario, load_scenario

KEYS = ", ".join(Scenario.model_fields)
FORMATS = (
    'it is one of "random", "text", "ids", "file", "jsonl", "json", "csv", "parquet", "spec_bench", "mt_bench",'
    ' "speed_bench", "sharegpt", "vllm_custom", "azure", "burstgpt", "mooncake", "hugging_face",'
    ' for example source = { format = "random", length = 16 }'
)
KINDS = 'it is one of "offline", "closed", "open", for example load = { kind = "closed" }'
LENGTH = "expected tokens per prompt, a whole number of 1 or more, or [low, high] to draw it uniformly"
TEXTS = "expected a list of one or more texts, none of them empty"
TEXTS_EXAMPLE = 'write for example prompts = ["Once upon a time", "The capital of France is"]'
IDS = "expected a list of one or more prompts, each a list of one or more token ids of 0 or more"
IDS_EXAMPLE = "write for example prompts = [[5, 17, 9], [8, 8, 4, 12]]"


def error_of(text: str | bytes) -> str:
    """The whole message for a file x.toml with this text."""
    Path("x.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return refusal_of(load_scenario, "x.toml")


def test_no_such_file() -> None:
    """The path is told as it was given."""
    told = refusal_of(load_scenario, "scenarios/none.toml")
    assert told == "scenarios/none.toml: no such file: check the path to the scenario"


def test_a_folder_is_not_a_scenario() -> None:
    """Nor is it a traceback."""
    Path("x.toml").mkdir()
    told = refusal_of(load_scenario, "x.toml")
    assert told == "x.toml: cannot be read (Is a directory): name a readable .toml file"


@pytest.mark.parametrize("text", ["", "\n# only a comment\n", "\ufeff"])
def test_an_empty_file(text: str) -> None:
    """The smallest scenario is shown, and it is one."""
    message = error_of(text)
    smallest = 'source = { format = "random", length = 16 }\ncount = 8\nmax_tokens = 64'
    assert message == f"x.toml:1: the file is empty: a scenario needs at least\n{smallest}"
    Path("x.toml").write_text(smallest)
    assert load_scenario("x.toml").prompt_count == 8


def test_not_utf8() -> None:
    """The byte is told."""
    assert error_of(b'name = "\xff"') == "x.toml: not UTF-8 at byte 8: save the file as UTF-8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nname = short\n", "x.toml:2:8: not valid TOML: Invalid value"),
        ("name = 'a'\n\nname = 'b'\n", "x.toml:3:11: not valid TOML: Cannot overwrite a value"),
        ("name = 'a'\nstop = [1", "x.toml:2:1: not valid TOML: Unclosed array"),
    ],
)
def test_broken_toml(text: str, message: str) -> None:
    """Line and column are told, also where the fault is the end of the file."""
    assert error_of(text) == f"{message}: text stands in quotes, one key = value a line"


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("max_token", "did you mean 'max_tokens'? "),
        ("Seed", "did you mean 'seed'? "),
        ("zzz", ""),
        ("path", ""),
        ("_path", ""),
    ],
)
def test_an_unknown_key(key: str, advice: str) -> None:
    """The nearest known key is suggested, if one is near, and all are listed."""
    assert error_of(f"{RANDOM}{key} = 1") == f"x.toml:4: unknown key '{key}': {advice}the keys of a scenario are {KEYS}"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            '[source]\nformat = "random"\nlength = 4\nlenght = 4',
            "x.toml:6: unknown key 'source.lenght': did you mean 'length'?"
            ' the keys of source with format = "random" are format, length',
        ),
        (
            '[source]\nformat = "text"\nprompts = ["a"]\n\nrounds = 4',
            "x.toml:7: unknown key 'source.rounds': 'rounds' belongs at the top level, above every [table];"
            ' the keys of source with format = "text" are format, prompts',
        ),
        (
            'load = { kind = "closed", rate = 4 }\n[source]\nformat = "ids"\nprompts = [[1]]',
            "x.toml:3: unknown key 'load.rate': the keys of load with kind = \"closed\" are kind",
        ),
    ],
)
def test_an_unknown_key_in_a_table(table: str, message: str) -> None:
    """The keys of that very table are listed; a key that TOML took into the table by mistake is sent back up."""
    assert error_of(f"count = 1\nmax_tokens = 8\n{table}") == message


def test_keys_that_are_missing() -> None:
    """At the top level, in a table, and where only a random source makes it one."""
    assert error_of("rounds = 3").splitlines() == [
        "x.toml:1: max_tokens is missing: add for example max_tokens = 64",
        'x.toml:1: source is missing: add for example source = { format = "random", length = 16 }',
    ]
    assert error_of('max_tokens = 1\n\n[source]\nformat = "text"') == (
        "x.toml:3: source.prompts is missing: add for example "
        'prompts = ["Once upon a time", "The capital of France is"]'
    )
    assert error_of(RANDOM.replace("count = 3", "")) == (
        "x.toml:1: count: missing, and random prompts have no number of their own: add for example count = 8"
    )
    assert error_of(RANDOM + "load = {}") == f"x.toml:4: load.kind is missing: {KINDS}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("count = 0", "0"),
        ("max_tokens = 8.0", "8.0"),
        ('min_tokens = "1"', '"1"'),
        ("ignore_eos = 1", "1"),
        ("seed = -1", "-1"),
        ("rounds = true", "true"),
        ("warmup_rounds = []", "[]"),
        ("concurrency = -2", "-2"),
        ("description = 3", "3"),
        ('stop = "x"', '"x"'),
        ('stop = ["x", ""]', '"" as item 2'),
        ("stop_token_ids = [1, 'x']", '"x" as item 2'),
        ("sampling = 1", "1"),
        ("min_speedup = 0", "0"),
        ("max_energy_ratio = 0", "0"),
        ("min_speedup = inf", "Infinity"),
        ("min_acceptance_rate = 60", "60"),
        ("min_mean_accepted_length = true", "true"),
        ("max_tie_rate = -0.1", "-0.1"),
        ('name = "a b"', '"a b"'),
        ('source = "random"', '"random"'),
        ("load = 4", "4"),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_range(line: str, found: str) -> None:
    """In the words of its key; the line is the key's own, although its text stands in a comment and a string before."""
    key = line.partition(" ")[0]
    kept = [each for each in RANDOM.splitlines() if not each.startswith(f"{key} ")]
    decoy = f"# {line}\n" + ('description = """\n' + line.replace('"', "'") + '\n"""\n' if key != "description" else "")
    text = decoy + "\n".join([*kept, line])
    field = Scenario.model_fields[key]
    message = f"expected {field.description}, found {found}: write for example {(field.examples or ())[0]}"
    assert error_of(text) == f"x.toml:{text.count(chr(10)) + 1}: {key}: {message}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{ length = 4 }", f"source.format is missing: {FORMATS}"),
        ('{ format = "txt" }', f"source.format \"txt\" is unknown: did you mean 'text'? {FORMATS}"),
        ("{ format = 3 }", f"source.format 3 is unknown: {FORMATS}"),
        ('{ format = "random", length = 0 }', f"source.length: {LENGTH}, found 0: write for example length = 16"),
        ('{ format = "random", length = [4] }', f"source.length: {LENGTH}, found [4]: write for example length = 16"),
        (
            '{ format = "random", length = [1, 2, 3] }',
            f"source.length: {LENGTH}, found [1, 2, 3]: write for example length = 16",
        ),
        (
            '{ format = "random", length = [9, 3] }',
            "source.length: the range [9, 3] is empty: write the smaller length first, [3, 9]",
        ),
        ('{ format = "text", prompts = [] }', f"source.prompts: {TEXTS}, found []: {TEXTS_EXAMPLE}"),
        ('{ format = "text", prompts = ["a", ""] }', f'source.prompts: {TEXTS}, found "" as item 2: {TEXTS_EXAMPLE}'),
        ('{ format = "ids", prompts = [[1], []] }', f"source.prompts: {IDS}, found [] as item 2: {IDS_EXAMPLE}"),
        (
            '{ format = "ids", prompts = [[1], [2, -1]] }',
            f"source.prompts: {IDS}, found -1 as item 2 of item 2: {IDS_EXAMPLE}",
        ),
    ],
)
def test_a_faulty_source(source: str, message: str) -> None:
    """The format, the length and the prompts."""
    assert error_of(f"count = 1\nmax_tokens = 8\nsource = {source}") == f"x.toml:3: {message}"


def test_a_faulty_item_has_its_own_line() -> None:
    """A prompt among many is pointed at."""
    text = 'max_tokens = 8\n[source]\nformat = "text"\nprompts = [\n  """a\nb""",\n  3,\n]\n'
    assert error_of(text) == f"x.toml:7: source.prompts: {TEXTS}, found 3 as item 2: {TEXTS_EXAMPLE}"


def test_an_unknown_format_has_the_line_of_the_word() -> None:
    """Not that of the table's head."""
    text = 'max_tokens = 8\n[source]\n# format = "text"\nformat = "rnd"\n'
    assert error_of(text) == f"x.toml:4: source.format \"rnd\" is unknown: did you mean 'random'? {FORMATS}"


def test_a_long_value_is_cut() -> None:
    """An error fits a screen."""
    assert error_of(f'{RANDOM}seed = "{"x" * 99}"').startswith(
        f'x.toml:4: seed: expected a whole number, 0 or more, found "{"x" * 56}...:'
    )


def test_an_unknown_kind_of_load() -> None:
    """The kinds are listed, and the nearest is suggested."""
    assert error_of(RANDOM + 'load = { kind = "opn" }') == (
        f"x.toml:4: load.kind \"opn\" is unknown: did you mean 'open'? {KINDS}"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("min_tokens = 9", "min_tokens: 9 exceeds max_tokens = 8: lower it, or raise max_tokens"),
        (
            "chat_template_kwargs = { tokenize = false }",
            "chat_template_kwargs: 'tokenize' is not for the template to read: remove it",
        ),
        (
            "detects = { total_variation = 0.1 }",
            "detects: total_variation: without a temperature ask for near_ties or lossy",
        ),
        ("concurrency = 4", "concurrency: 4 cannot be reached with 3 prompts: lower it, or raise count"),
        ("concurrency = [1, 4]", "concurrency: 4 cannot be reached with 3 prompts: lower it, or raise count"),
        (
            "sampling = { max_new_tokens = 4 }",
            "sampling.max_new_tokens: not a matter of sampling: use the scenario's key 'max_tokens'",
        ),
        (
            "sampling = { when = [1979-05-27] }",
            "sampling.when: no engine samples by [datetime.date(1979, 5, 27)]:"
            " write numbers, texts, true or false, and lists of them",
        ),
    ],
)
def test_values_that_do_not_go_together(line: str, message: str) -> None:
    """Each is a proper value alone."""
    assert error_of(RANDOM + line) == f"x.toml:4: {message}"


def test_more_prompts_asked_for_than_there_are() -> None:
    """An error, never fewer prompts than the record says."""
    assert error_of('source = { format = "text", prompts = ["a", "b"] }\nmax_tokens = 8\ncount = 3') == (
        "x.toml:3: count: 3 prompts asked for, the source has 2: lower count to 2 or add prompts"
    )


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("p.txt", None, "", "no such file {path}: the path is relative to the folder of the scenario file"),
        (
            "p.csv",
            b"a",
            "",
            "{path} is neither .txt (one prompt a line) nor .jsonl (one object a line): name one of these",
        ),
        ("p.txt", b"\n \n", "", "{path} has no prompts: write one a line"),
        ("p.txt", b"a\xff", "", "{path}:1 is not UTF-8 at byte 1 of the line: save the file as UTF-8"),
        ("p.txt", b"a", "q", "a .txt file has no column 'q': remove `column`, or name a .jsonl file"),
        (
            "p.jsonl",
            b'{"prompt": "a"}\n\n{"prompt"\n[1]\n{"prompt": ""}\n{"q": 1, "r": 2}',
            "",
            "{path}:3: not JSON (Expecting ':' delimiter): write one object a line;"
            " {path}:4: not an object: write its values under names;"
            " {path}:5: column 'prompt' is not a text of one character or more: give it one;"
            " {path}:6: no column 'prompt': its columns are 'q', 'r'; name one with `column`",
        ),
        (
            "p.jsonl",
            b"1\n" * 7,
            "",
            "; ".join(f"{{path}}:{n}: not an object: write its values under names" for n in range(1, 6))
            + "; and 2 more lines",
        ),
    ],
)
def test_a_faulty_prompt_file(name: str, content: bytes | None, column: str, message: str) -> None:
    """The scenario's line is told, and the prompt file's own lines."""
    if content is not None:
        Path(name).write_bytes(content)
    text = f'max_tokens = 8\n[source]\nformat = "file"\npath = "{name}"\n' + (f'column = "{column}"' if column else "")
    assert error_of(text) == f"x.toml:4: source.path: {message.format(path=name)}"


def test_a_fault_that_the_verdict_at_a_temperature_does_not_tell() -> None:
    """Shares of wrong tokens are a matter of greedy decoding."""
    assert error_of(RANDOM + "sampling = { temperature = 0.8 }\ndetects = { lossy = 0.1 }") == (
        "x.toml:5: detects: lossy: at a temperature ask for total_variation"
    )


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    """Types, unknown keys, tables and values that do not go together."""
    text = """\
max_tokens = 4
min_tokens = 5
seeds = 1
[source]
format = "text"
prompts = ["a", 3]
colum = "x"
"""
    assert error_of(text).splitlines() == [
        "x.toml:2: min_tokens: 5 exceeds max_tokens = 4: lower it, or raise max_tokens",
        f"x.toml:3: unknown key 'seeds': did you mean 'seed'? the keys of a scenario are {KEYS}",
        f"x.toml:6: source.prompts: {TEXTS}, found 3 as item 2: {TEXTS_EXAMPLE}",
        "x.toml:7: unknown key 'source.colum': the keys of source with format = \"text\" are format, prompts",
    ]


def test_a_flood_of_mistakes_is_cut() -> None:
    """Twenty are told, the others counted."""
    lines = error_of('max_tokens = 8\nsource = { format = "text", prompts = [\n' + "1,\n" * 25 + "] }").splitlines()
    assert len(lines) == 21
    assert lines[-1] == "x.toml: and 5 more mistakes"


def test_a_faulty_list_hides_no_mistake_above_it() -> None:
    """They are told in the order of the file, whatever is looked at first."""
    text = 'maxtokens = 8\nmax_tokens = "x"\nsource = { format = "text", prompts = [\n' + "1,\n" * 25 + "] }"
    lines = error_of(text).splitlines()
    assert [line.partition(": ")[0] for line in lines[:3]] == ["x.toml:1", "x.toml:2", "x.toml:4"]
    assert lines[-1] == "x.toml: and 7 more mistakes"


def test_a_flood_of_mistakes_is_told_by_few_looks_at_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find lines the beginning of the file is parsed for all that are told together, the whole of it once."""
    text = 'max_tokens = 8\nsource = { format = "text", prompts = [\n' + "1,\n" * 2000 + "] }"
    parsed: list[int] = []
    loads = mistakes.tomllib.loads
    monkeypatch.setattr(mistakes.tomllib, "loads", lambda text: parsed.append(len(text)) or loads(text))
    assert error_of(text).splitlines()[-1] == "x.toml: and 1980 more mistakes"
    assert parsed.count(len(text)) == 2  # once when it was read
    assert len(parsed) < 80


def encode(texts: Sequence[str]) -> list[list[int]]:
    """A tokenizer that knows the letters a to i, and leaves blanks out."""
    return [[ord(letter) - ord("a") for letter in text.replace(" ", "")] for text in texts]


def error_for(text: str, vocabulary: int = 9, context: int = 10) -> str:
    """The whole message for a target that cannot take the workload."""
    Path("x.toml").write_text(text)
    scenario = load_scenario("x.toml")
    return refusal_of(scenario.realise, vocabulary, context, encode)


def test_prompts_that_the_target_cannot_take() -> None:
    """Each is named by its number; the good ones, here the first and one that fills the context, are not."""
    text = 'source = { format = "text", prompts = ["a", " ", "abcd", "abc", "azy"] }\nmax_tokens = 7'
    assert error_for(text).splitlines() == [
        "prompt 2 of x.toml: is empty, so there is nothing to continue: give it at least one token",
        "prompt 3 of x.toml: 4 + 7 tokens exceed the engine's context of 10: shorten it or raise max_model_len",
        "prompt 5 of x.toml: token id 24, 25 outside of the vocabulary of 9 ids (0 to 8):"
        " write ids of this target's tokenizer",
    ]


def test_random_prompts_that_do_not_fit() -> None:
    """Also the drawn ones are checked."""
    assert error_for('source = { format = "random", length = 700 }\nmax_tokens = 64\ncount = 1', 1000, 512) == (
        "prompt 1 of x.toml: 700 + 64 tokens exceed the engine's context of 512: shorten it or raise max_model_len"
    )


def test_a_stop_token_that_the_target_does_not_have() -> None:
    """It would never stop there."""
    assert error_for('source = { format = "ids", prompts = [[1]] }\nmax_tokens = 2\nstop_token_ids = [8, 9]') == (
        "stop_token_ids of x.toml: token id 9 outside of the vocabulary of 9 ids (0 to 8):"
        " it would never stop there, so remove it"
    )


def test_a_vocabulary_too_small_to_draw_from() -> None:
    """Three ids are never drawn, so there must be a fourth."""
    assert error_for(RANDOM, vocabulary=3, context=100) == (
        'random prompts need a vocabulary of more than 3 ids, this target has 3: use source = { format = "ids", … }'
    )


def test_a_flood_of_faulty_prompts_is_cut() -> None:
    """Twenty are told, the others counted."""
    lines = error_for('source = { format = "random", length = 9 }\nmax_tokens = 2\ncount = 30').splitlines()
    assert (len(lines), lines[-1]) == (21, "and 10 more")
