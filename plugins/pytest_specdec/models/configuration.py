"""config.json and generation_config.json of a constructed model, as vLLM and Transformers read them."""

from __future__ import annotations

from typing import Any

from pytest_specdec.models.recipe import Constructed

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
NORM_EPS = {"llama": 1e-5, "qwen3": 1e-6}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def configuration(recipe: Constructed) -> dict[str, Any]:
    """The model's config.json."""
    shape = recipe.shape
    return {
        "architectures": [ARCHITECTURES[shape.architecture]],
        "model_type": shape.architecture,
        "vocab_size": recipe.rows,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPS[shape.architecture],
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": recipe.max_position_embeddings,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": recipe.dtype,
        **SPECIAL,
    }


def generation_configuration() -> dict[str, Any]:
    """The model's generation_config.json: greedy, with the special ids."""
    return {"do_sample": False, **SPECIAL}
