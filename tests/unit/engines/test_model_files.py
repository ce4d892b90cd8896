"""What a model's files say: how many ids there are and which of them end, and whether a draft has the same ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.engines.model_files import ModelFacts, refuse_other_tokenizer, refuse_wrong_models
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import ConfigurationError, EngineError

WORDS = {"a": 0, "b": 1}


def model(folder: Path, vocabulary: object, size: int = 2, added: dict[str, int] | None = None) -> str:
    folder.mkdir()
    extra = [{"content": text, "id": token} for text, token in (added or {}).items()]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": extra}))
    (folder / "config.json").write_text(json.dumps({"vocab_size": size}))
    return str(folder)


@pytest.mark.parametrize(
    ("vocabulary", "size", "told"),
    [
        (WORDS, 2, "identical"),
        ([["a", 0.0], ["b", -1.0]], 2, "identical"),
        (WORDS, 64, "padded only: 2 and 64 logits"),
    ],
)
def test_the_same_tokens_may_be_padded(tmp_path: Path, vocabulary: object, size: int, told: str) -> None:
    target, draft = model(tmp_path / "target", WORDS), model(tmp_path / "draft", vocabulary, size)
    assert refuse_other_tokenizer(target, draft) == told


@pytest.mark.parametrize(
    ("vocabulary", "added", "told"),
    [
        ({"a": 0, "c": 1}, None, "token 1 is 'b' and 'c'"),
        ({"a": 0}, None, "token 1 is 'b' and missing"),
        (WORDS, {"<s>": 2}, "token 2 is missing and '<s>'"),
    ],
)
def test_what_differs_first_is_named(
    tmp_path: Path, vocabulary: object, added: dict[str, int] | None, told: str
) -> None:
    target, draft = model(tmp_path / "target", WORDS), model(tmp_path / "draft", vocabulary, added=added)
    with pytest.raises(EngineError, match=rf"than the target: {told} \("):
        refuse_other_tokenizer(target, draft)


def test_an_id_with_two_meanings_is_refused_and_both_models_are_named(tmp_path: Path) -> None:
    target, draft = model(tmp_path / "target", WORDS), model(tmp_path / "draft", {"b": 0, "a": 1})
    with pytest.raises(EngineError, match=rf"token 0 is 'a' and 'b' \(target {target}, draft {draft}\)"):
        refuse_other_tokenizer(target, draft)


def test_another_vocabulary_that_is_asked_for_is_no_error(tmp_path: Path) -> None:
    """It is told how many tokens both have, whatever their ids; nothing is refused when tests are collected."""
    target = model(tmp_path / "target", WORDS, added={"c": 2})
    draft = model(tmp_path / "draft", {"b": 0, "a": 1}, added={"d": 2, "e": 3})
    assert refuse_other_tokenizer(target, draft, asked=True) == "another vocabulary: 2 tokens in common, of 3 and 4"
    options = {"use_heterogeneous_vocab": True}
    asked = EngineSpec(backend="vllm", target=target, draft=draft, speculative_options=options)
    refuse_wrong_models(asked, None)
    with pytest.raises(ConfigurationError, match="or ask for it: speculative_options="):
        refuse_wrong_models(replace(asked, speculative_options={}), None)


@pytest.mark.parametrize("text", ['{"model": {"vo', "3", "null", "[]", "[" * 100_000])
def test_a_file_that_is_cut_off_or_no_object_is_named(tmp_path: Path, text: str) -> None:
    """As after a download that broke; with what to do."""
    target, draft = model(tmp_path / "target", WORDS), model(tmp_path / "draft", WORDS)
    (tmp_path / "draft" / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"draft/tokenizer.json is .*no JSON.*: fetch or write it again"):
        refuse_other_tokenizer(target, draft)


def test_a_model_that_was_fetched_from_the_hub_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the snapshot that its main branch had then."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--draft"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("abc123")
    (repository / "snapshots").mkdir()
    model(repository / "snapshots/abc123", {"b": 0, "a": 1})
    with pytest.raises(EngineError, match="token 0 is 'a' and 'b'"):
        refuse_other_tokenizer(model(tmp_path / "target", WORDS), "org/draft")


def test_a_model_that_is_no_local_folder_is_not_compared(tmp_path: Path) -> None:
    target = model(tmp_path / "target", WORDS)
    assert refuse_other_tokenizer(target, "org/draft") == "not compared: no tokenizer.json in org/draft"


def test_what_no_endpoint_tells_is_read_from_the_files(tmp_path: Path) -> None:
    """Ids beyond the tokenizer's are padding; ends are those of each file, the tokenizer's own by its text."""
    folder = Path(model(tmp_path / "target", WORDS, 64, {"<s>": 2}))
    sizes = {"vocab_size": 64, "max_position_embeddings": 128, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1]}))
    assert ModelFacts.of(str(folder)) == ModelFacts(3, 64, 128, (1, 2))
    first, at = next(iter(WORDS.items()))
    for told in (first, {"content": first}):
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": told}))
        assert ModelFacts.of(str(folder)).eos_token_ids == tuple(sorted({1, 2, at}))
    assert ModelFacts.of("org/target") == ModelFacts()
