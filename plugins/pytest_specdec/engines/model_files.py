"""What a model's own files say, with nothing loaded: its token ids, its ends, and whether a draft speaks its language.

Two models can share a tokenizer and still differ in the size of their vocabulary, which is padding and harmless; or
they can give one id two meanings, which no engine survives unharmed. Where a model is not a local folder with a
tokenizer.json, nothing is compared, and that is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_specdec.errors import EngineError


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
    def of(cls, model: str, said: Mapping[str, Any]) -> ModelFacts:
        """From a checkpoint's files; what the mark or the settings `said` comes first."""
        config, generation = _read(model, "config.json"), _read(model, "generation_config.json")
        size, tokens = config.get("vocab_size"), _tokens(model)
        known = [number for number in (size, max(tokens) + 1 if tokens else None) if number]
        ends = (generation.get("eos_token_id"), config.get("eos_token_id"))
        return cls(
            vocabulary=said.get("vocabulary") or (min(known) if known else None),
            model_vocabulary=size,
            context=said.get("context") or config.get("max_position_embeddings"),
            eos_token_ids=tuple(said.get("eos_token_ids") or sorted(set(_flat(ends)))),
            dtype=config.get("dtype") or config.get("torch_dtype"),
        )


@dataclass(frozen=True)
class Tokenizers:
    """How two tokenizers compare: "identical", "padded only", "not compared", or what differs first."""

    told: str
    fatal: bool = False


def compare_tokenizers(target: str, draft: str) -> Tokenizers:
    """Compare every token of two checkpoints' tokenizers, and the sizes of their vocabularies."""
    ours, theirs = _tokens(target), _tokens(draft)
    if not ours or not theirs:
        return Tokenizers(f"not compared: no tokenizer.json in {draft if ours else target}")
    for token in sorted(ours.keys() | theirs.keys()):
        if ours.get(token) != theirs.get(token):
            return Tokenizers(f"token {token} is {_name(ours, token)} and {_name(theirs, token)}", fatal=True)
    sizes = [_read(model, "config.json").get("vocab_size") for model in (target, draft)]
    return Tokenizers("identical" if sizes[0] == sizes[1] else f"padded only: {sizes[0]} and {sizes[1]} logits")


def refuse_other_tokenizer(target: str, draft: str) -> str:
    """What the comparison says. Raises EngineError, naming both, where an id has two meanings."""
    compared = compare_tokenizers(target, draft)
    if compared.fatal:
        raise EngineError(
            f"the draft has another tokenizer than the target: {compared.told} (target {target}, draft {draft}); "
            "choose a draft of the target's own family"
        )
    return compared.told


def _read(model: str, name: str) -> dict[str, Any]:
    """A file of the model's folder; empty where there is none."""
    file = Path(model) / name
    return dict(json.loads(file.read_text("utf-8"))) if file.is_file() else {}


def _tokens(model: str) -> dict[int, str]:
    """Every token by its id, added ones included; none where there is no tokenizer.json."""
    whole = _read(model, "tokenizer.json")
    vocabulary: Any = whole.get("model", {}).get("vocab") or {}
    pairs = vocabulary.items() if isinstance(vocabulary, dict) else ((row[0], at) for at, row in enumerate(vocabulary))
    added = {int(each["id"]): str(each["content"]) for each in whole.get("added_tokens", ())}
    return {int(token): str(text) for text, token in pairs} | added


def _name(tokens: Mapping[int, str], token: int) -> str:
    return repr(tokens[token]) if token in tokens else "missing"


def _flat(values: Iterable[Any]) -> list[int]:
    return [token for each in values for token in (each if isinstance(each, list) else [each]) if token is not None]
