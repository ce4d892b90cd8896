"""vLLM in a worker process: speculative and target-only decoding through one LLM object, stepped by hand.

This file is sent to the worker as source text and must stand alone: standard library, vLLM and what vLLM brings. It
holds every difference between vLLM versions (0.20 and newer). Stepping the engine ourselves, as LLM.generate does,
gives the arrival time of every chunk of tokens and bounds how many requests are under way. Sources:
vllm/v1/engine/llm_engine.py, vllm/entrypoints/common/offline.py, vllm/v1/metrics/reader.py.
"""

from __future__ import annotations

import os
import re
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
NEUTRAL_GREEDY = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
PREEMPTIONS = "preemptions"
ADAPTER = "adapter"
COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "accepted_per_position",
    "vllm:num_preemptions": PREEMPTIONS,
}
# Speculation is what the arms differ in; what follows from num_gpu_blocks is one difference; names of a run, where it
# keeps what it compiled and how long that took are none.
NOT_COMPARED = (
    "speculative_config",
    "observability_config",
    "instance_id",
    "logprobs_mode",
    "kv_cache_max_concurrency",
    "kv_cache_size_tokens",
    "compilation_time",
    "cache_dir",
    "local_cache_dir",
    "disable_nccl_for_dp_synchronization",  # follows from asynchronous scheduling
)
BY_REQUEST = "per_request_spec_decode_metrics"
MOST_SHARDED = 1024  # logits a token: vLLM refuses -1, any number, where sampling is sharded
REFUSALS = (
    r"not (yet )?supported (with|when) speculative decoding",
    r"not support speculative decoding",
    r"^Unsupported speculative method",
    r"Model does not support EAGLE3 interface",
    r"'draft_tensor_parallel_size' and 'tensor_parallel_size' must be the same",
    r"Pipeline parallelism is not supported for this model",
    r"is not supported for single-process usage",
    r"current platform \w+ does not support ray",
    r"Structured outputs are not yet supported",
    r"does not support LoRA",
    r"Model Runner V\d (does not (yet )?support: |requires )",
)
CHILD_FAILED = "See stack trace"
REFUSED_IN_CHILD = re.compile(r"pid=\d+\).*\b((?:NotImplemented|Value)Error): (.+)")


def preload() -> Any:
    """Import vLLM in the environment that `load` wants, and return its LLM; touches no device."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    has_cuda = Path("/proc/driver/nvidia/version").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    for name, value in () if has_cuda else CPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import LLM

    return LLM


def load(config: dict[str, Any]) -> VllmBackend:
    """Start vLLM in this very process (a child of it would cost half a minute more). Raises what vLLM raises."""
    llm = preload()
    try:
        return VllmBackend(llm(**_constructor_arguments(config)), config)
    except Exception as error:
        refusal = _refusal_in_child() if CHILD_FAILED in str(error) else None
        raise ValueError(refusal) if refusal else error from None


def _refusal_in_child(log: str = "/proc/self/fd/2") -> str | None:
    """What a process of vLLM's said when it refused: of that vLLM's own error has but a pointer to the log."""
    with open(log, encoding="utf-8", errors="replace") as lines:
        said = (REFUSED_IN_CHILD.search(line) for line in lines)
        return next((found[2].strip() for found in said if found), None)


def _constructor_arguments(config: dict[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": config["target"],
        "dtype": config["dtype"],
        "max_model_len": config["max_model_len"],
        "seed": 0,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "skip_tokenizer_init": not _has_tokenizer(config["target"]),
    }
    arguments |= _platform_arguments(config["method"] != "none")
    if config["options"].get("enable_batch_sharded_sampling") and "max_logprobs" in arguments:
        arguments["max_logprobs"] = MOST_SHARDED
    arguments |= {"enable_lora": True} if ADAPTER in config["options"] else {}
    arguments |= {name: value for name, value in config["options"].items() if name != ADAPTER}
    if config["method"] != "none":
        arguments = _count_by_request() | arguments | {"speculative_config": speculative_config(config)}
    return arguments


def _count_by_request() -> dict[str, Any]:
    """Newer versions count acceptance by request as well, when asked to."""
    from vllm.engine.arg_utils import EngineArgs

    return {BY_REQUEST: "summary"} if hasattr(EngineArgs, BY_REQUEST) else {}


def _platform_arguments(speculates: bool) -> dict[str, Any]:
    """Sleep mode and CUDA graphs need a GPU; raw logits let gaps be told in ULPs, as many of them as are asked for."""
    scores: dict[str, Any] = {} if speculates else {"logprobs_mode": "raw_logits", "max_logprobs": -1}
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return scores | {"enforce_eager": True}
    return scores | {"enable_sleep_mode": True}


def _has_tokenizer(model: str) -> bool:
    folder = Path(model)
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
    return not folder.is_dir() or any((folder / name).exists() for name in names)


def speculative_config(config: dict[str, Any]) -> dict[str, Any]:
    """What vLLM is told of speculation, also on a server's command line."""
    drafting = {"method": config["method"], "num_speculative_tokens": config["gamma"]}
    if config["draft"] is not None:
        drafting["model"] = config["draft"]
    return {**drafting, **config["speculative_options"]}


