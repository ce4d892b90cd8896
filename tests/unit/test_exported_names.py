"""What benchmark scripts export fills the settings; what such a script would do silently is said or refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.exported_names import (
    NAMES,
    Exported,
    ExportedName,
    effective_configuration,
    settings_with_exported_names,
)
from pytest_specdec.settings import BY_NAME, Settings
from pytest_specdec.workloads.scenario import Scenario

DOCS = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text("utf-8")
VLLM = {"INFERENCE_ENGINE": "vllm"}
SPECULATIVE = {**VLLM, "INFERENCE_METHOD": "speculative", "VLLM_ENABLE_SPECULATIVE": "true", "DRAFTER_MODEL": "d"}


def settings(environment: dict[str, str], command_line: dict[str, str] | None = None, **ini: str) -> Settings:
    return settings_with_exported_names(command_line or {}, environment, ini)[0]


def read_exported(environment: dict[str, str]) -> Exported:
    return settings_with_exported_names({}, environment, {})[1]


def test_the_names_of_a_speculative_run_fill_the_settings() -> None:
    """Engine, arm, models, γ, context and dtype; the dtype by its own name."""
    names = {"TARGET_MODEL": "t", "VLLM_MAX_MODEL_LEN": "4096", "VLLM_DTYPE": "half", "GAMMA_VALUE": "4"}
    found = settings(SPECULATIVE | names)
    assert (found.engine, found.arm, found.target, found.draft) == (("vllm",), "speculative", "t", ("d",))
    assert (found.gamma, found.max_model_len, found.dtype) == ((4,), 4096, "float16")


@pytest.mark.parametrize(
    ("name", "text", "option", "value"),
    [
        ("VLLM_TENSOR_PARALLEL_SIZE", "8", "tensor_parallel_size", 8),
        ("VLLM_PIPELINE_PARALLEL_SIZE", "2", "pipeline_parallel_size", 2),
        ("VLLM_GPU_MEMORY_UTILIZATION", "0.9", "gpu_memory_utilization", 0.9),
        ("VLLM_MAX_NUM_SEQS", "128", "max_num_seqs", 128),
        ("VLLM_MAX_NUM_BATCHED_TOKENS", "8192", "max_num_batched_tokens", 8192),
        ("VLLM_QUANTIZATION", "awq", "quantization", "awq"),
    ],
)
def test_what_is_vllms_goes_to_its_constructor(name: str, text: str, option: str, value: Any) -> None:
    """Under vLLM's own names; and nowhere else when another engine runs, which is said."""
    assert settings(VLLM | {name: text}).engine_options == {option: value}
    other, said = settings_with_exported_names({}, {"INFERENCE_ENGINE": "transformers", name: text}, {})
    assert other.engine_options == {}
    assert said.remarks == [f"{name} has no effect: it concerns vllm, and the engine is transformers"]


@pytest.mark.parametrize(
    ("names", "gamma"),
    [
        ({"GAMMA_VALUE": "4"}, (4,)),
        ({"VLLM_NUM_SPECULATIVE_TOKENS": "5"}, (5,)),
        ({"GAMMA_VALUE": "4", "VLLM_NUM_SPECULATIVE_TOKENS": "5"}, (5,)),
        ({"GAMMA_VALUE": "4", "VLLM_NUM_SPECULATIVE_TOKENS": ""}, (4,)),
    ],
)
def test_vllms_number_of_draft_tokens_falls_back_to_gamma(names: dict[str, str], gamma: tuple[int, ...]) -> None:
    """An empty variable is an unset one."""
    assert settings(VLLM | names).gamma == gamma


def test_transformers_takes_gamma_alone() -> None:
    """The other name is vLLM's."""
    names = {"INFERENCE_ENGINE": "transformers", "GAMMA_VALUE": "4", "VLLM_NUM_SPECULATIVE_TOKENS": "5"}
    assert settings(names).gamma == (4,)


@pytest.mark.parametrize(("strategy", "place"), [("shared_all", "auto"), ("auto", "auto"), ("same", "cuda:0")])
def test_a_gpu_strategy_is_a_device_map_of_transformers(strategy: str, place: str) -> None:
    """As `from_pretrained` takes it."""
    names = {"INFERENCE_ENGINE": "transformers", "GPU_STRATEGY": strategy}
    assert settings(names).engine_options == {"device_map": place}


