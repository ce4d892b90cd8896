"""The command line of a server that is started here, with speculation and without.

Speculation is set apart from the rest, so that the target alone is the same command without it. For vLLM it is one
option, `--speculative-config`, built from method, γ and draft; a foreign command lists its own under `speculation`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_specdec.engines.server.dialects import VLLM
from pytest_specdec.engines.server.plan import ServerPlan
from pytest_specdec.engines.spec import EngineSpec

VLLM_SERVER = ("-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--host", "{host}", "--port", "{port}")
AS_IT_IS_WRITTEN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}


def command_line(plan: ServerPlan, spec: EngineSpec, places: Mapping[str, Any], on_cpu: bool) -> list[str]:
    """The command with its placeholders filled: {model}, {draft}, {host}, {port}, {metrics_port}, {method}, {gamma}."""
    given = plan.said.get("command")
    parts = list(given) if given is not None else [spec.python or sys.executable, *VLLM_SERVER]
    if plan.dialect is VLLM:
        parts += flags(_vllm_options(plan, spec, given is None, on_cpu), parts)
    if spec.speculates:
        parts += _speculation(plan, spec, places)
    return [filled(part, places) for part in parts]


def _vllm_options(plan: ServerPlan, spec: EngineSpec, ours: bool, on_cpu: bool) -> dict[str, Any]:
    """vLLM's own options: greedy decoding that repeats itself, raw logits where the target alone is rated."""
    options: dict[str, Any] = {} if spec.speculates else {"logprobs_mode": "raw_logits"}
    if ours:
        options |= {"dtype": spec.dtype, "seed": 0, "enable_prefix_caching": False}
        options |= {"max_model_len": spec.max_model_len} if spec.max_model_len else {}
        options |= {"enforce_eager": True} if on_cpu else {}
        options |= {"chat_template": AS_IT_IS_WRITTEN} if plan.by_chat else {}
    return options | dict(spec.options)


def flags(options: Mapping[str, Any], said: Sequence[str]) -> list[str]:
    """Options as a command line has them, less those that it has already."""
    return [part for name, value in options.items() for part in _flag(name, value, said)]


def _flag(name: str, value: Any, said: Sequence[str]) -> Iterator[str]:
    flag = f"--{name.replace('_', '-')}"
    if any(part == flag or part.startswith(f"{flag}=") for part in said):
        return
    if isinstance(value, bool):
        yield flag if value else f"--no-{name.replace('_', '-')}"
    elif isinstance(value, (list, tuple)):
        yield from (flag, *map(str, value))
    else:
        yield from (flag, json.dumps(value) if isinstance(value, Mapping) else str(value))


def _speculation(plan: ServerPlan, spec: EngineSpec, places: Mapping[str, Any]) -> list[str]:
    if "speculation" in plan.said:
        return list(plan.said["speculation"])
    if plan.dialect is not VLLM:
        return []
    drafting: dict[str, Any] = {"method": spec.method, "num_speculative_tokens": spec.gamma}
    drafting |= {"model": places["draft"]} if places["draft"] else {}
    return ["--speculative-config", json.dumps({**drafting, **spec.speculative_options})]


def filled(part: str, places: Mapping[str, Any]) -> str:
    """The part with placeholders replaced; other braces, as in JSON, stay."""
    for name, value in places.items():
        part = part.replace("{" + name + "}", str(value))
    return part
