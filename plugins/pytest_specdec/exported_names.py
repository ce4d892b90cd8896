"""The names that a shell-script benchmark exports, read as settings: `--specdec-env` takes them as they are.

One table says what each name fills: a setting, a key of the engine's options, or a key of the scenario. Values stand
below the command line and SPECDEC_* variables and above the ini file. What such a script would do silently is said: a
name without effect is a remark, one without meaning a warning, and a contradiction an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.settings import Found, Settings, Texts, parse_switch, whole

DTYPES = {"half": "float16", "float": "float32", "float16": "float16", "float32": "float32", "bfloat16": "bfloat16"}
ARMS = {"speculative": "speculative", "target_ar": "target"}
ENGINES = {"transformers": ("transformers",), "vllm": ("vllm",)}
DEVICE_MAPS = {"shared_all": "auto", "auto": "auto", "same": "cuda:0"}
COMBINED = ("set.count", "set.load", "set.concurrency", "monitor")
"""What several names fill together; other values are taken as they are."""
BATCH_SIZE = 4
MONITOR_SECONDS = 1.0


@dataclass(frozen=True)
class ExportedName:
    """One name: `to` is what it fills, "gamma", "engine_options.quantization", "set.count"; empty if nothing.

    `read` turns its text into a value or raises ValueError; `remedy` tells what to export instead.
    """

    name: str
    to: str
    read: Callable[[str], Any]
    remedy: str

    @property
    def engine(self) -> str | None:
        """The engine that it concerns alone."""
        return "vllm" if self.name.startswith("VLLM_") else "transformers" if self.name == "GPU_STRATEGY" else None


@dataclass
class Exported:
    """What the environment says: `layer` for the settings, and words for the user."""

    layer: dict[str, Found] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def _word(known: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text.lower() not in known:
            raise ValueError(f"it is none of {', '.join(known)}")
        return known[text.lower()]

    return read


def _one(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: (read(text),)


def _number(most: float = math.inf) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = float(text)
        if not (0 < number <= most and math.isfinite(number)):
            raise ValueError("it is not above 0" if most == math.inf else f"it is not above 0 and at most {most:g}")
        return number

    return read


_OPTIONS, _GAMMA = "engine_options", _one(whole(1))
_NO_GPUS = "target and drafter are not given GPUs of their own here: choose the GPUs by CUDA_VISIBLE_DEVICES"
NAMES = tuple(
    ExportedName(*row)
    for row in (
        ("INFERENCE_ENGINE", "engine", _word(ENGINES), "export transformers or vllm"),
        ("INFERENCE_METHOD", "arm", _word(ARMS), "export speculative or target_ar"),
        ("TARGET_MODEL", "target", str, "export a path or a hub id"),
        ("DRAFTER_MODEL", "draft", _one(str), "export a path or a hub id"),
        ("GAMMA_VALUE", "gamma", _GAMMA, "export a number of draft tokens, 1 or more"),
        ("VLLM_ENABLE_SPECULATIVE", "", parse_switch, "export true or false"),
        ("VLLM_NUM_SPECULATIVE_TOKENS", "gamma", _GAMMA, "export a number of draft tokens, 1 or more, or unset it"),
        ("VLLM_TENSOR_PARALLEL_SIZE", f"{_OPTIONS}.tensor_parallel_size", whole(1), "export a number of GPUs"),
        ("VLLM_PIPELINE_PARALLEL_SIZE", f"{_OPTIONS}.pipeline_parallel_size", whole(1), "export a number of stages"),
        (
            "VLLM_GPU_MEMORY_UTILIZATION",
            f"{_OPTIONS}.gpu_memory_utilization",
            _number(1.0),
            "export a share of the GPU's memory, e.g. 0.9",
        ),
        ("VLLM_MAX_MODEL_LEN", "max_model_len", whole(1), "export a number of tokens"),
        ("VLLM_MAX_NUM_SEQS", f"{_OPTIONS}.max_num_seqs", whole(1), "export a number of requests"),
        ("VLLM_MAX_NUM_BATCHED_TOKENS", f"{_OPTIONS}.max_num_batched_tokens", whole(1), "export a number of tokens"),
        ("VLLM_DTYPE", "dtype", _word(DTYPES), "export the dtype by name: ties are counted in its ULPs"),
        ("VLLM_QUANTIZATION", f"{_OPTIONS}.quantization", str, "export vLLM's name of it"),
        ("VLLM_DISABLE_LOG_STATS", "", parse_switch, "export true or false"),
        ("VLLM_USE_V2_BLOCK_MANAGER", "", str, "unset it"),
        ("NUM_PROMPTS", "set.count", whole(0), "export a number of prompts, or 0 for a duration"),
        ("AUTO_RATE", "set.load", _number(), "export requests a second, above 0"),
        ("AUTO_DURATION", "set.load", _number(), "export seconds, above 0"),
        ("GENERATION_LENGTH", "set.max_tokens", whole(1), "export a number of tokens, 1 or more"),
        ("ENABLE_BATCH", "set.concurrency", parse_switch, "export true or false"),
        ("BATCH_SIZE", "set.concurrency", whole(1), "export a number of requests, 1 or more"),
        ("ENABLE_GPU_MONITOR", "monitor", parse_switch, "export true or false"),
        ("GPU_MONITOR_INTERVAL", "monitor", _number(), "export seconds, above 0"),
        ("GPU_STRATEGY", f"{_OPTIONS}.device_map", _word(DEVICE_MAPS), _NO_GPUS),
        ("CUDA_VISIBLE_DEVICES", "", str, "export indices or UUIDs of GPUs"),
    )
)


def settings_with_exported_names(
    command_line: Texts, environment: Mapping[str, str], ini: Texts
) -> tuple[Settings, Exported]:
    """The settings with the exported names among their sources, and what is to be said of those.

    Raises ConfigurationError for all names whose values cannot be read, and for names that contradict each other.
    """
    said = _read_environment(environment)
    choice = {row.to: Found(row.name, said[row.name]) for row in NAMES[:2] if row.name in said}
    chosen = Settings.resolve(command_line, environment, ini, choice)
    asked = said.get("INFERENCE_METHOD") == chosen.arm == "speculative" and "vllm" in chosen.engine
    if asked and not said.get("VLLM_ENABLE_SPECULATIVE"):
        raise ConfigurationError(
            "INFERENCE_METHOD=speculative asks vLLM to speculate, and without VLLM_ENABLE_SPECULATIVE=true it would "
            "decode without: export VLLM_ENABLE_SPECULATIVE=true, or INFERENCE_METHOD=target_ar"
        )
    exported = Exported()
    _fill(exported, said, chosen)
    for part in (_arrival, _batch, _monitor, _warn):
        part(exported, said)
    return Settings.resolve(command_line, environment, ini, exported.layer), exported


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    mistakes = []
    for row in NAMES:
        text = environment.get(row.name, "").strip()
        try:
            values |= {row.name: row.read(text)} if text else {}
        except ValueError as error:
            mistakes.append(f"{row.name}={text}: {error}; {row.remedy}")
    if mistakes:
        raise ConfigurationError("\n".join(mistakes))
    return values


def _fill(exported: Exported, said: Mapping[str, Any], chosen: Settings) -> None:
    """The names whose values are taken as they are; of two for one setting, the later row."""
    for row in [row for row in NAMES if row.name in said]:
        if row.engine is not None and chosen.engine != (row.engine,):
            engines = ", ".join(chosen.engine) or "not named"
            exported.remarks.append(f"{row.name} has no effect: it concerns {row.engine}, and the engine is {engines}")
        elif row.to and row.to not in COMBINED:
            exported.layer[row.to] = Found(row.name, said[row.name])


def _arrival(exported: Exported, said: Mapping[str, Any]) -> None:
    prompts, rate, seconds = (said.get(name) for name in ("NUM_PROMPTS", "AUTO_RATE", "AUTO_DURATION"))
    if prompts:
        exported.layer["set.count"] = Found("NUM_PROMPTS", prompts)
        if rate or seconds:
            exported.remarks.append(f"AUTO_RATE and AUTO_DURATION have no effect: NUM_PROMPTS={prompts} ends the run")
    elif rate is not None and seconds is not None:
        names, load = "AUTO_RATE, AUTO_DURATION", {"kind": "open", "arrivals": "constant", "rate": rate}
        exported.layer["set.load"] = Found(names, {**load, "max_seconds": seconds})
        exported.layer["set.count"] = Found(names, max(1, math.ceil(rate * seconds)))
    elif (prompts, rate, seconds) != (None, None, None):
        raise ConfigurationError(
            "without NUM_PROMPTS, or with 0, requests come at AUTO_RATE a second until AUTO_DURATION seconds are over: "
            "export both, or NUM_PROMPTS=8"
        )


def _batch(exported: Exported, said: Mapping[str, Any]) -> None:
    batch = said.get("ENABLE_BATCH")
    if batch is not None and "set.load" in exported.layer:
        exported.remarks.append("ENABLE_BATCH has no effect: requests that come by the clock are never held back")
    elif batch is not None:
        names = "ENABLE_BATCH, BATCH_SIZE" if batch and "BATCH_SIZE" in said else "ENABLE_BATCH"
        exported.layer["set.concurrency"] = Found(names, said.get("BATCH_SIZE", BATCH_SIZE) if batch else 1)
    if "BATCH_SIZE" in said and not batch:
        exported.remarks.append("BATCH_SIZE has no effect without ENABLE_BATCH=true")


def _monitor(exported: Exported, said: Mapping[str, Any]) -> None:
    if said.get("ENABLE_GPU_MONITOR"):
        names = [name for name in ("ENABLE_GPU_MONITOR", "GPU_MONITOR_INTERVAL") if name in said]
        exported.layer["monitor"] = Found(", ".join(names), said.get("GPU_MONITOR_INTERVAL", MONITOR_SECONDS))
    elif "GPU_MONITOR_INTERVAL" in said:
        exported.remarks.append("GPU_MONITOR_INTERVAL has no effect without ENABLE_GPU_MONITOR=true")


def _warn(exported: Exported, said: Mapping[str, Any]) -> None:
    if said.get("INFERENCE_METHOD") == "speculative" and "DRAFTER_MODEL" not in said:
        exported.warnings.append(
            "INFERENCE_METHOD=speculative without DRAFTER_MODEL: where nothing else names a drafter, drafts are looked "
            "up in the prompt"
        )
    if "VLLM_USE_V2_BLOCK_MANAGER" in said:
        exported.warnings.append(
            "VLLM_USE_V2_BLOCK_MANAGER has no meaning any more: vLLM has one block manager only; unset it"
        )
    if said.get("VLLM_DISABLE_LOG_STATS"):
        exported.warnings.append(
            "VLLM_DISABLE_LOG_STATS=true is not followed: acceptance is counted from these statistics; unset it"
        )


def effective_configuration(settings: Settings, exported: Exported, environment: Mapping[str, str]) -> list[str]:
    """Every setting with its value and the place that it came from, one a line; then what has no effect."""
    rows = settings.rows()
    if devices := environment.get("CUDA_VISIBLE_DEVICES"):
        rows.append(("GPUs of the engines", devices, "CUDA_VISIBLE_DEVICES"))
    width = max(len(name) for name, _, _ in rows)
    lines = [f"  {name:{width}} = {value}  ({place})" for name, value, place in rows]
    return ["speculative decoding: settings, and where each comes from", *lines, *(f"  {r}" for r in exported.remarks)]
