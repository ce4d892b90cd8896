"""A trivial tokenizer: token id 17 is the word "t17".

Words are split at white space and joined by a space, nothing is added, and pad, bos and eos are "<pad>", "<s>" and
"</s>". A word that is no token becomes "t3", so that text of any kind can be fed in; constructed models give it no
meaning anyway.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_specdec.models.recipe import SPECIAL_IDS

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
UNKNOWN = f"t{SPECIAL_IDS}"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write_tokenizer(folder: Path, vocab: int, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json for `vocab` tokens; the same bytes each time."""
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(vocab)), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(_settings(max_length), indent=2), encoding="utf-8")


def _tokenizer(vocab: int) -> dict[str, Any]:
    words = {word: token for token, word in enumerate(SPECIAL_TOKENS)}
    words |= {f"t{token}": token for token in range(SPECIAL_IDS, vocab)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, word) for token, word in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": UNKNOWN},
    }


def _added_token(token: int, word: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": word, **flags, "special": True}


def _settings(max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
