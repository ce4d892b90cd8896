"""Before a drafter is loaded: does it speak the target's language, token by token?

Two models can share a tokenizer and still differ in the size of their vocabulary, which is padding and harmless; or
they can give one id two meanings, which no engine survives unharmed. Only files are read, so this costs no model. Where
a model is not a local folder with a tokenizer.json, nothing is compared, and that is said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_specdec.errors import EngineError


@dataclass(frozen=True)
class Tokenizers:
    """How two tokenizers compare: "identical", "padded only", "not compared", or what differs first."""

    told: str
    fatal: bool = False


def compare_tokenizers(target: str, draft: str) -> Tokenizers:
    """Compare every token of two checkpoints' tokenizers, and the sizes of their vocabularies."""
    ours, theirs = _tokens(Path(target)), _tokens(Path(draft))
    if ours is None or theirs is None:
        return Tokenizers(f"not compared: no tokenizer.json in {target if ours is None else draft}")
    for token in sorted(ours.keys() | theirs.keys()):
        if ours.get(token) != theirs.get(token):
            return Tokenizers(f"token {token} is {_named(ours, token)} and {_named(theirs, token)}", fatal=True)
    sizes = _vocabulary(Path(target)), _vocabulary(Path(draft))
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


def _tokens(model: Path) -> dict[int, str] | None:
    """Every token by its id, added ones included; None where there is no file to read."""
    file = model / "tokenizer.json"
    if not file.is_file():
        return None
    whole = json.loads(file.read_text("utf-8"))
    vocabulary: Any = whole["model"]["vocab"]
    pairs = vocabulary.items() if isinstance(vocabulary, dict) else ((row[0], at) for at, row in enumerate(vocabulary))
    return {int(token): text for text, token in pairs} | {
        int(added["id"]): added["content"] for added in whole.get("added_tokens", ())
    }


def _vocabulary(model: Path) -> int | None:
    file = model / "config.json"
    size = json.loads(file.read_text("utf-8")).get("vocab_size") if file.is_file() else None
    return None if size is None else int(size)


def _named(tokens: dict[int, str], token: int) -> str:
    return repr(tokens[token]) if token in tokens else "missing"
