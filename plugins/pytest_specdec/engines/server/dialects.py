"""How the servers that speak OpenAI's protocol differ, one value for each.

A path is a sequence of keys and indices into one event of the stream, or into the whole answer. Counters are
Prometheus's, under their exact names. Sources: vLLM, vllm/entrypoints/openai/completion/protocol.py and
vllm/v1/metrics/loggers.py; SGLang, sglang/srt/managers/io_struct.py and tokenizer_manager.py of 0.5.17 (its own
endpoint: OpenAI's does not tell what was drafted); TensorRT-LLM, tensorrt_llm/serve/openai_protocol.py and its metrics
page; llama.cpp, its server as it answers; NVIDIA Dynamo, its page on `nvext`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_specdec.engines.vllm import NEUTRAL_GREEDY, REFUSALS

Path = tuple[str | int, ...]
CHOICE: Path = ("choices", 0)


@dataclass(frozen=True)
class Counters:
    """Names of Prometheus counters, which some releases write without `_total`; empty where there is none."""

    drafts: str = ""
    draft_tokens: str = ""
    accepted_tokens: str = ""
    per_position: str = ""
    prefix_cache_hits: str = ""
    preemptions: str = ""
    path: str = "/metrics"


@dataclass(frozen=True)
class Route:
    """One way to ask: `path`, the field that carries the prompt, and that of the limit on tokens.

    `sampling`: the field that holds the limit and all else of sampling, where they lie apart.
    """

    path: str
    prompt: str = "prompt"
    limit: str = "max_tokens"
    sampling: str | None = None


@dataclass(frozen=True)
class Dialect:
    """One kind of server.

    `asks`: fields that make it tell token ids. `neutral`: greedy decoding, whatever the model's own settings say.
    `step_at`: what is the same in all events of one step, where a step's tokens come in several. `logprobs_at`: those
    of a completion's tokens; None where nobody has seen whether the server tells them.
    `prompt_ids_at`: paths of which the first that is there counts; none where the server does not tell. `renamed`:
    finish reasons under other names. `told`: where one answer tells what was drafted for it, whose counts are a run's
    sums; `steps` is a list of how many steps accepted 0, 1, 2, … tokens. `rates`: how it rates the tokens of a prompt,
    if it does. `tokenize`: whether /tokenize and /detokenize are there. `version`: path and key of its own version.
    `reset`: where its prefix cache is emptied, if it lets one. `environment`: of a server that is started here.
    `refusals`: patterns of the words by which it refuses a request that it cannot serve. `fields`: those of sampling
    that it takes, where it breaks off at another without naming it, and `names`, which of them it calls otherwise.
    `chain`: whether it drafts a chain of that γ, by what it tells beside its version; such drafts it counts as vLLM
    does. None where that was not seen. `names_model`: whether requests say which model is to answer.
    """

    name: str
    completions: Route = Route("/v1/completions")
    chat: Route | None = Route("/v1/chat/completions", prompt="messages", limit="max_completion_tokens")
    asks: Mapping[str, Any] = field(default_factory=dict)
    neutral: Mapping[str, Any] = field(default_factory=dict)
    ids_at: Path = (*CHOICE, "token_ids")
    step_at: Path | None = None
    prompt_ids_at: tuple[Path, ...] = ()
    finish_at: Path = (*CHOICE, "finish_reason")
    renamed: Mapping[str, str] = field(default_factory=dict)
    completion_tokens_at: Path = ("usage", "completion_tokens")
    prompt_tokens_at: Path = ("usage", "prompt_tokens")
    logprobs_at: Path | None = None
    cached_tokens_at: Path = ("usage", "prompt_tokens_details", "cached_tokens")
    ends_with_done: bool = True
    counters: Counters = field(default_factory=Counters)
    told: Mapping[str, Path] = field(default_factory=dict)
    version: tuple[str, str] | None = None
    rates: Literal["prompt_logprobs", "input_top_logprobs"] | None = None
    tokenize: bool = False
    reset: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    fields: frozenset[str] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    chain: Callable[[Mapping[str, Any], int], bool] | None = None
    names_model: bool = True


GREEDY = {"temperature": 0.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
VLLM_COUNTERS = Counters(
    drafts="vllm:spec_decode_num_drafts_total",
    draft_tokens="vllm:spec_decode_num_draft_tokens_total",
    accepted_tokens="vllm:spec_decode_num_accepted_tokens_total",
    per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    prefix_cache_hits="vllm:prefix_cache_hits_total",
    preemptions="vllm:num_preemptions_total",
)
VLLM = Dialect(
    "vllm",
    asks={"return_token_ids": True},
    neutral=NEUTRAL_GREEDY,
    prompt_ids_at=((*CHOICE, "prompt_token_ids"), ("prompt_token_ids",)),
    logprobs_at=(*CHOICE, "logprobs", "token_logprobs"),
    counters=VLLM_COUNTERS,
    version=("/version", "version"),
    rates="prompt_logprobs",
    tokenize=True,
    reset="/reset_prefix_cache?reset_external=true",
    environment={"VLLM_SERVER_DEV_MODE": "1"},  # else it has no such path
    refusals=REFUSALS,
)
META = "meta_info"
SGLANG_FIELDS = frozenset(
    {
        *("min_new_tokens", "ignore_eos", "stop", "stop_token_ids"),
        *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "n"),
        *("stop_regex", "json_schema", "regex", "ebnf", "structural_tag", "logit_bias", "sampling_seed"),
        *("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval", "custom_params"),
    }
)


def drafts_a_chain(told: Mapping[str, Any], gamma: int) -> bool:
    """Whether SGLang drafts one token after the other, γ in each step: neither a tree nor as many as pay."""
    wanted = {"eagle_topk": 1, "num_steps": gamma, "num_draft_tokens": gamma + 1}
    told_so = all(told.get(f"speculative_{name}") == value for name, value in wanted.items())
    return told_so and not told.get("speculative_adaptive")


SGLANG = Dialect(
    "sglang",
    completions=Route("/generate", "input_ids", "max_new_tokens", sampling="sampling_params"),
    chat=None,
    asks={"return_prompt_token_ids": True},
    neutral={**GREEDY, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    ids_at=("output_ids",),
    prompt_ids_at=(("prompt_token_ids",),),
    finish_at=(META, "finish_reason", "type"),
    completion_tokens_at=(META, "completion_tokens"),
    prompt_tokens_at=(META, "prompt_tokens"),
    cached_tokens_at=(META, "cached_tokens"),
    told={
        "drafts": (META, "spec_verify_ct"),
        "draft_tokens": (META, "spec_num_proposed_drafts"),
        "accepted_tokens": (META, "spec_num_correct_drafts"),
        "steps": (META, "spec_correct_drafts_histogram"),
    },
    version=("/server_info", "version"),
    rates="input_top_logprobs",
    reset="/flush_cache?timeout=10",  # waits so long for requests that were given up
    fields=SGLANG_FIELDS,
    names={"min_tokens": "min_new_tokens", "seed": "sampling_seed"},
    chain=drafts_a_chain,
    names_model=False,
)
TENSORRT_LLM = Dialect(
    "trtllm",
    chat=None,
    asks={"detokenize": False},
    neutral={**GREEDY, "top_k": 1, "repetition_penalty": 1.0},
    counters=Counters(
        draft_tokens="trtllm_spec_decode_num_draft_tokens_total",
        accepted_tokens="trtllm_spec_decode_num_accepted_tokens_total",
        path="/prometheus/metrics",
    ),
    version=("/version", "version"),
)
LLAMA_CPP = Dialect(
    "llamacpp",
    completions=Route("/completion", limit="n_predict"),
    chat=None,
    asks={"return_tokens": True, "timings_per_token": True, "cache_prompt": False},
    neutral={**GREEDY, "top_k": 1, "min_p": 0.0, "repeat_penalty": 1.0, "samplers": ["top_k"]},
    ids_at=("tokens",),
    step_at=("timings", "predicted_ms"),
    finish_at=("stop_type",),
    renamed={"limit": "length", "eos": "stop", "word": "stop"},
    completion_tokens_at=("tokens_predicted",),
    prompt_tokens_at=("tokens_evaluated",),
    ends_with_done=False,
    counters=Counters(
        drafts="llamacpp:spec_decode_num_drafts_total",
        draft_tokens="llamacpp:spec_decode_num_draft_tokens_total",
        accepted_tokens="llamacpp:spec_decode_num_accepted_tokens_total",
        per_position="llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
        prefix_cache_hits="llamacpp:prompt_tokens_cached_total",
    ),
    version=("/props", "build_info"),
)
DYNAMO = Dialect(
    "dynamo",
    chat=None,
    asks={"nvext": {"extra_fields": ["completion_token_ids", "engine_data"]}},
    neutral=NEUTRAL_GREEDY,
    ids_at=("nvext", "completion_token_ids"),
    prompt_ids_at=(("nvext", "engine_data", "prompt_token_ids"),),
    counters=VLLM_COUNTERS,
)
DIALECTS = {each.name: each for each in (VLLM, SGLANG, TENSORRT_LLM, LLAMA_CPP, DYNAMO)}


def found_at(event: Any, path: Path) -> Any:
    """What lies at the path; None where it leads nowhere."""
    for step in path:
        try:
            event = event[step]
        except (KeyError, IndexError, TypeError):
            return None
    return event
