"""Transformers in a worker: greedy decoding of the target alone, or assisted by a drafter or by prompt lookup.

This file is sent to the worker as source text, possibly to another interpreter in which nothing but torch and
Transformers is installed: it imports nothing of this package, and settles every difference between 4.40 and 5.x.

Assisted decoding takes one sequence at a time, so requests are decoded one after another. The model's own generation
settings are put aside, only its EOS ids are kept. γ is exact: every step drafts γ tokens, fewer only where the drafter
reaches an end, where the length limit is near, or where prompt lookup finds a shorter continuation.

Steps are counted at the candidate generator: what it proposed, and how many of these Transformers says it accepted,
which counts the last token of every block as the target's own, also where it was a drafted end.
"""

from __future__ import annotations

import gc
import inspect
import json
import re
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

EARLY_EXIT = "assistant_early_exit"
OTHER_VOCABULARY = "use_heterogeneous_vocab"  # vLLM's name for what Transformers does where it has both tokenizers
LOADING_SHARED_WITH_DRAFT = ("attn_implementation", "cache_dir", "local_files_only", "token", "trust_remote_code")
LOADING_SHARED_WITH_TOKENIZER = ("cache_dir", "local_files_only", "revision", "token", "trust_remote_code")
SET_BY_REQUEST = {
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_length": "min_tokens",
    "min_new_tokens": "min_tokens",
    "eos_token_id": "ignore_eos and stop_token_ids",
    "stop_strings": "stop",
    "num_assistant_tokens": "gamma",
    "prompt_lookup_num_tokens": "gamma",
}
SET_HERE = ("num_beams", "num_return_sequences", "return_dict_in_generate", "use_cache", "pad_token_id", "is_assistant")
REFUSALS = (
    r"not supported by `generate`",
    r"assisted generate is (not|only) supported",
    r"assisted generation is not supported",
    r"It is not supported with prompt lookup decoding",
    r"Transformers takes no stop text here",
    r"sampling: Transformers has no '",
)
SPELLED_FOR_STOPS = "abcdef"  # StopStringCriteria writes it before each token, to see what that one adds to a text
ADAPTER = "adapter"
LORA = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
BEYOND_LORA = ("rank_pattern", "alpha_pattern", "fan_in_fan_out", "use_dora", "modules_to_save")
MERGE_IT = "which the backend does not merge: merge it by peft's merge_and_unload, and name the result as the target"
OF_OTHERS = ("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "structured_outputs")


class Answer:
    """One request while it is decoded: what `generate` takes, and as its streamer what came of it and when."""

    def __init__(self, request: Mapping[str, Any], stop_ids: Iterable[int], arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments
        self.token_ids: list[int] = []
        self.came: list[list[float]] = []  # [seconds since the run began, tokens], the prompt first
        self.started_s: float | None = None
        self._request, self._stop_ids, self._began = request, frozenset(stop_ids), 0.0

    def decode(self, target: Any, began: float) -> None:
        """A request's seed restarts torch's own generator, since `generate` takes none."""
        if (seed := self._request["sampling"].get("seed")) is not None:
            torch.manual_seed(seed)
        self.came, self._began, started_s = [], began, time.perf_counter() - began
        output = target.generate(**self.arguments, streamer=self)
        self.token_ids, self.started_s = output[0, len(self._request["prompt_ids"]) :].tolist(), started_s

    def put(self, value: Any) -> None:
        """Take one committed block of token ids."""
        self.came.append([time.perf_counter() - self._began, value.numel()])

    def end(self) -> None:
        """Nothing is held back, so nothing remains to be done."""

    def wire(self, tokenizer: Any) -> dict[str, Any]:
        """Plain values, as they leave the worker. Raises RuntimeError where arrivals do not add up."""
        chunks, stops = self.came[1:], self._request["stop"]
        arrived = sum(int(tokens) for _, tokens in chunks)
        if arrived != len(self.token_ids):
            raise RuntimeError(f"{arrived} tokens arrived, but {len(self.token_ids)} were returned")
        text = self._text(tokenizer) if stops else ""
        return {
            "prompt_ids": list(self._request["prompt_ids"]),
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason(text),
            "chunks": chunks,
            "text": up_to(text, stops) if stops else None,
            "started_s": self.started_s,
        }

    @property
    def _ends(self) -> bool:
        return bool(self.token_ids) and self.token_ids[-1] in self._stop_ids

    def finish_reason(self, text: str) -> str | None:
        """Why decoding ended: "stop" by a token or text, "length" at the limit, None where neither explains it."""
        if self._ends or any(stop in text for stop in self._request["stop"]):
            return "stop"
        return "length" if len(self.token_ids) >= self._request["max_tokens"] else None

    def _text(self, tokenizer: Any) -> str:
        ids = self.token_ids[: len(self.token_ids) - self._ends]
        told = text_after(tokenizer, list(self._request["prompt_ids"]), ids)
        return str(tokenizer.decode(ids, skip_special_tokens=True)) if told is None else told


def counters(drafts: Sequence[tuple[int, int]], gamma: int) -> dict[str, Any]:
    """What a run's drafts count, of each the tokens proposed and how many of the first of them were accepted."""
    longest = max((proposed for proposed, _ in drafts), default=0)
    return {
        "drafts": len(drafts),
        "draft_tokens": sum(proposed for proposed, _ in drafts),
        "accepted_tokens": sum(accepted for _, accepted in drafts),
        "accepted_per_position": [sum(at < each[1] for each in drafts) for at in range(max(longest, gamma))],
        "drafted_per_position": [sum(at < each[0] for each in drafts) for at in range(longest)],
        "tried_per_position": [sum(each[1] >= at < each[0] for each in drafts) for at in range(longest)],
    }


torch: Any = None  # both are there once `preload` has run
transformers: Any = None


def preload() -> None:
    """Import what loading and decoding need, for all of this file; touches no device."""
    globals().update(torch=import_module("torch"), transformers=import_module("transformers"))
    for name in ("AutoModelForCausalLM", "AutoTokenizer", "GenerationConfig"):
        getattr(transformers, name)


def load(config: Mapping[str, Any]) -> TransformersBackend:
    """Load target, tokenizer and drafter.

    `config`: target, draft, method, gamma, dtype, max_model_len, options, speculative_options. `options` go to
    `from_pretrained`, all but "device" ("cpu", "cuda", "cuda:1", …; a GPU where there is one) and "adapter" (a folder
    or hub id of a LoRA adapter). `speculative_options` are fields of `GenerationConfig`. Raises ValueError where these
    contradict each other, a model or an adapter cannot be loaded, or target and drafter do not share their tokens.
    """
    preload()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    check_speculation(config)
    options = dict(config["options"])
    device = options.pop("device", None) or ("cuda" if torch.cuda.is_available() else "cpu")
    adapter = options.pop(ADAPTER, None)
    target = load_model("target", config["target"], config["dtype"], device, options)
    if adapter is not None:
        merge_adapter(target, adapter)
    tokenizer = load_tokenizer(config["target"], options)
    if config["draft"] is None:
        return TransformersBackend(config, device, target, tokenizer)
    shared = {name: options[name] for name in LOADING_SHARED_WITH_DRAFT if name in options}
    draft = load_model("draft", config["draft"], config["dtype"], device, shared)
    backend = TransformersBackend(config, device, target, tokenizer, draft)
    theirs = load_tokenizer(config["draft"], shared)
    if not config["speculative_options"].get(OTHER_VOCABULARY):
        check_same_tokens(config, (target, tokenizer), (draft, theirs))
    elif tokenizer is None or theirs is None:
        models = f"target {config['target']!r} and draft {config['draft']!r}"
        raise ValueError(f"{OTHER_VOCABULARY}: {models} need a tokenizer each")
    else:
        backend.tokenizers = {"tokenizer": tokenizer, "assistant_tokenizer": theirs}
    return backend


def speculative_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The speculative options that are fields of `GenerationConfig`."""
    return {name: value for name, value in config["speculative_options"].items() if name != OTHER_VOCABULARY}


def check_speculation(config: Mapping[str, Any]) -> None:
    """Raise ValueError where method and speculative_options do not belong together."""
    method = config["method"]
    if (method == "early_exit") != bool(speculative_fields(config).get(EARLY_EXIT)):
        raise ValueError(f'{EARLY_EXIT}: the method "early_exit" needs the number of layers that draft, and no other')
    if config["speculative_options"].get(OTHER_VOCABULARY) and method != "draft_model":
        raise ValueError(f"{OTHER_VOCABULARY} wants a draft model, and the method {method!r} takes none")
    check_fields("speculative_options", speculative_fields(config))


def check_fields(source: str, fields: Iterable[str]) -> None:
    """Raise ValueError for a field that `GenerationConfig` does not know, or that is not `source`'s to set."""
    known = {name for name in vars(transformers.GenerationConfig()) if not name.startswith("_")}
    for field in fields:
        if field in SET_BY_REQUEST:
            raise ValueError(f"{source}: {field!r} follows from {SET_BY_REQUEST[field]}; set that instead")
        if field in SET_HERE or field not in known:
            raise ValueError(f"{source}: {field!r} is not a GenerationConfig field that can be set here")


def load_model(role: str, path: str, dtype: str, device: str, options: Mapping[str, Any]) -> Any:
    """The causal language model at `path`, on `device`, ready to infer. Raises ValueError that names the path."""
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(path, **dtype_argument(dtype), **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot load the {role} from {path!r}: {error}") from error
    return model.eval() if "device_map" in options else model.eval().to(device)


def merge_adapter(model: Any, path: str) -> None:
    """Add to each linear layer's weight the product of its LoRA matrices, in float32, as peft merges them.

    Raises ValueError, with the remedy, for an adapter that is more than that.
    """
    settings, tensors = read_adapter(path)
    scale = settings["lora_alpha"] / (settings["r"] ** (0.5 if settings.get("use_rslora") else 1))
    adapted = {module for module, _ in tensors}
    for module in sorted(adapted):
        weight = model.get_submodule(module).weight
        with torch.no_grad():
            product = tensors[module, "B"].float() @ tensors[module, "A"].float() * scale
            weight.copy_(weight.float() + product.to(weight.device))


def read_adapter(path: str) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """The adapter's settings, and its matrices by (layer, "A" or "B"). Raises ValueError for what is no plain LoRA."""
    from safetensors.torch import load_file
    from transformers.utils import cached_file

    try:
        settings = json.loads(Path(cached_file(path, "adapter_config.json")).read_text("utf-8"))
        tensors = load_file(cached_file(path, "adapter_model.safetensors"))
    except OSError as error:
        raise ValueError(f"cannot load the adapter from {path!r}: {error}") from error
    names = {name: LORA.fullmatch(name) for name in tensors}
    other = [*(name for name in BEYOND_LORA if settings.get(name)), *(name for name in names if names[name] is None)]
    if settings.get("peft_type") != "LORA" or other:
        what = other[0] if other else settings.get("peft_type")
        raise ValueError(f"adapter {path!r}: {what} is more than LoRA on linear layers, {MERGE_IT}")
    return settings, {(found[1], found[2]): tensors[name] for name, found in names.items() if found is not None}


def dtype_argument(dtype: str) -> dict[str, Any]:
    """The dtype under the name that this version of `from_pretrained` gives it."""
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return {"dtype" if (major, minor) >= (4, 56) else "torch_dtype": getattr(torch, dtype)}


def drafting_config(config: Mapping[str, Any]) -> Any:
    """Generation settings of a drafter: γ tokens in every step, and no early end for want of confidence, by default."""
    drafting = transformers.GenerationConfig()
    constant = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
    chosen = {**constant, **speculative_fields(config), "num_assistant_tokens": config["gamma"], EARLY_EXIT: None}
    for name, value in chosen.items():
        setattr(drafting, name, value)
    return drafting


def load_tokenizer(path: str, options: Mapping[str, Any]) -> Any:
    """The tokenizer stored with the model at `path`; None where a local folder holds none."""
    files = ("tokenizer*", "vocab.*", "*.tiktoken", "spiece.model", "sentencepiece*")
    if Path(path).is_dir() and not any(list(Path(path).glob(pattern)) for pattern in files):
        return None
    shared = {name: options[name] for name in LOADING_SHARED_WITH_TOKENIZER if name in options}
    try:
        return transformers.AutoTokenizer.from_pretrained(path, **shared)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot load the tokenizer of {path!r}: {error}") from error


def check_same_tokens(config: Mapping[str, Any], target: tuple[Any, Any], draft: tuple[Any, Any]) -> None:
    """Raise ValueError unless a token id means the same to both. Each side is (model, tokenizer or None).

    Where either has no tokenizer, equal vocabulary sizes are all that can be asked for.
    """
    paths = f"target {config['target']!r} and draft {config['draft']!r}"
    if None not in (target[1], draft[1]) and target[1].get_vocab() != draft[1].get_vocab():
        here, there = ({index: token for token, index in each[1].get_vocab().items()} for each in (target, draft))
        at = min(index for index in here.keys() | there.keys() if here.get(index) != there.get(index))
        difference = f"id {at} is {here.get(at)!r} to the target's and {there.get(at)!r} to the draft's"
        raise ValueError(f"{paths} have different tokenizers: {difference}. Take a draft of the target's family")
    sizes = vocabulary_of(target[0]), vocabulary_of(draft[0])
    if sizes[0] != sizes[1]:
        raise ValueError(f"{paths} have vocabularies of {sizes[0]} and {sizes[1]} ids; Transformers needs them equal")


def vocabulary_of(model: Any) -> int:
    """Number of token ids that the model itself has a row for, padding included."""
    return int(model.get_input_embeddings().weight.shape[0])


def text_config_of(model: Any) -> Any:
    """The configuration of the part of a model that decodes text."""
    return model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config


def context_of(model: Any) -> int | None:
    """Longest sequence the model's configuration allows, in tokens; None where it does not say."""
    text = text_config_of(model)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if getattr(text, name, None):
            return int(getattr(text, name))
    return None


def longest_context(wanted: int | None, *models: Any) -> int:
    """The context that all `models` have, or a smaller one if wanted. Raises ValueError where there is none such."""
    known = [context for context in map(context_of, models) if context is not None]
    if not known and wanted is None:
        raise ValueError("the model's configuration names no context length: set max_model_len")
    if wanted is not None and known and wanted > min(known):
        raise ValueError(f"max_model_len is {wanted}, but the models allow {min(known)} tokens; set it no higher")
    return wanted if wanted is not None else min(known)


def eos_ids_of(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The EOS ids by the model's generation settings, else its configuration, else its tokenizer."""
    for source in (model.generation_config, model.config, tokenizer):
        eos = getattr(source, "eos_token_id", None)
        if eos is not None:
            return tuple(eos) if isinstance(eos, (list, tuple)) else (int(eos),)
    return ()


class TransformersBackend:
    """A loaded target, alone or with what drafts for it: `prepare`, `run`, `collect` decode; `score` rates tokens."""

    def __init__(self, config: Mapping[str, Any], device: str, target: Any, tokenizer: Any, draft: Any = None) -> None:
        self.tokenizers: Mapping[str, Any] = {}  # the target's and the draft's for `generate`, where they differ
        self._config = config
        self._adapter = config["options"].get(ADAPTER)
        self._device = device
        self._target, self._tokenizer, self._draft = target, tokenizer, draft
        self._context = longest_context(config["max_model_len"], *self._models)
        self._eos_ids = eos_ids_of(target, tokenizer)
        target.generation_config = transformers.GenerationConfig()
        self._answers: list[Answer] = []
        self._seconds = 0.0
        self._drafts: list[tuple[int, int]] = []  # of the run: tokens proposed, and how many of them were accepted
        make = target._get_candidate_generator
        target._get_candidate_generator = lambda *args, **kwargs: self._watch(make(*args, **kwargs))

    @property
    def _models(self) -> list[Any]:
        return [model for model in (self._target, self._draft) if model is not None]

    def _watch(self, generator: Any) -> Any:
        """The same candidate generator, whose steps are noted from now on; one that proposed nothing is no draft."""
        propose, learn, proposed = generator.get_candidates, generator.update_candidate_strategy, [0]

        def get_candidates(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
            candidates = propose(input_ids, *args, **kwargs)
            proposed[0] = candidates[0].shape[1] - input_ids.shape[1]
            return candidates

        def update_candidate_strategy(input_ids: Any, scores: Any, num_matches: Any) -> Any:
            if proposed[0]:
                self._drafts.append((proposed[0], int(num_matches)))
            return learn(input_ids, scores, num_matches)

        generator.get_candidates = get_candidates
        generator.update_candidate_strategy = update_candidate_strategy
        return generator

    def describe(self) -> dict[str, Any]:
        """Vocabulary (ids), context (tokens), device, versions, and details under the engine's own names."""
        on_gpu = self._device.startswith("cuda")
        sizes = [vocabulary_of(self._target), *([] if self._tokenizer is None else [len(self._tokenizer)])]
        return {
            "vocabulary": min(sizes),
            "context": self._context,
            "device": torch.cuda.get_device_name(self._device) if on_gpu else self._device,
            "parks": self._parks,
            "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
            "details": self._details(),
            "configuration": self._configuration(),
        }

    def _configuration(self) -> dict[str, Any]:
        return {
            **{f"model.{name}": str(value) for name, value in self._target.config.to_dict().items()},
            "attention": getattr(self._target.config, "_attn_implementation", None),
            "chat_template": getattr(self._tokenizer, "chat_template", None),
            "placement": ", ".join(self._places),
            ADAPTER: self._adapter,
        }

    def _details(self) -> dict[str, Any]:
        return {
            "model_class": type(self._target).__name__,
            "dtype": str(self._target.dtype).replace("torch.", ""),
            "model_vocabulary": vocabulary_of(self._target),
            "draft_context": context_of(self._draft) if self._draft is not None else None,
            "counting": "transformers",
            ADAPTER: self._adapter,
            "attention": getattr(self._target.config, "_attn_implementation", None),
            "eos_token_ids": list(self._eos_ids),
            "keeps_ends": True,
            "tokenizer": type(self._tokenizer).__name__ if self._tokenizer is not None else None,
            "prefix_caching": False,
            "concurrency": 1,
            "architecture": text_config_of(self._target).to_dict(),
            "weights_bytes": sum(each.numel() * each.element_size() for each in self._target.parameters()),
        }

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, and no BOS added to one that begins with it.

        Raises ValueError where the target has no tokenizer.
        """
        self._need_tokenizer("text")
        bos = self._tokenizer.bos_token
        begun: dict[str, Any] = {"add_special_tokens": False}  # by a template, with BOS
        said = (self._tokenizer(text, **(begun if bos and text.startswith(bos) else {})) for text in texts)
        return [list(map(int, each["input_ids"])) for each in said]

    def encode_messages(
        self, conversations: Sequence[Sequence[Mapping[str, str]]], template: Mapping[str, Any] | None = None
    ) -> list[list[int]]:
        """Token ids of each conversation by the chat template alone, which writes its own special tokens.

        Raises ValueError where the target has no tokenizer, or its tokenizer no template.
        """
        self._need_tokenizer("a conversation")
        if self._tokenizer.chat_template is None:
            target = self._config["target"]
            raise ValueError(f"{target} has no chat template: set chat_template = false, or name an instruct model")
        write = self._tokenizer.apply_chat_template
        return [
            list(map(int, write(list(each), add_generation_prompt=True, return_dict=False, **(template or {}))))
            for each in conversations
        ]

    def _need_tokenizer(self, purpose: str) -> None:
        if self._tokenizer is None:
            raise ValueError(f"{purpose} needs a tokenizer, and {self._config['target']!r} holds none; use token ids")

    def prepare(
        self,
        requests: Sequence[Mapping[str, Any]],
        concurrency: int,
        keeps_prefix_cache: bool = False,
        arrivals_s: Sequence[float] = (),
    ) -> None:
        """Check the requests and build what `generate` needs. They are decoded one by one, whatever `concurrency` says.

        No prefix cache outlives a call of `generate`.

        Raises ValueError that names the request's index: a sampling field that does not exist, or text asked of a model
        without tokenizer; NotImplementedError where requests have moments at which they are due.
        """
        if arrivals_s:
            raise NotImplementedError(
                "requests that arrive while others are decoded are not supported by `generate`: use a closed load"
            )
        drafter = self._target if self._config["method"] == "early_exit" else self._draft
        if drafter is not None:  # whose schedule would go on from what it came to in the requests before
            drafter.generation_config = drafting_config(self._config)
        self._answers = [self._plan(index, request) for index, request in enumerate(requests)]

    def _plan(self, index: int, request: Mapping[str, Any]) -> Answer:
        self._check(index, request)
        stop_ids = list(request["stop_token_ids"]) + ([] if request["ignore_eos"] else list(self._eos_ids))
        ids = torch.tensor([list(request["prompt_ids"])], device=self._device)
        arguments = {
            "inputs": ids,
            "attention_mask": torch.ones_like(ids),
            "generation_config": self._generation_config(request, stop_ids),
            "logits_processor": late_stop(len(request["prompt_ids"]), request["min_tokens"], stop_ids, self._device),
            **({"tokenizer": self._tokenizer} if request["stop"] else {}),
            **({"assistant_model": self._draft, **self.tokenizers} if self._draft is not None else {}),
        }
        return Answer(request, stop_ids, arguments)

    def _check(self, index: int, request: Mapping[str, Any]) -> None:
        """What the gate, which knows the target's limits, has not seen to: the drafter's context among it."""
        prompt, most = len(request["prompt_ids"]), request["max_tokens"]
        if prompt + most > self._context:
            raise ValueError(
                f"request {index}: {prompt} prompt + {most} output tokens exceed the context of {self._context}; "
                "shorten either"
            )
        for field in (each for each in request["sampling"] if each in OF_OTHERS):
            raise ValueError(f"request {index}, sampling: Transformers has no {field!r}")
        check_fields(f"request {index}, sampling", set(request["sampling"]) - {"seed"})
        self._check_stop(index, request)

    def _check_stop(self, index: int, request: Mapping[str, Any]) -> None:
        """No release ends generation at a text beside a drafter, whose own `generate` then refuses."""
        if not request["stop"]:
            return
        self._need_tokenizer(f"request {index}: stop text")
        ids = self._tokenizer(SPELLED_FOR_STOPS, add_special_tokens=False)["input_ids"]
        barred = {
            "in this release": not hasattr(transformers.GenerationConfig(), "stop_strings"),
            "beside a draft": self._draft is not None,
            f"with a tokenizer that cannot spell {SPELLED_FOR_STOPS!r}": SPELLED_FOR_STOPS
            not in self._tokenizer.decode(ids),
        }
        if reason := next((words for words, bars in barred.items() if bars), None):
            raise ValueError(f"request {index}: Transformers takes no stop text here, {reason}; use stop_token_ids")

    def _generation_config(self, request: Mapping[str, Any], stop_ids: list[int]) -> Any:
        looks_up = self._config["method"] == "prompt_lookup"
        nothing = vocabulary_of(self._target) if looks_up else None  # 4.57 cannot look up without an EOS id
        limits = {
            "max_new_tokens": request["max_tokens"],
            "eos_token_id": stop_ids or nothing,
            "pad_token_id": stop_ids[0] if stop_ids else 0,
            "stop_strings": list(request["stop"]) or None,
            "prompt_lookup_num_tokens": self._config["gamma"] if looks_up else None,
        }
        chosen = {**speculative_fields(self._config), **sampling_fields(request["sampling"])}
        return transformers.GenerationConfig(**limits, **chosen)

    def run(self) -> None:
        """Decode everything prepared, request after request. Only this call is timed, and it prints nothing."""
        self._drafts = []
        started = time.perf_counter()
        for answer in self._answers:
            answer.decode(self._target, started)
        if self._device.startswith("cuda"):
            torch.cuda.synchronize(self._device)
        self._seconds = time.perf_counter() - started

    def collect(self) -> dict[str, Any]:
        """Generations, counters and seconds of the last run. Raises RuntimeError where arrivals do not add up."""
        if any(answer.started_s is None for answer in self._answers):
            raise RuntimeError("nothing was run since prepare: call run first")
        return {
            "generations": [answer.wire(self._tokenizer) for answer in self._answers],
            "speculation": counters(self._drafts, self._config["gamma"] or 0),
            "seconds": self._seconds,
        }

    def decode(self, sequences: Sequence[tuple[list[int], list[int], bool]]) -> list[str | None]:
        """The text of each (prompt, output, whether special tokens are left out) after its prompt; None if not told."""
        if self._tokenizer is None:
            return [None] * len(sequences)
        return [text_after(self._tokenizer, *each) for each in sequences]

    def score(self, sequences: Sequence[tuple[Any, ...]], step: int = 0, at_once: int = 1) -> list[list[list[Any]]]:
        """Per (prompt, output, withheld) and output token: [gap to the highest logit, that logit, its id, runner-up].

        The runner-up's gap, too, is told. One forward pass of the target over prompt + output, logits in float32; with
        `step`, passes over that many tokens each, as verification takes them, the first with the prompt; one sequence
        after the other, whatever `at_once` is, as assisted decoding does. `withheld` is (n, ids): before token n these
        ids, the ends, are not permitted.
        """
        return [
            self._rate(list(prompt), list(output), withheld, step) if output else []
            for prompt, output, withheld in sequences
        ]

    def _rate(
        self, prompt: list[int], output: list[int], withheld: tuple[int, Sequence[int]], step: int
    ) -> list[list[Any]]:
        rows, tokens = self._logits(prompt, output, withheld, step)
        (top, second), _ = (each.unbind(-1) for each in rows.topk(2, dim=-1))
        argmax = rows.argmax(dim=-1)  # of equals the one that decoding takes
        chosen = rows.gather(1, tokens.unsqueeze(1)).squeeze(1)
        told = ((top - chosen).tolist(), top.tolist(), argmax.tolist(), (top - second).tolist())
        return list(map(list, zip(*told)))  # noqa: B905 - Python 3.9

    def rank(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], most: int) -> list[list[list[Any]]]:
        """As `score`: [the `most` highest logits, their token ids, the output token's place among them, whether all].

        Logits and ids are arrays of 32-bit numbers. A token that is not among them has no place.
        """
        return [self._rank(list(prompt), list(output), most) if output else [] for prompt, output in sequences]

    def _rank(self, prompt: list[int], output: list[int], most: int) -> list[list[Any]]:
        rows, tokens = self._logits(prompt, output)
        logits, ids = rows.topk(min(most, rows.shape[1]), dim=-1)
        there = ids == tokens.unsqueeze(1)
        places, whole = there.int().argmax(dim=-1).tolist(), most >= rows.shape[1]
        return [
            [array("f", logits[at].tolist()), array("i", ids[at].tolist()), places[at] if seen else None, whole]
            for at, seen in enumerate(there.any(dim=-1).tolist())
        ]

    def _logits(
        self, prompt: list[int], output: list[int], withheld: tuple[int, Sequence[int]] = (0, ()), step: int = 0
    ) -> tuple[Any, Any]:
        """A row of logits for each output token, those withheld at minus infinity, and the tokens themselves."""
        ids = torch.tensor([prompt + output[:-1]], device=self._device)
        with torch.no_grad():
            if step:
                logits = self._logits_of_steps(ids, len(prompt), step)
            else:
                logits = self._target(input_ids=ids, use_cache=False, **self._last_rows(len(output))).logits[0]
        rows = logits[-len(output) :].float()
        rows[: withheld[0], list(withheld[1])] = float("-inf")
        return rows, torch.tensor(output, device=rows.device)

    def _logits_of_steps(self, ids: Any, prompt: int, step: int) -> Any:
        """Step by step over the cached prefix; the prompt goes with the first drafts, as in assisted decoding."""
        ends = [*range(prompt + step - 1, ids.shape[1], step), ids.shape[1]]
        parts, begin, cache = [], 0, None
        for end in ends:
            rows = self._last_rows(end - max(begin, prompt - 1))
            passed = self._target(input_ids=ids[:, begin:end], past_key_values=cache, use_cache=True, **rows)
            parts.append(passed.logits[0])
            begin, cache = end, passed.past_key_values
        return torch.cat(parts)

    def _last_rows(self, count: int) -> dict[str, int]:
        accepted = inspect.signature(self._target.forward).parameters
        names = [name for name in ("logits_to_keep", "num_logits_to_keep") if name in accepted]
        return {names[0]: count} if names else {}

    def park(self) -> None:
        """Move the weights to the host and give the GPU's memory back, where `_parks`."""
        self._move("cpu")

    def wake(self) -> None:
        """Move the weights to the GPU again."""
        self._move(self._device)

    @property
    def _places(self) -> list[str]:
        spread = getattr(self._target, "hf_device_map", {}).values()
        names = sorted({f"cuda:{place}" if isinstance(place, int) else str(place) for place in spread})
        return names if len(names) > 1 else [self._device]

    @property
    def _parks(self) -> bool:
        """Whether the weights are on a GPU, all on one: those that are spread cannot be put back."""
        return self._device.startswith("cuda") and len(self._places) == 1

    def _move(self, device: str) -> None:
        if self._parks:
            for model in self._models:
                model.to(device)
            gc.collect()
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Nothing to shut down: the process ends after that."""


def sampling_fields(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling fields as Transformers wants them: a temperature means sampling, and temperature 0 means greedy.

    Unasked, Transformers would sample from the 50 likeliest tokens only.
    """
    fields = {name: value for name, value in sampling.items() if name != "seed"}
    if fields.get("temperature") == 0:
        del fields["temperature"]
    unfiltered = {"top_k": 0} if "temperature" in fields else {}
    return {"do_sample": "temperature" in fields, **unfiltered, **fields}


def late_stop(prompt_length: int, min_tokens: int, stop_ids: list[int], device: str) -> Any:
    """The processor list that forbids the stop ids before `min_tokens`; None where nothing is to be forbidden.

    `GenerationConfig.min_new_tokens` would do the same, but 4.57 refuses it beside a drafter.
    """
    if not (stop_ids and min_tokens):
        return None
    processor = transformers.MinNewTokensLengthLogitsProcessor
    placed = {"device": device} if "device" in inspect.signature(processor.__init__).parameters else {}
    return transformers.LogitsProcessorList([processor(prompt_length, min_tokens, stop_ids, **placed)])


def text_after(tokenizer: Any, prompt: list[int], output: list[int], skip_special_tokens: bool = True) -> str | None:
    """The output's text as it follows the prompt's; None where a character has begun in the prompt."""
    how = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
    before, whole = tokenizer.decode(prompt, **how), tokenizer.decode(prompt + output, **how)
    return whole[len(before) :] if whole.startswith(before) and not before.endswith("\ufffd") else None


def up_to(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop text."""
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