def test_a_number_of_prompts_ends_the_run() -> None:
    """Then rate and duration have no effect, and that is said."""
    found, said = settings_with_exported_names(
        {}, {"NUM_PROMPTS": "16", "AUTO_RATE": "1", "AUTO_DURATION": "300", "GENERATION_LENGTH": "100"}, {}
    )
    assert found.set == {"count": 16, "max_tokens": 100}
    assert said.remarks == ["AUTO_RATE and AUTO_DURATION have no effect: NUM_PROMPTS=16 ends the run"]


@pytest.mark.parametrize("prompts", [{}, {"NUM_PROMPTS": "0"}])
def test_without_one_requests_come_by_the_clock_until_the_duration_ends(prompts: dict[str, str]) -> None:
    """As many prompts as fall due in that time: the first at 0 s, the last before the end."""
    found = settings(prompts | {"AUTO_RATE": "2", "AUTO_DURATION": "4.1"})
    load = {"kind": "open", "arrivals": "constant", "rate": 2.0, "max_seconds": 4.1}
    assert found.set == {"load": load, "count": 9}


@pytest.mark.parametrize("names", [{"NUM_PROMPTS": "0"}, {"AUTO_RATE": "1"}, {"AUTO_DURATION": "9"}])
def test_a_duration_needs_a_rate(names: dict[str, str]) -> None:
    """A run without an end, or without requests, is refused with the remedy."""
    with pytest.raises(ConfigurationError, match="export both, or NUM_PROMPTS=8"):
        settings(names)


@pytest.mark.parametrize(("names", "concurrency"), [({}, 4), ({"BATCH_SIZE": "8"}, 8), ({"ENABLE_BATCH": "false"}, 1)])
def test_batching_is_concurrency(names: dict[str, str], concurrency: int) -> None:
    """Off is one request at a time."""
    assert settings({"ENABLE_BATCH": "true"} | names).set == {"concurrency": concurrency}


def test_batching_has_no_say_over_requests_that_come_by_the_clock() -> None:
    """It would be a label for something that did not occur."""
    found, said = settings_with_exported_names({}, {"ENABLE_BATCH": "true", "AUTO_RATE": "1", "AUTO_DURATION": "3"}, {})
    assert "concurrency" not in found.set
    assert said.remarks == ["ENABLE_BATCH has no effect: requests that come by the clock are never held back"]


def test_the_command_line_and_own_variables_stand_above_and_the_ini_file_below() -> None:
    """For a single value, and for each key of a table."""
    names = VLLM | {"GAMMA_VALUE": "4", "VLLM_MAX_NUM_SEQS": "128", "VLLM_TENSOR_PARALLEL_SIZE": "8"}
    assert settings(names, {"gamma": "2"}).gamma == (2,)
    assert settings(names | {"SPECDEC_GAMMA": "3"}).gamma == (3,)
    assert settings(names, gamma="9").gamma == (4,)
    above = settings(names, {"engine_options": '{"max_num_seqs": 1}'})
    assert above.engine_options == {"max_num_seqs": 1, "tensor_parallel_size": 8}
    assert above.places("engine_options")["max_num_seqs"] == "--specdec-engine-options"
    below = settings(names, engine_options='{"max_num_seqs": 1, "seed": 2}')
    assert below.engine_options == {"max_num_seqs": 128, "seed": 2, "tensor_parallel_size": 8}


@pytest.mark.parametrize("enabled", [{}, {"VLLM_ENABLE_SPECULATIVE": "false"}, {"VLLM_ENABLE_SPECULATIVE": ""}])
def test_speculation_asked_for_and_not_enabled_is_refused(enabled: dict[str, str]) -> None:
    """It would be decoded without, under the name of speculation."""
    names = {**VLLM, "INFERENCE_METHOD": "speculative", **enabled}
    with pytest.raises(ConfigurationError, match="export VLLM_ENABLE_SPECULATIVE=true, or INFERENCE_METHOD=target_ar"):
        settings(names)
    assert settings(names | {"INFERENCE_METHOD": "target_ar"}).arm == "target"
    assert settings(names | {"INFERENCE_ENGINE": "transformers"}).arm == "speculative"


