"""What a model's own files say, with nothing loaded: its token ids, its ends, and whether a draft speaks its language.

Two models can share a tokenizer and still differ in the size of their vocabulary, which is padding and harmless; or
they can give one id two meanings. Where a model is not on this machine yet, nothing is compared, and that is said.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_specdec.engines.methods import DRAFT_MODEL, METHODS, Method, method_of
from pytest_specdec.engines.spec import IN_WORKERS, OTHER_VOCABULARY, EngineSpec
from pytest_specdec.errors import ConfigurationError, EngineError
from pytest_specdec.models import parse, where
from pytest_specdec.models.recipe import SmolLM2Recipe


@dataclass(frozen=True)
class ModelFacts:
    """What no endpoint tells. `vocabulary`: token ids that the tokenizer really has; `model_vocabulary`: logits.

    None: it is not said.
    """

    vocabulary: int | None = None
    model_vocabulary: int | None = None
    context: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = None

    @classmethod
    def of(cls, model: str) -> ModelFacts:
        """From a checkpoint's files."""
        config, generation = read(model, "config.json"), read(model, "generation_config.json")
        size, tokens = config.get("vocab_size"), _tokens(model)
        known = [number for number in (size, max(tokens) + 1 if tokens else None) if number]
        named = (generation.get("eos_token_id"), config.get("eos_token_id"), _eos_of_tokenizer(model, tokens))
        ends = {token for each in named for token in (each if isinstance(each, list) else [each]) if token is not None}
        return cls(
            vocabulary=min(known, default=None),
            model_vocabulary=size,
            context=config.get("max_position_embeddings"),
            eos_token_ids=tuple(sorted(ends)),
            dtype=config.get("dtype") or config.get("torch_dtype"),
        )


def _eos_of_tokenizer(model: str, tokens: Mapping[int, str]) -> int | None:
    told = read(model, "tokenizer_config.json").get("eos_token")
    text = told.get("content") if isinstance(told, dict) else told
    return next((token for token, written in tokens.items() if written == text), None)


def refuse_other_tokenizer(target: str, draft: str, asked: bool = False) -> str:
    """How every token of two checkpoints compares: "identical", "padded only", or "not compared", with the details.

    Raises EngineError, naming both, where an id has two meanings, unless another vocabulary was `asked` for: then it
    says how many tokens the two have in common.
    """
    ours, theirs = _tokens(target), _tokens(draft)
    if not ours or not theirs:
        return f"not compared: no tokenizer.json in {draft if ours else target}"
    other = [token for token in sorted(ours.keys() | theirs.keys()) if ours.get(token) != theirs.get(token)]
    if not other:
        sizes = [read(model, "config.json").get("vocab_size") for model in (target, draft)]
        return "identical" if sizes[0] == sizes[1] else f"padded only: {sizes[0]} and {sizes[1]} logits"
    if asked:
        here, there = set(ours.values()), set(theirs.values())
        return f"another vocabulary: {len(here & there)} tokens in common, of {len(here)} and {len(there)}"
    named = [repr(each[other[0]]) if other[0] in each else "missing" for each in (ours, theirs)]
    raise EngineError(_another_tokenizer(f"token {other[0]} is {named[0]} and {named[1]}", target, draft))


def _another_tokenizer(told: str, target: str, draft: str) -> str:
    return (
        f"the draft has another tokenizer than the target: {told} (target {target}, draft {draft}); "
        f"choose a draft of the target's own family, or ask for it: speculative_options={{{OTHER_VOCABULARY!r}: True}}"
    )


def refuse_wrong_models(spec: EngineSpec, cache: str | None) -> None:
    """Raise ConfigurationError for a path that does not exist, or a draft of another tokenizer; nothing is made.

    `cache`: where made models are kept. Of an engine on another machine nothing is known here.
    """
    models = [model for model in (spec.target, spec.draft) if model is not None]
    for model in models:
        parse(model)
        is_path = model.startswith(("/", "./", "../", "~"))
        if spec.backend in IN_WORKERS and spec.gateway is None and is_path and not Path(model).expanduser().exists():
            remedy = "name a folder, a hub id, or a reference such as constructed:tiny"
            raise ConfigurationError(f"{model}: no such model: {remedy}")
    if spec.draft is not None and spec.gateway is None and not spec.other_vocabulary:
        _refuse_other_tokenizer_unmade(spec.target, spec.draft, cache)


def method_of_draft(draft: str) -> Method:
    """The method that a draft is made for, by its recipe or its checkpoint; nothing is made."""
    recipe = parse(draft)
    if recipe is None:
        return method_of(read(draft, "config.json"), draft)
    return next((each for each in METHODS if each.name == recipe.kind), DRAFT_MODEL)


def is_unknown(draft: str) -> bool:
    """Whether neither a recipe nor a config.json nor its name tells what a draft is made for: it is not fetched yet."""
    return parse(draft) is None and method_of_draft(draft) is DRAFT_MODEL and not read(draft, "config.json")


@functools.cache
def _refuse_other_tokenizer_unmade(target: str, draft: str, cache: str | None) -> None:
    recipes = [parse(model) for model in (target, draft)]
    sizes = [None if recipe is None or isinstance(recipe, SmolLM2Recipe) else recipe.vocab for recipe in recipes]
    if None not in recipes and sizes[0] != sizes[1]:
        told = [f"{size} tokens" if size else "SmolLM2's" for size in sizes]
        raise ConfigurationError(_another_tokenizer(f"{told[0]} and {told[1]}", target, draft))
    try:
        refuse_other_tokenizer(where(target, cache), where(draft, cache))
    except EngineError as error:
        raise ConfigurationError(str(error)) from None


def read(model: str, name: str) -> dict[str, Any]:
    """A JSON file of the model's folder, or of its snapshot in the hub's cache; empty where there is none.

    Raises ConfigurationError for one that is cut off or no object.
    """
    file = _folder(model) / name
    try:
        told = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (RecursionError, ValueError) as error:
        raise ConfigurationError(f"{file} is cut off, or no JSON ({error}): fetch or write it again") from None
    if not isinstance(told, dict):
        raise ConfigurationError(f"{file} is no JSON object: fetch or write it again")
    return told


def hub_cache() -> Path:
    """Where Hugging Face's libraries keep what they fetched."""
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def _folder(model: str) -> Path:
    """Its own folder; of a hub id, where Hugging Face's libraries keep it once it was fetched."""
    repository = hub_cache() / f"models--{model.replace('/', '--')}"
    main = repository / "refs/main"
    cached = not Path(model).exists() and main.is_file()
    return repository / "snapshots" / main.read_text("utf-8").strip() if cached else Path(model)


def _tokens(model: str) -> dict[int, str]:
    whole = read(model, "tokenizer.json")
    vocabulary: Any = whole.get("model", {}).get("vocab") or {}
    pairs = vocabulary.items() if isinstance(vocabulary, dict) else ((row[0], at) for at, row in enumerate(vocabulary))
    added = {int(each["id"]): str(each["content"]) for each in whole.get("added_tokens", ())}
    return {int(token): str(text) for text, token in pairs} | added
