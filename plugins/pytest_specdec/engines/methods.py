"""Every way to speculate that vLLM and Transformers have: one table, and what follows from it for a draft and for γ.

What a draft's checkpoint is made for is told by its config.json, or else by its name. A name that the table lacks
passes through: it is a newer engine's, or another plugin's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Literal

OUR_GAMMA = 3
BY_BATCH_SIZE = "num_speculative_tokens_per_batch_size"
VERIFIED = "each drafted token is verified"
OLDEST = {"vllm": "0.20"}


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method, under the engine's own name.

    `engines`: from which version on, of those that this package knows. `drafter`: what drafts. `aliases`: other names,
    as patterns. `signs`: patterns of the architecture or model type in a draft's config.json, `keys`: keys that tell it
    there; `in_name`: what the name of a checkpoint without such signs has in it. `gamma`: draft tokens a step where
    none are named, unless the checkpoint or the options say a number under one of `gamma_keys`. `foretold`: whether
    what is drafted follows from the drafter alone. `output`: what keeps the output the target's own.
    """

    name: str
    drafter: Literal["text", "model", "head", "own head", "own layers", "class", "nothing"]
    engines: Mapping[str, str] = field(default_factory=lambda: OLDEST)
    aliases: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    in_name: str = ""
    gamma: int = OUR_GAMMA
    gamma_keys: tuple[str, ...] = ()
    foretold: bool = False
    output: str = VERIFIED

    @property
    def takes_draft(self) -> bool:
        """Whether the draft that is named is this method's; a target that drafts by itself takes a head of its own."""
        return self.drafter in ("model", "head", "class")

    def default_gamma(self, said: Mapping[str, Any]) -> int:
        """γ where none is named; `said`: the checkpoint's configuration, and options over it."""
        told = [source.get(key) for source in (said, _part(said, "text_config")) for key in self.gamma_keys]
        largest = max((entry[-1] for entry in said.get(BY_BATCH_SIZE) or ()), default=None)
        proposals = _part(said, "speculators_config").get("proposal_methods") or [{}]  # of a head made by speculators
        numbers = (largest, proposals[0].get("speculative_tokens"), *told)
        return next((each for each in numbers if isinstance(each, int) and each > 0), self.gamma)


def _part(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = said.get(name)
    return part if isinstance(part, Mapping) else {}


DRAFT_MODEL = Method(name="draft_model", drafter="model", engines={**OLDEST, "transformers": "4.40"}, foretold=True)
METHODS = (
    DRAFT_MODEL,
    Method(name="ngram", drafter="text"),
    Method(name="ngram_gpu", drafter="text"),
    Method(name="prompt_lookup", drafter="text", engines={"transformers": "4.40"}),
    Method(name="early_exit", drafter="own layers", engines={"transformers": "5.19"}),
    Method(name="suffix", drafter="text", gamma=24, gamma_keys=("suffix_decoding_max_tree_depth",)),
    Method(
        name="eagle",
        drafter="head",
        signs=("eagle", "Eagle[!3]*ForCausalLM", "EagleDeepSeekMTPModel"),
        in_name="eagle-",
        foretold=True,
    ),
    Method(
        name="eagle3",
        drafter="head",
        signs=("eagle3", "peagle", "Eagle3*", "*Eagle3", "Peagle*", "PEagle*"),
        in_name="eagle3",
        foretold=True,
    ),
    Method(
        name="dflash",
        drafter="head",
        signs=("dflash", "dflash2", "*DFlash*", "LiLiCorrDraftModel", "MuseGlimmerAssistantModel"),
        in_name="dflash",
        foretold=True,
    ),
    Method(
        name="dspark",
        drafter="own head",
        engines={"vllm": "0.26"},
        signs=("dspark", "*DSpark*"),
        in_name="dspark",
        gamma_keys=("block_size", "dspark_block_size"),
    ),
    Method(
        name="mtp",
        drafter="own head",
        aliases=("*_mtp",),
        signs=("*_mtp", "*MTP", "*MTPModel", "gemma4_assistant", "gemma4_unified_assistant"),
        gamma_keys=("n_predict", "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"),
        foretold=True,
    ),
    Method(
        name="medusa",
        drafter="head",
        signs=("medusa", "MedusaModel"),
        keys=("medusa_num_heads",),
        gamma_keys=("num_heads", "medusa_num_heads"),
        foretold=True,
    ),
    Method(name="mlp_speculator", drafter="head", signs=("mlp_speculator",), gamma_keys=("n_predict",)),
    Method(name="extract_hidden_states", drafter="nothing", gamma=1, output="nothing is drafted that counts"),
    Method(name="custom_class", drafter="class", engines={"vllm": "0.26"}),
)
OF_LLAMA_CPP = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
LOOKUPS = (*(each.name for each in METHODS if each.drafter == "text"), *OF_LLAMA_CPP)
"""Methods that look drafts up in the text, and may find none."""


def method_named(name: str) -> Method:
    """The method of this name or alias; one that the table lacks takes what it is given."""
    known = (each for each in METHODS if name == each.name or any(fnmatchcase(name, alias) for alias in each.aliases))
    return next(known, Method(name=name, drafter="text" if name in OF_LLAMA_CPP else "model", engines={}))


def method_of(config: Mapping[str, Any], name: str) -> Method:
    """The method that a checkpoint of this config.json and name is made for: a head's, or it is a draft model."""
    words = [*(config.get("architectures") or ()), config.get("model_type"), config.get("speculators_model_type")]
    told = [str(each) for each in words if each]
    by_sign = (
        each
        for each in METHODS
        if any(fnmatchcase(word, sign) for sign in each.signs for word in told) or any(map(config.get, each.keys))
    )
    last = PurePath(name.rstrip("/")).name.lower()
    by_name = (each for each in METHODS if each.in_name and each.in_name in last)
    return next(by_sign, None) or next(by_name, DRAFT_MODEL)