def _count_drafts(drafts: Counter[tuple[int, int]]) -> None:
    """Have vLLM's own count add how many tokens a draft had and how many were accepted: its counters tell no lengths.

    A count in another process adds nothing.
    """
    from vllm.v1.spec_decode.metrics import SpecDecodingStats

    count = SpecDecodingStats.observe_draft

    def observe_draft(self: Any, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        drafts[num_draft_tokens, num_accepted_tokens] += 1
        count(self, num_draft_tokens, num_accepted_tokens)

    SpecDecodingStats.observe_draft = observe_draft


def _positions(drafts: Counter[tuple[int, int]]) -> dict[str, list[int]]:
    """For each position, how many drafts had a token there, and how many of these had all before it accepted."""
    positions = range(max((drafted for drafted, _ in drafts), default=0))
    return {
        "drafted_per_position": [sum(drafts[at] for at in drafts if at[0] > place) for place in positions],
        "tried_per_position": [sum(drafts[at] for at in drafts if at[0] > place <= at[1]) for place in positions],
    }


def _requests_piecewise(config: Any, version: str) -> list[int] | None:
    """Numbers of requests whose steps take a piecewise CUDA graph, attention outside of it, though a full one is there.

    Before 0.29 Model Runner V2 takes the graph of the nearest size (github.com/vllm-project/vllm/pull/53407), and the
    sizes of full ones are rounded up to a multiple of the tokens of a request's step.
    """
    graphs, most = config.compilation_config, config.scheduler_config.max_num_seqs
    both = getattr(getattr(graphs, "cudagraph_mode", None), "name", None) == "FULL_AND_PIECEWISE"
    older = re.match(r"0\.(1\d|2[0-8])\.\d", version)  # a build without tags has no such number
    if config.speculative_config is None or not older or not both or not getattr(config, "use_v2_model_runner", False):
        return None
    step, piecewise = config.speculative_config.num_speculative_tokens + 1, graphs.cudagraph_capture_sizes
    largest = min(graphs.max_cudagraph_capture_size, most * step)
    full = [size for each in piecewise if (size := -(-each // step) * step) <= largest]

    def nearest(sizes: list[int], requests: int) -> int:
        return min(size for size in sizes if size >= requests * step)

    counts = range(1, max(full, default=0) // step + 1)
    return [requests for requests in counts if nearest(piecewise, requests) < nearest(full, requests)]


class VllmBackend:
    """One vLLM engine: what the worker's commands call."""

    def __init__(self, llm: Any, config: dict[str, Any]) -> None:
        self._llm = llm
        self._engine = llm.llm_engine
        self._speculates = config["method"] != "none"
        self._target = config["target"]
        self._adapter_path = config.get("options", {}).get(ADAPTER)
        self._adapter: Any = None  # what every request is sent with, decoded or rated
        if self._adapter_path is not None:
            from vllm.lora.request import LoRARequest

            self._adapter = LoRARequest(ADAPTER, 1, self._adapter_path)
            self._engine.add_lora(self._adapter)  # a wrong one ends loading
        self._concurrency = 1
        self._answers: list[_Answer] = []
        self._seconds = 0.0
        self._counted: dict[str, Any] = {}
        self._drafts: Counter[tuple[int, int]] = Counter()
        if self._speculates:
            _count_drafts(self._drafts)
        self._serial = 0

    def describe(self) -> dict[str, Any]:
        """Vocabulary, context, device and versions, as the loaded engine has them."""
        import torch
        import transformers
        import vllm

        model, size = self._engine.model_config, self._engine.model_config.get_vocab_size()
        cuda = torch.cuda.is_available() and torch.version.cuda is not None
        return {
            "vocabulary": int(size) if self._tokenizer is None else min(int(size), len(self._tokenizer)),
            "context": model.max_model_len,
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "versions": {
                "vllm": vllm.__version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "parks": self._engine.model_config.enable_sleep_mode,
            "details": self._details(),
            "configuration": self._configuration(),
        }

    def _configuration(self) -> dict[str, Any]:
        config = self._engine.vllm_config
        parts = {
            name: part for name, part in vars(config).items() if name.endswith("_config") and hasattr(part, "__dict__")
        }
        told = {
            f"{name.removesuffix('_config')}.{field}": _in_plain(value)
            for name, part in parts.items()
            if name not in NOT_COMPARED
            for field, value in vars(part).items()
            if field not in NOT_COMPARED and not field.endswith("_port") and _in_plain(value) is not None
        }
        budget = told.get("scheduler.max_num_batched_tokens")  # where nothing lowers what a step schedules
        ours = {ADAPTER: self._adapter_path, "chat_template": getattr(self._tokenizer, "chat_template", None)}
        if (second := getattr(config, "use_v2_model_runner", None)) is not None:  # a property, chosen by the method too
            ours["model_runner"] = "V2" if second else "V1"
        return {"scheduler.max_num_scheduled_tokens": budget, **told, **ours}

    @property
    def _tokenizer(self) -> Any:
        return None if self._engine.model_config.skip_tokenizer_init else self._llm.get_tokenizer()

    def _details(self) -> dict[str, Any]:
        """Sizes and switches at whose boundaries faults like to sit; a version that lacks one leaves it out."""
        import vllm

        config, model = self._engine.vllm_config, self._engine.model_config
        cache, scheduler = config.cache_config, config.scheduler_config
        speculation = config.speculative_config
        drafting = getattr(speculation, "draft_model_config", None)
        layout = getattr(getattr(self._core, "scheduler", None), "kv_cache_config", None)
        details = {
            "model_vocabulary": model.get_vocab_size(),
            "dtype": str(model.dtype).removeprefix("torch."),
            "eos_token_ids": self._eos_token_ids(),
            "keeps_ends": True,
            "block_size": getattr(cache, "block_size", None),
            "prefix_caching": getattr(cache, "enable_prefix_caching", None),
            "prefill_chunk": getattr(scheduler, "max_num_batched_tokens", None),
            "most_requests": getattr(scheduler, "max_num_seqs", None),
            "async_scheduling": getattr(scheduler, "async_scheduling", None),
            "cuda_graphs": getattr(getattr(config.compilation_config, "cudagraph_mode", None), "name", None),
            "cuda_graph_tokens": getattr(config.compilation_config, "max_cudagraph_capture_size", None),
            "requests_piecewise": _requests_piecewise(config, vllm.__version__),
            "core_in_own_process": self._core is None,
            "draft_context": getattr(drafting, "max_model_len", None),
            "counting": "vllm",
            ADAPTER: self._adapter_path,
            "speculation": speculation and {"method": speculation.method, "gamma": speculation.num_speculative_tokens},
            "architecture": model.hf_text_config.to_dict(),
            "weights_bytes": self._weights_bytes(),
            "kv_cache_bytes": layout and sum(int(tensor.size) for tensor in layout.kv_cache_tensors),  # on one device
        }
        return {name: value for name, value in details.items() if value is not None}

    def _weights_bytes(self) -> int | None:
        """Of the target, on all devices together; None where the engine's workers cannot be asked.

        They may be processes that cannot import this file, and one ends at what it cannot import: so they are sent a
        function that is theirs too.
        """
        from transformers import PreTrainedModel

        parameters = partial(PreTrainedModel.get_memory_footprint, return_buffers=False)
        try:
            return sum(map(int, self._llm.apply_model(parameters)))
        except Exception:
            return None

    @property
    def _core(self) -> Any:
        """The engine's core, with its scheduler; None where it lives in another process."""
        return getattr(getattr(self._engine, "engine_core", None), "engine_core", None)

    def _eos_token_ids(self) -> list[int]:
        """EOS of the tokenizer and of the generation settings, or the model's own where no file has any.

        Source: `SamplingParams.update_from_generation_config`.
        """
        settings = self._engine.model_config.try_get_generation_config()
        found = [settings.get("eos_token_id"), getattr(self._tokenizer, "eos_token_id", None)]
        return sorted(
            {token for each in found for token in (each if isinstance(each, list) else [each]) if token is not None}
        )

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, special tokens added as the tokenizer says, and BOS to none that begins with it."""
        tokenizer = self._needed_tokenizer()
        bos = getattr(tokenizer, "bos_token", None)
        begun: dict[str, Any] = {"add_special_tokens": False}  # by a template, with BOS
        return [list(tokenizer.encode(text, **(begun if bos and text.startswith(bos) else {}))) for text in texts]

    def encode_messages(
        self, conversations: list[list[dict[str, str]]], template: dict[str, Any] | None = None
    ) -> list[list[int]]:
        """Token ids of each conversation by the chat template alone, which writes its own special tokens."""
        tokenizer = self._needed_tokenizer()
        if getattr(tokenizer, "chat_template", "its own") is None:
            raise ValueError(
                f"{self._target} has no chat template: set chat_template = false, or name an instruct model"
            )
        written = [
            tokenizer.apply_chat_template(each, add_generation_prompt=True, **(template or {}))
            for each in conversations
        ]
        return [list(each["input_ids"] if hasattr(each, "keys") else each) for each in written]

    def decode(self, sequences: list[tuple[list[int], list[int], bool]]) -> list[str | None]:
        """The text of each (prompt, output, whether special tokens are left out) after its prompt; None if not told."""
        tokenizer = self._tokenizer
        return [None if tokenizer is None else _text_after(tokenizer, *each) for each in sequences]

    def _needed_tokenizer(self) -> Any:
        if (tokenizer := self._tokenizer) is None:
            raise ValueError(f"{self._target} has no tokenizer, so text cannot be encoded: give prompts as ids")
        return tokenizer

    def prepare(
        self,
        requests: list[dict[str, Any]],
        concurrency: int,
        keeps_prefix_cache: bool = False,
        arrivals_s: Sequence[float] = (),
    ) -> None:
        """Take the requests, and let vLLM check their sampling parameters, before the clock runs.

        Unless `keeps_prefix_cache`, prompts and answers of earlier runs are forgotten. `arrivals_s`: when each is due,
        in seconds after the run begins, never falling; empty for no moment at all.
        """
        if not keeps_prefix_cache:
            connector = getattr(getattr(self._engine, "vllm_config", None), "kv_transfer_config", None)
            self._llm.reset_prefix_cache(**({} if connector is None else {"reset_connector": True}))
            self._forget_answers()
        self._concurrency = concurrency
        due: Sequence[float | None] = arrivals_s or [None] * len(requests)
        self._answers = [_Answer(request, _sampling(request), at) for request, at in zip(requests, due, strict=True)]
        self._counted = self._counters()
        self._drafts.clear()

    def _forget_answers(self) -> None:
        """Empty the tree of suffix decoding, which would find the same answers again; that of another process stays."""
        worker = getattr(getattr(self._core, "model_executor", None), "driver_worker", None)
        tree = getattr(getattr(getattr(worker, "model_runner", None), "drafter", None), "suffix_cache", None)
        if tree is not None:
            for each in list(tree.active_requests):
                tree.stop_request(each)
            for each in list(tree.cached_requests):
                tree.evict_cached_response(each)

    def run(self) -> None:
        """Decode everything, at most `concurrency` requests at a time, each sent once it is due.

        Moments are counted from the beginning of the run, so that a step or a sleep that takes too long delays what
        fell due meanwhile and nothing after it.
        """
        start = time.perf_counter()
        waiting = self._answers[::-1]
        under_way: dict[str, _Answer] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < self._concurrency and waiting[-1].due_in(start) <= 0:
                    self._submit(waiting.pop(), under_way, time.perf_counter() - start)
                if not under_way:
                    time.sleep(max(0.0, waiting[-1].due_in(start)))
                    continue
                for output in self._engine.step():
                    answer = under_way[output.request_id]
                    answer.take(output, time.perf_counter() - start)
                    if output.finished:
                        del under_way[output.request_id]
        except BaseException:
            if getattr(getattr(self._engine, "model_executor", None), "is_failed", False):
                print("a process of vLLM's executor has died, so the engine ends", file=sys.stderr, flush=True)
                os._exit(1)  # no run can succeed any more
            self._engine.abort_request(list(under_way))
            raise
        self._seconds = time.perf_counter() - start

    def _submit(self, answer: _Answer, under_way: dict[str, _Answer], at_s: float) -> None:
        self._serial += 1
        answer.started_s = at_s
        name = str(self._serial)
        prompt = {"prompt_token_ids": answer.request["prompt_ids"]}
        self._engine.add_request(name, prompt, answer.sampling, lora_request=self._adapter)
        under_way[name] = answer

    def collect(self) -> dict[str, Any]:
        """The generations of the last run, and how far the counters moved since it was prepared."""
        moved = _difference(self._counters(), self._counted)
        rated = {} if self._speculates else {"logprobs": None}  # the target alone rates, and returns raw logits there
        # vLLM's own counter misses hits of a step that puts nothing out: a chunk of a prompt, or under asynchronous
        # scheduling the first step after a run that has ended.
        hits = [answer.cached for answer in self._answers]
        return {
            "generations": [answer.wire() | rated for answer in self._answers],
            "speculation": {name: moved[name] for name in moved if name != PREEMPTIONS} | _positions(self._drafts),
            "seconds": self._seconds,
            "prefix_cache_hits": None if None in hits else sum(map(int, hits)),
            PREEMPTIONS: moved[PREEMPTIONS],
        }

    def _counters(self) -> dict[str, Any]:
        values: dict[str, Any] = dict.fromkeys(("drafts", "draft_tokens", "accepted_tokens", PREEMPTIONS), 0)
        for metric in self._llm.get_metrics():
            if metric.name in COUNTERS:
                values[COUNTERS[metric.name]] = list(metric.values) if hasattr(metric, "values") else metric.value
        return values

    def score(
        self, sequences: list[tuple[list[int], list[int], tuple[int, list[int]]]], step: int = 0, at_once: int = 1
    ) -> list[list[list[Any]]] | None:
        """For each emitted token [gap, top logit, argmax, runner-up's gap] by prompt logprobs: one prefill over both.

        The third part of a sequence is (n, ids): before token n these ids, the ends, are not permitted. With `step`,
        prompt and output are computed so many tokens at a time, `at_once` sequences in one pass, as in verification;
        None where they cannot be, or long prompts take more passes than decoding did.
        """
        if step and not (self._can_step(sequences, step) and (at_once == 1 or not self._rates_one_by_one())):
            return None
        with self._in_steps(step, at_once) if step else nullcontext():
            rated = self._rate(sequences, 2)
        return [rating.rows(result, decoding=step > 0) for rating, result in rated]

    def _can_step(self, sequences: list[tuple[list[int], list[int], tuple[int, list[int]]]], step: int) -> bool:
        """Whether the scheduler cuts prompts, lets itself be told where, and soon has them behind it."""
        scheduler = getattr(self._core, "scheduler", None)
        cuts = getattr(getattr(scheduler, "scheduler_config", None), "enable_chunked_prefill", False)
        rules = ("adaptive_long_prefill_threshold", "need_mamba_block_aligned_split")
        prompts, outputs = (sum(len(each[part]) for each in sequences) for part in (0, 1))
        return bool(cuts) and prompts < step * outputs and not any(getattr(scheduler, each, False) for each in rules)

    @contextmanager
    def _in_steps(self, step: int, at_once: int) -> Iterator[None]:
        """Have the scheduler give each sequence `step` tokens in one pass, and none to more than `at_once` of them.

        To one that is left alone newer versions give all tokens of a pass, whatever the threshold: it gets no others.
        """
        scheduler = self._core.scheduler
        settings, schedule = scheduler.scheduler_config, scheduler.schedule
        before = settings.long_prefill_token_threshold, scheduler.max_num_scheduled_tokens

        def schedule_steps(*arguments: Any, **options: Any) -> Any:
            scheduler.max_num_scheduled_tokens = min(step * min(at_once, len(scheduler.requests)), before[1])
            return schedule(*arguments, **options)

        try:
            settings.long_prefill_token_threshold, scheduler.schedule = step, schedule_steps
            yield
        finally:
            scheduler.schedule = schedule
            settings.long_prefill_token_threshold, scheduler.max_num_scheduled_tokens = before

    def rank(self, sequences: list[tuple[list[int], list[int]]], most: int) -> list[list[list[Any]]]:
        """As `score`: [the `most` highest logits, their ids, the emitted token's place among them, whether all].

        Logits and ids are arrays of 32-bit numbers. A token that is not among them has no place.
        """
        size = int(self._engine.model_config.get_vocab_size())
        none_withheld: tuple[int, list[int]] = (0, [])
        rated = self._rate([(*each, none_withheld) for each in sequences], min(most, size))
        return [rating.rankings(result, size) for rating, result in rated]

    def _rate(self, sequences: Sequence[tuple[list[int], list[int], tuple[int, list[int]]]], most: int) -> Any:
        context = self._engine.model_config.max_model_len
        asked = [Rating(list(prompt), list(output), withheld, context, most) for prompt, output, withheld in sequences]
        prompts = [{"prompt_token_ids": each.ids} for each in asked]
        size = int(self._engine.model_config.get_vocab_size())
        samplings = [each.sampling(size) for each in asked]
        at_once = 1 if self._rates_one_by_one() else len(asked)
        results: list[Any] = []
        for begin in range(0, len(asked), at_once or 1):
            part = slice(begin, begin + at_once)
            results += self._llm.generate(prompts[part], samplings[part], use_tqdm=False, lora_request=self._adapter)
        return zip(asked, results, strict=True)

    def _rates_one_by_one(self) -> bool:
        """On a CPU vLLM gives an adapted output head one row a request (`punica_cpu.py`), and a rating has many.

        Of one request alone that row goes for all.
        """
        from vllm.platforms import current_platform

        return self._adapter is not None and current_platform.is_cpu()

    def park(self) -> None:
        """Weights to host memory, KV cache dropped (vLLM's sleep level 1); nothing to do on a CPU."""
        if self._engine.model_config.enable_sleep_mode:
            self._llm.sleep(level=1)

    def wake(self) -> None:
        """Weights back on the device."""
        if self._engine.model_config.enable_sleep_mode:
            self._llm.wake_up()

    def close(self) -> None:
        """Shut the engine core down; the process ends after that."""
        self._engine.engine_core.shutdown()


def _in_plain(value: Any) -> Any:
    if isinstance(value, (str, int, float)):
        return getattr(value, "value", value)
    if isinstance(value, (list, tuple, set)):
        told = [_in_plain(each) for each in value]
        return sorted(map(str, told)) if isinstance(value, set) else told
    return str(value) if type(value).__name__ in ("dtype", "device") or hasattr(value, "name") else None


def _text_after(tokenizer: Any, prompt: list[int], output: list[int], skip_special_tokens: bool) -> str | None:
    """The output's text as it follows the prompt's; None where a character has begun in the prompt."""
    how = {"skip_special_tokens": skip_special_tokens}
    how |= {"clean_up_tokenization_spaces": False} if hasattr(tokenizer, "clean_up_tokenization_spaces") else {}
    before, whole = tokenizer.decode(prompt, **how), tokenizer.decode(prompt + output, **how)
    return whole[len(before) :] if whole.startswith(before) and not before.endswith("\ufffd") else None


class _Answer:
    def __init__(self, request: dict[str, Any], sampling: Any, scheduled_s: float | None = None) -> None:
        self.request = request
        self.sampling = sampling
        self.scheduled_s = scheduled_s
        self.prompt_ids: list[int] = []
        self.token_ids: list[int] = []
        self.chunks: list[tuple[float, int]] = []
        self.started_s: float | None = None
        self.finish_reason: str | None = None
        self.text: str | None = None
        self.counted: Any = None
        self.cached: Any = None
        self.logprobs: list[float | None] | None = None if getattr(sampling, "logprobs", None) is None else []

    def due_in(self, start: float) -> float:
        """Seconds until it may be submitted in a run that began at `start`; not above 0 once it may."""
        return start + (self.scheduled_s or 0.0) - time.perf_counter()

    def take(self, output: Any, at_s: float) -> None:
        completion = output.outputs[0]
        delta = list(completion.token_ids)
        if delta:
            self.token_ids += delta
            self.chunks.append((at_s, len(delta)))
        self.prompt_ids = output.prompt_token_ids or self.prompt_ids
        self.finish_reason = completion.finish_reason
        self.counted = getattr(completion, "spec_decode_metrics", None)
        self.cached = getattr(output, "num_cached_tokens", None)
        if self.logprobs is not None:
            self.logprobs += _own_logprobs(delta, completion.logprobs or [])
        if self.sampling.detokenize:
            self.text = (self.text or "") + completion.text

    def wire(self) -> dict[str, Any]:
        counts: dict[str, int] = {}
        if self.counted is not None:
            accepted = sum(tokens * steps for tokens, steps in enumerate(self.counted.histogram))
            counts = {"draft_tokens": self.counted.num_draft_tokens, "accepted_tokens": accepted}
        return {
            "prompt_ids": list(self.prompt_ids),
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "chunks": self.chunks,
            "text": self.text,
            "started_s": self.started_s,
            "scheduled_s": self.scheduled_s,
            "cached_tokens": self.cached,
            "logprobs": self.logprobs,
            **counts,
        }


def _own_logprobs(tokens: list[int], rows: Any) -> list[float | None]:
    came: list[int | None] = [*tokens, *[None] * (len(rows) - len(tokens))]
    return [row[token].logprob if token in row else None for token, row in zip(came, rows, strict=False)]


def _sampling(request: dict[str, Any]) -> Any:
    """Greedy on purpose: vLLM's own default temperature is 1.0."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    limits = {name: request[name] for name in ("max_tokens", "min_tokens", "ignore_eos")}
    ends = {"stop": list(request["stop"]) or None, "stop_token_ids": list(request["stop_token_ids"]) or None}
    fields = {**NEUTRAL_GREEDY, **request["sampling"]}
    if "structured_outputs" in fields:
        fields["structured_outputs"] = StructuredOutputsParams(**fields["structured_outputs"])
    return SamplingParams(
        **fields, **limits, **ends, detokenize=bool(request["stop"]), output_kind=RequestOutputKind.DELTA
    )


def _difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Counters only grow, so the run's share is after minus before; vectors element by element."""
    return {
        name: [now - then for now, then in zip(value, before[name], strict=True)]
        if isinstance(value, list)
        else value - before[name]
        for name, value in after.items()
    }


class Rating:
    """One sequence to be rated: what vLLM is asked, and how its answer is read.

    vLLM rates a prompt only if there is room for one token more. Where prompt and output fill the context, the last
    token is generated instead, forced, and its raw logits are read there.
    """

    def __init__(
        self, prompt: list[int], output: list[int], withheld: tuple[int, list[int]], context: int, most: int = 1
    ) -> None:
        self.prompt, self.output, (self._until, self._ends), self._most = prompt, output, withheld, most
        self.forced = output[-1:] if len(prompt) + len(output) >= context else []
        self.ids = prompt + output[: len(output) - len(self.forced)]
        self.best = most + (len(self._ends) if self._until else 0)  # they leave `most` when the ends are taken away

    def sampling(self, vocabulary: int) -> Any:
        """Ask for the best tokens of each place."""
        from vllm import SamplingParams

        best = min(vocabulary, self.best)
        forced = {"logprobs": best, "allowed_token_ids": self.forced} if self.forced else {}
        return SamplingParams(
            temperature=0.0,
            max_tokens=1,
            ignore_eos=True,
            prompt_logprobs=best,
            detokenize=False,
            flat_logprobs=True,
            **forced,
        )

    def rows(self, result: Any, decoding: bool = False) -> list[list[Any]]:
        """[gap, top logit, argmax, runner-up's gap] for each emitted token."""
        return [self.row(at, told, decoding) for at, told in enumerate(self._told(result))]

    def row(self, at: int, told: list[tuple[int, float]], decoding: bool = False) -> list[Any]:
        """One of them, of (id, logit), the emitted token's own first.

        Of equals that is the argmax, or the one with the lowest id, which `decoding` takes.
        """
        withheld = self._ends if at < self._until else ()
        permitted = {token: logit for token, logit in told if token not in withheld}
        (argmax, best), *others = sorted(permitted.items(), key=lambda item: (-item[1], item[0] if decoding else 0))
        return [best - told[0][1], best, argmax, best - others[0][1] if others else None]

    def _told(self, result: Any) -> list[list[tuple[int, float]]]:
        """For each emitted token (id, logit): its own first, then the best, from lists of all positions in a row."""
        first = len(self.ids) - (len(self.output) - len(self.forced))
        places = [(result.prompt_logprobs, at) for at in range(first, len(self.ids))]
        places += [(result.outputs[0].logprobs, 0)] if self.forced else []
        spans = [(flat, slice(flat.start_indices[at], flat.end_indices[at])) for flat, at in places]
        return [list(zip(flat.token_ids[span], flat.logprobs[span], strict=True)) for flat, span in spans]

    def rankings(self, result: Any, vocabulary: int) -> list[list[Any]]:
        """[logits, ids, place, whether all] for each emitted token."""
        rows: list[list[Any]] = []
        for token, (_, *best) in zip(self.output, self._told(result), strict=True):
            ids, logits = [each for each, _ in best], [logit for _, logit in best]
            place = ids.index(token) if token in ids else None
            rows.append([array("f", logits), array("i", ids), place, self._most >= vocabulary])
        return rows
