"""The settings of a session: command line over environment over ini file over default, one table for all four.

`--specdec-gamma 3,5`, `SPECDEC_GAMMA=3,5` and `specdec_gamma = 3,5` are the same setting. A value that does not parse
is refused with the place it came from; an environment variable that no setting answers to is refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pytest_specdec.errors import ConfigurationError

NEEDS = ("gpu", "cpu", "multi_gpu", "vllm", "transformers")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("must not be negative")
    return number


def _gammas(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in _names(text))


def _needs(text: str) -> tuple[str, ...]:
    names = _names(text)
    unknown = [name for name in names if name not in NEEDS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(NEEDS)}")
    return names


def _seconds(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise ValueError("must be more than 0 seconds")
    return number


def _engine_options(text: str) -> dict[str, Any]:
    import json

    options = json.loads(text)
    if not isinstance(options, dict):
        raise ValueError("must be a JSON object, e.g. '{\"gpu_memory_utilization\": 0.8}'")
    return options


@dataclass(frozen=True)
class Option:
    """One setting: how its text is read, what it is when nobody sets it, and what `pytest --help` says."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--specdec-{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"SPECDEC_{self.name.upper()}"

    @property
    def ini(self) -> str:
        """Its name in pytest's ini file."""
        return f"specdec_{self.name}"


OPTIONS = (
    Option(
        "engine",
        _names,
        (),
        "NAME[,NAME]",
        "backends of the fixtures spec_engine and ar_engine: vllm, transformers, fake, or a plugin's",
    ),
    Option("target", str, None, "MODEL", "target model: a path, a hub id, or a reference such as constructed:tiny"),
    Option("draft", _names, (), "MODEL[,MODEL]", "draft models; with none, drafting is by lookup in the prompt"),
    Option(
        "method",
        _names,
        (),
        "NAME[,NAME]",
        "speculation methods under the engine's own names, e.g. draft_model, ngram, eagle, prompt_lookup",
    ),
    Option("gamma", _gammas, (3,), "N[,N]", "draft tokens a round (vLLM: num_speculative_tokens); default 3"),
    Option("dtype", str, "bfloat16", "NAME", "dtype of weights and activations; default bfloat16"),
    Option("max_model_len", _positive, None, "TOKENS", "longest prompt plus output; default: the model's own"),
    Option("engine_options", _engine_options, {}, "JSON", "constructor arguments passed through to the engine"),
    Option("scenario", _names, (), "FILE[,FILE]", "scenario files or folders of them"),
    Option("rounds", _positive, None, "N", "timed rounds; default: the scenario's"),
    Option("warmup", _natural, None, "N", "untimed rounds before them; default: the scenario's"),
    Option(
        "control",
        _positive,
        8,
        "PROMPTS",
        "prompts that the target also decodes one at a time for the noise floor; default 8",
    ),
    Option("python", str, None, "PATH", "interpreter of the engines' workers; default: this one"),
    Option(
        "reference_python", str, None, "PATH", "another interpreter for the target-only engine, to compare two versions"
    ),
    Option("load_timeout", _seconds, 900.0, "SECONDS", "limit for loading an engine; default 900"),
    Option("timeout", _seconds, 600.0, "SECONDS", "limit for one call to an engine; default 600"),
    Option("cache", str, None, "FOLDER", "where made models are kept; default: the user's cache folder"),
    Option(
        "require",
        _needs,
        (),
        "NAME[,NAME]",
        "turn skips for want of these into failures: gpu, cpu, multi_gpu, or an engine's name",
    ),
    Option("repro", str, None, "FOLDER", "for a red gate, write a bug report: a script that stands alone, made small"),
    Option("repro_seconds", _seconds, 120.0, "SECONDS", "limit for making a bug report's request small; default 120"),
    Option("report", str, None, "FILE", "write a report of this session, red gates too: FILE.html, .md, .csv or .json"),
)
BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True)
class Settings:
    """What the session was told; one attribute for each row of OPTIONS."""

    engine: tuple[str, ...]
    target: str | None
    draft: tuple[str, ...]
    method: tuple[str, ...]
    gamma: tuple[int, ...]
    dtype: str
    max_model_len: int | None
    engine_options: Mapping[str, Any]
    scenario: tuple[str, ...]
    rounds: int | None
    warmup: int | None
    control: int
    python: str | None
    reference_python: str | None
    load_timeout: float
    timeout: float
    cache: str | None
    require: tuple[str, ...]
    repro: str | None
    repro_seconds: float
    report: str | None

    @classmethod
    def resolve(
        cls, command_line: Mapping[str, str | None], environment: Mapping[str, str], ini: Mapping[str, str | None]
    ) -> Settings:
        """Read each setting from the first source that has it. Raises ConfigurationError."""
        _refuse_unknown(environment)
        return cls(**{name: _value(BY_NAME[name], command_line, environment, ini) for name in _field_names(cls)})


def _field_names(cls: type) -> list[str]:
    return [field.name for field in fields(cls)]


def _value(
    option: Option,
    command_line: Mapping[str, str | None],
    environment: Mapping[str, str],
    ini: Mapping[str, str | None],
) -> Any:
    sources = (
        (option.flag, command_line.get(option.name)),
        (option.variable, environment.get(option.variable)),
        (f"{option.ini} in the ini file", ini.get(option.name) or None),
    )
    for place, text in sources:
        if text is not None:
            return _parsed(option, place, text)
    return option.default


def _parsed(option: Option, place: str, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{place}: cannot read {text!r} as {option.metavar} ({error}); {option.help}"
        ) from None


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = [option.variable for option in OPTIONS]
    for name in environment:
        if name.startswith("SPECDEC_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigurationError(f"the environment variable {name} is no setting of pytest-specdec; {hint}")
