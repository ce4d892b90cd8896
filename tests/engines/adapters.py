"""A LoRA adapter for a constructed target, as peft writes one: small random matrices over the queries and values.

It changes some of the target's choices and leaves most, so that a drafter of the target is right at times.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_specdec.models import resolve

RANK = 8
SCALE = 0.28
TENSORS = "adapter_model.safetensors"
ADAPTED = {"q_proj": "num_attention_heads", "v_proj": "num_key_value_heads"}


def write_adapter(target: str, folder: Path, **more: Any) -> str:
    """Write it into this folder, which need not be there; `more` goes into its settings. Returns the folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": [*ADAPTED], **more}
    (folder / "adapter_config.json").write_text(json.dumps(settings), "utf-8")
    save_file(_matrices(json.loads(Path(resolve(target), "config.json").read_text("utf-8"))), folder / TENSORS)
    return str(folder)


def _matrices(model: dict[str, Any]) -> dict[str, Any]:
    """By the names that peft gives them, the same each time."""
    import torch

    drawn, found = torch.Generator().manual_seed(0), {}
    for layer in range(model["num_hidden_layers"]):
        for name, heads in ADAPTED.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            sizes = {"A": (RANK, model["hidden_size"]), "B": (model[heads] * model["head_dim"], RANK)}
            for part, (rows, columns) in sizes.items():
                found[f"{place}.lora_{part}.weight"] = torch.randn((rows, columns), generator=drawn) / columns**0.5
                found[f"{place}.lora_{part}.weight"] *= SCALE
    return found