def test_what_has_no_meaning_any_more_is_warned_of() -> None:
    """The block manager; and statistics that the acceptance rate is counted from are kept."""
    names = SPECULATIVE | {"VLLM_USE_V2_BLOCK_MANAGER": "true", "VLLM_DISABLE_LOG_STATS": "true"}
    warnings = read_exported(names).warnings
    assert [warning.partition(" ")[0] for warning in warnings] == [
        "VLLM_USE_V2_BLOCK_MANAGER",
        "VLLM_DISABLE_LOG_STATS=true",
    ]
    assert "no meaning any more" in warnings[0]
    assert settings(names).engine_options == {}
    assert read_exported(SPECULATIVE).warnings == []


def test_speculation_without_a_drafter_is_warned_of() -> None:
    """Drafts are then looked up in the prompt, which the scripts do not do."""
    names = {name: text for name, text in SPECULATIVE.items() if name != "DRAFTER_MODEL"}
    (warning,) = read_exported(names).warnings
    assert "without DRAFTER_MODEL" in warning


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("INFERENCE_ENGINE", "sglang"),
        ("INFERENCE_METHOD", "both"),
        ("GAMMA_VALUE", "0"),
        ("VLLM_NUM_SPECULATIVE_TOKENS", "five"),
        ("VLLM_ENABLE_SPECULATIVE", "maybe"),
        ("VLLM_GPU_MEMORY_UTILIZATION", "90"),
        ("VLLM_DTYPE", "auto"),
        ("NUM_PROMPTS", "-1"),
        ("AUTO_RATE", "0"),
        ("AUTO_DURATION", "inf"),
        ("GPU_STRATEGY", "separate"),
        ("GPU_MONITOR_INTERVAL", "nan"),
    ],
)
def test_a_bad_value_names_the_variable_the_value_and_the_remedy(name: str, text: str) -> None:
    """All bad values at once."""
    row = next(row for row in NAMES if row.name == name)
    with pytest.raises(ConfigurationError) as error:
        settings({name: text, "BATCH_SIZE": "none"})
    told = str(error.value)
    assert f"{name}={text}: " in told
    assert row.remedy in told
    assert "BATCH_SIZE=none: " in told


def test_every_value_is_told_with_its_place() -> None:
    """One line a setting, a key of a table has one of its own, and what has no effect comes last."""
    found, said = settings_with_exported_names(
        {"target": "t"}, VLLM | {"VLLM_MAX_NUM_SEQS": "8", "NUM_PROMPTS": "2", "BATCH_SIZE": "2"}, {"rounds": "5"}
    )
    lines = effective_configuration(found, said, {"CUDA_VISIBLE_DEVICES": "2,3"})
    told = [re.sub(r" +", " ", line.strip()) for line in lines]
    assert {
        "engine = vllm (INFERENCE_ENGINE)",
        "target = t (--specdec-target)",
        "engine_options.max_num_seqs = 8 (VLLM_MAX_NUM_SEQS)",
        "set.count = 2 (NUM_PROMPTS)",
        "rounds = 5 (specdec_rounds in the ini file)",
        "time_budget = 20.0 (default)",
        "GPUs of the engines = 2,3 (CUDA_VISIBLE_DEVICES)",
    } <= set(told)
    assert told[-1] == "BATCH_SIZE has no effect without ENABLE_BATCH=true"


def test_every_name_fills_something_that_exists() -> None:
    """A setting, or a key of a scenario."""
    filled = [row.to.partition(".") for row in NAMES if row.to]
    assert {setting for setting, _, _ in filled} <= set(BY_NAME)
    assert {key for setting, _, key in filled if setting == "set"} <= set(Scenario.model_fields)


def option_and_key(row: ExportedName) -> tuple[str, str]:
    """How the page names what a row of the table fills: the option, and the key of the scenario."""
    setting, _, key = row.to.partition(".")
    option = f"`--specdec-{setting.replace('_', '-')}`" if setting else "none"
    return (f"{option} `{key}`" if setting == "engine_options" else option, f"`{key}`" if setting == "set" else "")


def test_the_page_tells_of_every_name_and_of_no_other() -> None:
    """docs/migrating.md names the option and the scenario's key that the table has."""
    rows = re.findall(r"^\| `([A-Z_0-9]+)` \| ([^|]*) \| ([^|]*) \|", DOCS, re.MULTILINE)
    told = {name: (option.strip(), key.strip()) for name, option, key in rows}
    assert told == {row.name: option_and_key(row) for row in NAMES}
