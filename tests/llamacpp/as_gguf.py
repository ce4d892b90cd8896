"""Writes a checkpoint of a plain Llama as the GGUF file that llama.cpp opens: same weights, in float32.

llama.cpp turns neighbouring elements of a query or key by one angle where Transformers turns elements half a head
apart, so the rows of their projections change places. Its tokenizer gives back the text of every id; prompts go as ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

LAYER_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
PARTS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(checkpoint: Path, file: Path) -> None:
    """Write the checkpoint's weights, sizes and tokens to the file."""
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    writer = gguf.GGUFWriter(file, "llama")
    _add_sizes(writer, config)
    _add_tokens(writer, checkpoint)
    for name, array in _tensors(checkpoint, config):
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokens(writer: gguf.GGUFWriter, checkpoint: Path) -> None:
    """Every token with the text that it reads as within an answer, and the ids of the special ones."""
    whole = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
    by_words = whole["model"]["type"] == "WordLevel"
    tokens = {token: f"▁{word}" if by_words else word for word, token in whole["model"]["vocab"].items()}
    special = {each["id"]: each["content"] for each in whole["added_tokens"]}
    tokens |= special
    writer.add_tokenizer_model("llama" if by_words else "gpt2")
    writer.add_tokenizer_pre("default" if by_words else "smollm")
    writer.add_token_list([tokens[token] for token in range(len(tokens))])
    writer.add_token_scores([0.0] * len(tokens))
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    writer.add_token_types([kinds[token in special] for token in range(len(tokens))])
    writer.add_add_bos_token(False)
    gguf.SpecialVocab(checkpoint, load_merges=not by_words, n_vocab=len(tokens)).add_to_gguf(writer, quiet=True)


def _tensors(checkpoint: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for file in sorted(checkpoint.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            array = tensor.float().numpy()
            turned = next((count for part, count in heads.items() if part in name), None)
            yield _renamed(name), array if turned is None else _by_neighbours(array, turned)


def _renamed(name: str) -> str:
    part = name.removesuffix(".weight")
    if part in PARTS:
        return f"{PARTS[part]}.weight"
    number, _, part = part.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{LAYER_PARTS[part]}.weight"


def _by_neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """The rows of each head, so that those that are turned together, half a head apart, are neighbours."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)
