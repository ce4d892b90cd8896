"""What a model's own files say that no endpoint tells: how many token ids there are, which of them end an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ModelFacts:
    """`vocabulary`: token ids that the tokenizer really has; `model_vocabulary`: logits; None where it is not said."""

    vocabulary: int | None = None
    model_vocabulary: int | None = None
    context: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, folder: str, said: Mapping[str, Any]) -> ModelFacts:
        """From a checkpoint's files; what the mark or the settings `said` comes first."""
        config, settings = _json(folder, "config.json"), _json(folder, "generation_config.json")
        size = config.get("vocab_size")
        tokens = _tokens(_json(folder, "tokenizer.json"))
        known = [number for number in (size, tokens) if number]
        ends = [each.get("eos_token_id") for each in (settings, config)]
        return cls(
            vocabulary=said.get("vocabulary") or (min(known) if known else None),
            model_vocabulary=size,
            context=said.get("context") or config.get("max_position_embeddings"),
            eos_token_ids=tuple(said.get("eos_token_ids") or sorted(set(_flat(ends)))),
        )


def _json(folder: str, name: str) -> dict[str, Any]:
    file = Path(folder) / name
    return dict(json.loads(file.read_text("utf-8"))) if file.is_file() else {}


def _tokens(tokenizer: dict[str, Any]) -> int | None:
    """One more than the highest id, added tokens included."""
    vocabulary = tokenizer.get("model", {}).get("vocab") or ()
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
    ids += [added["id"] for added in tokenizer.get("added_tokens", ())]
    return max(ids) + 1 if ids else None


def _flat(values: list[Any]) -> list[int]:
    return [token for each in values for token in (each if isinstance(each, list) else [each]) if token is not None]
