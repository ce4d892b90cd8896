"""How the backends turn texts and conversations into ids: BOS stands at the begin once, whoever put it there.

On a tokenizer of a few words whose post-processor adds BOS and whose template writes it, as in many instruct models;
tests/unit/models/test_models_smollm2.py has the same of SmolLM2's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

hf = pytest.importorskip("transformers")
pytest.importorskip("jinja2", reason="chat templates need jinja2: pip install jinja2")

from pytest_specdec.engines.transformers import TransformersBackend, preload  # noqa: E402 - only where the engine is installed
from pytest_specdec.engines.vllm import VllmBackend  # noqa: E402

BOS, USER, ASSISTANT, HELLO, WORLD = 1, 3, 4, 5, 6
WORDS = {"<unk>": 0, "<s>": BOS, "</s>": 2, "[user]": USER, "[assistant]": ASSISTANT, "hello": HELLO, "world": WORLD}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %} [{{ message['role'] }}] {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %} [assistant]{% endif %}"
)
ASK = [{"role": "user", "content": "hello world"}]
GO_ON = [*ASK, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "world"}]


def tiny_tokenizer(template: str | None = TEMPLATE) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **special)


def transformers_backend(tokenizer: Any) -> Any:
    preload()
    target = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=64, eos_token_id=2), generation_config=None)
    target._get_candidate_generator = None
    config = {"method": "none", "gamma": None, "target": "m", "max_model_len": None, "options": {}}
    return TransformersBackend(config, "cpu", target, tokenizer)


def vllm_backend(tokenizer: Any) -> Any:
    engine = SimpleNamespace(model_config=SimpleNamespace(skip_tokenizer_init=tokenizer is None))
    llm = SimpleNamespace(llm_engine=engine, get_tokenizer=lambda: tokenizer)
    return VllmBackend(llm, {"method": "none", "target": "m"})


both = pytest.mark.parametrize("make", [transformers_backend, vllm_backend])
Make = Callable[[Any], Any]


@both
def test_a_text_has_bos_once(make: Make) -> None:
    """The tokenizer's own, or the one that a template has already written into the text."""
    backend = make(tiny_tokenizer())
    assert backend.encode(["hello world"]) == [[BOS, HELLO, WORLD]]
    assert backend.encode(["<s> [user] hello [assistant]"]) == [[BOS, USER, HELLO, ASSISTANT]]


def test_a_tokenizer_by_itself_would_double_it() -> None:
    """So the test above can fail."""
    assert tiny_tokenizer()("<s> hello")["input_ids"] == [BOS, BOS, HELLO]


@both
def test_a_conversation_has_bos_once_and_is_open_for_the_answer(make: Make) -> None:
    """The template writes BOS, and the tokenizer adds none."""
    ids = make(tiny_tokenizer()).encode_messages([ASK, GO_ON])
    first = [BOS, USER, HELLO, WORLD]
    assert ids == [[*first, ASSISTANT], [*first, ASSISTANT, HELLO, USER, WORLD, ASSISTANT]]
    assert all(type(token) is int for row in ids for token in row)


@both
def test_a_template_is_given_the_names_that_it_knows(make: Make) -> None:
    """As the scenario's chat_template_kwargs say; other prompts are another workload."""
    backend = make(tiny_tokenizer(TEMPLATE + "{% if thinking %} hello{% endif %}"))
    said = [BOS, USER, HELLO, WORLD, ASSISTANT]
    assert backend.encode_messages([ASK]) == [said]
    assert backend.encode_messages([ASK], {"thinking": True}) == [[*said, HELLO]]


@both
@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [(tiny_tokenizer(None), "m has no chat template: set chat_template = false"), (None, "no")],
)
def test_a_target_without_template_or_tokenizer(make: Make, tokenizer: Any, message: str) -> None:
    """The target is named, and the remedy."""
    with pytest.raises(ValueError, match=message):
        make(tokenizer).encode_messages([ASK])
