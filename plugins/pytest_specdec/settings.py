"""The settings of a session: command line over environment over ini file over default, one table for all four.

`--specdec-gamma 3,5`, `SPECDEC_GAMMA=3,5` and `specdec_gamma = 3,5` are the same setting. A value that does not parse
is refused with the place it came from; an environment variable that no setting answers to is refused by name. Values
that another layer has read (see exported_names.py) stand between the environment and the ini file.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_specdec.errors import ConfigurationError

NEEDS = ("gpu", "cpu", "multi_gpu", "vllm", "transformers")
ARMS = ("speculative", "target")
SWITCHED = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}


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


def _scenario_keys(text: str) -> dict[str, Any]:
    """What may stand between the braces of a TOML inline table."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        keys = dict(tomllib.loads(f"keys = {{ {text} }}")["keys"])
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"write keys as in a scenario file, with commas between: {error}") from None
    if "name" in keys:
        raise ValueError("a scenario's name is its file's to say")
    return keys


def _arm(text: str) -> str:
    if text not in ARMS:
        raise ValueError(f"{text!r} is none of {', '.join(ARMS)}")
    return text


def switched(text: str) -> bool:
    """Whether a word switches on or off. Raises ValueError for any other."""
    if text.strip().lower() not in SWITCHED:
        raise ValueError(f"write one of {', '.join(SWITCHED)}")
    return SWITCHED[text.strip().lower()]


@dataclass(frozen=True)
class Option:
    """One setting: how its text is read, what it is when nobody sets it, and what `pytest --help` says.

    `switch`: on the command line it is given without a value, and means yes.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    metavar: str
    help: str
    switch: bool = False

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

    @property
    def on_command_line(self) -> dict[str, Any]:
        """How pytest's parser is to take it."""
        return {"action": "store_const", "const": "yes"} if self.switch else {"metavar": self.metavar}


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
    Option(
        "set",
        _scenario_keys,
        {},
        "KEY=VALUE[,…]",
        "keys of the scenario that take the place of the file's, e.g. 'count = 8, max_tokens = 64'",
    ),
    Option("arm", _arm, None, "NAME", "run the gates of one arm only: speculative, or target; default: both"),
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
    Option(
        "env",
        switched,
        False,
        "yes|no",
        "take settings from names that benchmark scripts export, as TARGET_MODEL; print all settings with their origin",
        switch=True,
    ),
)
BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True)
class Found:
    """A value, and the place that said it."""

    place: str
    value: Any


Layer = Mapping[str, Found]
Texts = Mapping[str, str | None]


@dataclass(frozen=True)
class Settings:
    """What the session was told; one attribute for each row of OPTIONS.

    `origins`: the place that each came from, by name; the keys of a table have one each, e.g. "engine_options.seed".
    """

    engine: tuple[str, ...]
    target: str | None
    draft: tuple[str, ...]
    method: tuple[str, ...]
    gamma: tuple[int, ...]
    dtype: str
    max_model_len: int | None
    engine_options: Mapping[str, Any]
    scenario: tuple[str, ...]
    set: Mapping[str, Any]
    arm: str | None
    rounds: int | None
    warmup: int | None
    control: int
    python: str | None
    reference_python: str | None
    load_timeout: float
    timeout: float
    cache: str | None
    require: tuple[str, ...]
    env: bool
    origins: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def resolve(
        cls, command_line: Texts, environment: Mapping[str, str], ini: Texts, exported: Layer | None = None
    ) -> Settings:
        """Read each setting from the first source that has it. Raises ConfigurationError.

        `exported`: values below the environment and above the ini file, by the setting's name or, for the keys of a
        table, as "engine_options.seed". They do not replace a table that is given above them; they fill it up.
        """
        _refuse_unknown(environment)
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for option in OPTIONS:
            above = _first(option, ((option.flag, command_line.get(option.name)), _in(environment, option)))
            below = _first(option, ((f"{option.ini} in the ini file", ini.get(option.name) or None),))
            told = _by_key if isinstance(option.default, Mapping) else _whole
            values[option.name], places = told(option, above, exported or {}, below)
            origins |= places
        return cls(**values, origins=origins)

    def places(self, table: str) -> dict[str, str]:
        """Of a setting that is a table, the place that each of its keys came from."""
        start = f"{table}."
        return {name.removeprefix(start): at for name, at in self.origins.items() if name.startswith(start)}


def _in(environment: Mapping[str, str], option: Option) -> tuple[str, str | None]:
    return option.variable, environment.get(option.variable)


def _first(option: Option, sources: Sequence[tuple[str, str | None]]) -> Found | None:
    """What the first source with a text says."""
    return next((Found(place, _parsed(option, place, text)) for place, text in sources if text is not None), None)


def _whole(option: Option, above: Found | None, exported: Layer, below: Found | None) -> tuple[Any, dict[str, str]]:
    found = above or exported.get(option.name) or below or Found("default", option.default)
    return found.value, {option.name: found.place}


def _by_key(option: Option, above: Found | None, exported: Layer, below: Found | None) -> tuple[Any, dict[str, str]]:
    """A table: what is exported lies over the ini file's keys and under those of the command line or environment."""
    start = f"{option.name}."
    filled = {name.removeprefix(start): found for name, found in exported.items() if name.startswith(start)}
    keys = {**filled, **_keys(above)} if above else {**_keys(below), **filled}
    return {key: found.value for key, found in keys.items()}, {start + key: found.place for key, found in keys.items()}


def _keys(table: Found | None) -> dict[str, Found]:
    return {key: replace(table, value=value) for key, value in table.value.items()} if table else {}


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
