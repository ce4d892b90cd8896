"""What an engine is to be: one frozen value that names everything on which its behaviour depends, and so is its key."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any

from pytest_specdec.engines.vllm import ADAPTER

NO_SPECULATION = "none"
LONGEST_LABEL = 100
OTHER_VOCABULARY = "use_heterogeneous_vocab"
SCHEDULE = "num_assistant_tokens_schedule"
IN_WORKERS = ("vllm", "transformers")
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """One engine configuration.

    `backend`: "vllm", "transformers", or a name that another plugin answers to. `target`, `draft`: a path, a hub id, or
    a model reference such as "constructed:tiny". `method`: "none" decodes with the target only; otherwise the engine's
    own name of the speculation method. `named_method`: how it was named, by an alias for example, or None where the
    draft's checkpoint told it. `gamma`: draft tokens a step (vLLM's `num_speculative_tokens`). `options`:
    handed to the engine as they are; one is ours: "adapter", a LoRA adapter of the target. `speculative_options`:
    handed to its speculation as they are. `environment`: variables that are set before the engine is imported.
    `python`: the interpreter of the worker; None is the one that runs pytest. `reference_python`: another one for the
    target-only engine that this one is compared with, so that two versions of an engine stand side by side. `gateway`:
    an execnet specification of where the worker runs, e.g. "ssh=host"; None is a child process. `server`: for the
    backend "server", the endpoint or the command that starts one. `reference`: the target-only engine that this one is
    compared with, where it is another than this one without speculation. `unjudged`: why its tokens are not judged and
    only its figures are wanted, as in a lossy mode; None where they are.
    """

    backend: str
    target: str
    method: str = NO_SPECULATION
    draft: str | None = None
    gamma: int | None = None
    dtype: str = "bfloat16"
    max_model_len: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    speculative_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    python: str | None = None
    reference_python: str | None = None
    gateway: str | None = None
    server: Mapping[str, Any] = field(default_factory=dict, hash=False)
    reference: EngineSpec | None = None
    unjudged: str | None = None
    named_method: str | None = field(default=None, compare=False)

    @property
    def speculates(self) -> bool:
        """Whether anything is drafted at all."""
        return self.method != NO_SPECULATION

    @property
    def adapter(self) -> str | None:
        """A LoRA adapter's folder or hub id; None where the target decodes as it is."""
        return self.options.get(ADAPTER)

    @property
    def other_vocabulary(self) -> bool:
        """Whether the draft may have another tokenizer: vLLM's own option, which the Transformers backend knows too."""
        return bool(self.speculative_options.get(OTHER_VOCABULARY))

    @property
    def most_drafted(self) -> int | None:
        """The most tokens of a draft; None where Transformers encodes its text anew, or lets γ grow."""
        grows = self.other_vocabulary or self.speculative_options.get(SCHEDULE, "constant") != "constant"
        return None if grows and self.backend == "transformers" else self.gamma

    def target_only(self) -> EngineSpec:
        """The reference: the engine named for it, or the same engine without speculation."""
        if self.reference is not None:
            return self.reference
        return replace(
            self,
            method=NO_SPECULATION,
            named_method=None,
            draft=None,
            gamma=None,
            speculative_options={},
            python=self.reference_python or self.python,
            reference_python=None,
            unjudged=None,
        )

    @property
    def parallelism(self) -> dict[str, Any]:
        """The options that say how many GPUs share the work."""
        return {name: self.options[name] for name in PARALLEL if name in self.options}

    @property
    def gpus(self) -> int:
        """How many GPUs it spans: the sizes of every kind of parallelism multiplied."""
        return math.prod(int(size or 1) for size in self.parallelism.values())

    @property
    def key(self) -> str:
        """Twelve hex digits over every field: two specifications with the same key are the same engine.

        What few engines have is left out where it is empty, so that the others keep the keys they had.
        """
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        said = {name: value for name, value in told.items() if value or name not in ("server", "reference", "unjudged")}
        canonical = json.dumps(said, sort_keys=True, default=_plain)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def config(self, resolve: Callable[[str], str]) -> dict[str, Any]:
        """What its process must know to load it; `resolve` turns a model reference into what the engine can open."""
        models = {"target": resolve(self.target), "draft": None if self.draft is None else resolve(self.draft)}
        plain = {name: getattr(self, name) for name in ("method", "gamma", "dtype", "max_model_len")}
        return {**models, **plain, "options": {**self.options}, "speculative_options": {**self.speculative_options}}

    @property
    def label(self) -> str:
        """Short and stable, for test ids and tables, e.g. "tiny-draft_model-g4"."""
        parts = [model_label(self.target), self.method if self.speculates else "target"]
        label = "-".join(parts + ([f"g{self.gamma}"] if self.gamma is not None else []))
        return label if len(label) <= LONGEST_LABEL else f"{label[:LONGEST_LABEL]}-{self.key[:6]}"


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, EngineSpec) else str(value)


def distinct_labels(specs: Sequence[EngineSpec]) -> list[str]:
    """A label for each, made longer where one alone would stand for several: by the draft, the backend, the key."""
    labels = [spec.label for spec in specs]
    longer: tuple[Callable[[EngineSpec], str], ...] = (
        lambda spec: model_label(spec.draft or ""),
        lambda spec: spec.backend,
        lambda spec: spec.key,
    )
    for more in longer:
        shared = {label for label in labels if labels.count(label) > 1}
        labels = [
            f"{label}-{more(spec)}" if label in shared else label for label, spec in zip(labels, specs, strict=True)
        ]
    return labels


def interpreters_here(specs: Sequence[EngineSpec]) -> list[tuple[str, str | None]]:
    """(backend, interpreter) of those that run on this machine; what another one has is not known here."""
    return [(spec.backend, spec.python) for spec in specs if spec.gateway is None]


def model_label(model: str) -> str:
    """The part of a model's name that people say: the last path component, a reference's parameters by their values."""
    plain, _, parameters = model.partition("?")
    name = PurePath(plain.rstrip("/")).name.removeprefix("constructed:").replace(":", "-")
    return "-".join([name, *(each.replace("=", "") for each in parameters.split("&") if each)])
