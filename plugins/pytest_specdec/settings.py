"""The settings of a session: command line over environment over ini file over default, one table for all four.

A value that does not parse is refused with the place it came from; an environment variable that no setting answers to
is refused by name. Values that another layer has read (see exported_names.py) stand between environment and ini file.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from pytest_specdec.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from pytest_specdec.thresholds import Threshold

NEEDS = ("gpu", "cpu", "multi_gpu", "vllm", "transformers")
FAIL_ON = ("missing", "inconclusive")
LATEST = "latest"
ARMS = ("speculative", "target")
DTYPES = ("bfloat16", "float16", "float32")
SWITCHED = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def one_of(*known: str) -> Callable[[str], str]:
    """How one of these words is read; a reader raises ValueError that says what is wrong."""

    def read(text: str) -> str:
        if text not in known:
            hint = did_you_mean(text, known, "none is near")
            raise ValueError(f"{text!r} is none of {', '.join(known)}; {hint}")
        return text

    return read


def _some_of(*known: str) -> Callable[[str], tuple[str, ...]]:
    return lambda text: tuple(map(one_of(*known), _names(text)))


def whole(least: int) -> Callable[[str], int]:
    """How a whole number of `least` or more is read."""

    def read(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(f"must be at least {least}")
        return number

    return read


_positive, _natural = whole(1), whole(0)


def parse_gammas(text: str) -> tuple[int, ...]:
    """Numbers with commas between. Raises ValueError."""
    if not (found := tuple(_positive(part) for part in _names(text))):
        raise ValueError("name one or more")
    return found


def _thresholds(text: str) -> tuple[Threshold, ...]:
    from pytest_specdec.thresholds import Threshold

    return tuple(Threshold.parse(written) for written in _names(text))


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError("must be more than 0 seconds, and finite")
    return number


def _engine_options(text: str) -> dict[str, Any]:
    import json

    options = json.loads(text)
    if not isinstance(options, dict):
        raise ValueError("must be a JSON object, e.g. '{\"gpu_memory_utilization\": 0.8}'")
    return options


def _scenario_keys(text: str) -> dict[str, Any]:
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


def parse_switch(text: str) -> bool:
    """Whether a word switches on or off. Raises ValueError for any other."""
    if text.strip().lower() not in SWITCHED:
        raise ValueError(f"write one of {', '.join(SWITCHED)}")
    return SWITCHED[text.strip().lower()]


@dataclass(frozen=True)
class Option:
    """One setting: what `pytest --help` says, how its text is read, and what it is when nobody sets it.

    `argparse`: what its option on the command line has beyond one value; one that may be repeated is a list by commas.
    `switch`: on the command line it is given without a value, and means yes.
    """

    name: str
    metavar: str
    help: str
    parse: Callable[[str], Any]
    default: Any
    argparse: Mapping[str, Any] = field(default_factory=dict)
    switch: bool = False

    @property
    def words(self) -> str:
        """What `pytest --help` says of it, with the default where it has one."""
        return f"{self.help}; default {_told(self.default)}" if self.default else self.help

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
        return {"action": "store_const", "const": "yes"} if self.switch else {"metavar": self.metavar, **self.argparse}

    def read(self, place: str, given: str | Sequence[str]) -> dict[str, Found]:
        """What a place says, by the setting's name; of a table each of its keys, as "engine_options.seed".

        `given`: a text, or one for each time that the option was repeated. Raises ConfigurationError.
        """
        text = given if isinstance(given, str) else ",".join(given)
        try:
            value = self.parse(text)
        except ValueError as error:
            raise ConfigurationError(
                f"{place}: cannot read {text!r} as {self.metavar} ({error}); {self.help}"
            ) from None
        if isinstance(self.default, Mapping):
            return {f"{self.name}.{key}": Found(place, each) for key, each in value.items()}
        return {self.name: Found(place, value)}


def _option(metavar: str, help: str, parse: Callable[[str], Any] = str, default: Any = None, **more: Any) -> Any:
    """The field of a setting; the option's name is the field's."""
    return field(metadata={"option": Option("", metavar, help, parse, default, **more)})


def _list(metavar: str, help: str) -> Any:
    return _option(metavar, help, _names, ())


def _choice(help: str, default: str, *others: str) -> Any:
    return _option("NAME", help, one_of(default, *others), default)


def _switch(help: str) -> Any:
    return _option("yes|no", help, parse_switch, False, switch=True)


@dataclass(frozen=True)
class Found:
    """A value, and the place that said it."""

    place: str
    value: Any


Texts = Mapping[str, str | None]


@dataclass(frozen=True)
class Settings:
    """What the session was told: each setting with its type, how it is read, its default, and its words for `--help`.

    `origins`: the place that each came from, by name; the keys of a table have one each, e.g. "engine_options.seed".
    """

    engine: tuple[str, ...] = _list(
        "NAME[,NAME]", "backends of the fixtures spec_engine and ar_engine: vllm, transformers, fake, or a plugin's"
    )
    target: str | None = _option("MODEL", "target model: a path, a hub id, or a reference such as constructed:tiny")
    draft: tuple[str, ...] = _list(
        "MODEL[,MODEL]", "draft models; with none, drafting is by lookup in the text, unless a method needs none"
    )
    method: tuple[str, ...] = _list(
        "NAME[,NAME]",
        "speculation methods, as `pytest-specdec methods` names them; default: the one that the draft is made for",
    )
    gamma: tuple[int, ...] = _option(
        "N[,N]", "draft tokens a step (vLLM: num_speculative_tokens); default: the head's own, or 3", parse_gammas, ()
    )
    dtype: str | None = _option(
        "NAME",
        "dtype of weights and activations; default bfloat16, or float32 on a processor that only emulates bfloat16",
        one_of(*DTYPES),
    )
    max_model_len: int | None = _option("TOKENS", "longest prompt plus output; default: the model's own", _positive)
    engine_options: Mapping[str, Any] = _option(
        "JSON", "constructor arguments passed through to the engine", _engine_options, {}
    )
    scenario: tuple[str, ...] = _list("FILE[,FILE]", "scenario files or folders of them")
    set: Mapping[str, Any] = _option(
        "KEY=VALUE[,…]",
        "keys of the scenario that take the place of the file's, e.g. 'count = 8, max_tokens = 64'",
        _scenario_keys,
        {},
    )
    arm: str | None = _option(
        "NAME", "run the gates of one arm only: speculative, or target; default: both", one_of(*ARMS)
    )
    rounds: int | None = _option(
        "N",
        "exactly so many timed rounds; default: the scenario's at least, and more until tokens/s are known well enough",
        _positive,
    )
    warmup: int | None = _option(
        "N",
        "exactly so many untimed rounds before; default: the scenario's at least, and more until two take equally long",
        _natural,
    )
    time_budget: float = _option(
        "SECONDS", "timed rounds of one test, both arms together, beyond the fewest", _seconds, 20.0
    )
    monitor: float | None = _option(
        "SECONDS", "sample the engine's GPUs so often, for the report; default: never", _seconds
    )
    series: str = _option("FOLDER", "where those samples are kept", str, ".benchmarks/series")
    calibration: int = _option(
        "PROMPTS", "prompts that the target also decodes one at a time for the noise floor", _positive, 8
    )
    rate: str = _choice(
        "of the target's own output, what it rates: sample, about 2,000 tokens; or all", "sample", "all"
    )
    python: str | None = _option("PATH", "interpreter of the engines' workers; default: this one")
    reference_python: str | None = _option(
        "PATH", "another interpreter for the target-only engine, to compare two versions"
    )
    server_url: str | None = _option("URL", "endpoint of the fixture openai_server, e.g. http://127.0.0.1:8000")
    server_protocol: str | None = _option("NAME", "what it speaks: vllm (default), sglang, trtllm, llamacpp or dynamo")
    server_reference: str | None = _option(
        "NAME or URL",
        "what a served engine is compared with: vllm or transformers in a worker, or the URL of a target-only endpoint",
    )
    load_timeout: float = _option("SECONDS", "limit for loading an engine", _seconds, 900.0)
    timeout: float = _option("SECONDS", "limit for one call to an engine", _seconds, 600.0)
    cache: str | None = _option("FOLDER", "where made models are kept; default: the user's cache folder")
    preset: str = _choice("quick, or thorough for tests marked so too", "quick", "thorough")
    require: tuple[str, ...] = _option(
        "NAME[,NAME]",
        "turn skips for want of these into failures: gpu, cpu, multi_gpu, or an engine's name; "
        "supported: what an engine refuses is one, too",
        _some_of(*NEEDS, "supported"),
        (),
    )
    compare: str | None = _option(
        "latest|ID|FILE",
        "show changes since a saved run: its number, a file, or with no value the latest with the same measurement",
        argparse={"nargs": "?", "const": LATEST},
    )
    fail: tuple[Threshold, ...] = _option(
        "METRIC:MOST",
        "fail a test whose figure is worse than its baseline run by more, e.g. ttft_p99:10ms or 5%; may be repeated",
        _thresholds,
        (),
        argparse={"action": "append"},
    )
    fail_on: tuple[str, ...] = _option(
        "NAME[,NAME]",
        "fail a test also where its baseline run or figure is missing, or its rounds are inconclusive",
        _some_of(*FAIL_ON),
        (),
    )
    repro: str | None = _option("FOLDER", "for a red gate, write a bug report: a script that stands alone, made small")
    repro_seconds: float = _option("SECONDS", "limit for making a bug report's request small", _seconds, 120.0)
    table: str = _choice(
        "ours: of gates the table of verdicts alone, or both: pytest-benchmark's table too", "ours", "both"
    )
    report: str | None = _option("FILE", "write a report of this session, red gates too: FILE.html, .md, .csv or .json")
    plan: bool = _switch("say which gates there are, on which engines and for how long, and stop")
    resume: bool = _switch(
        "skip a gate that is green in a saved run: of the same engine, versions, hardware, scenario and settings"
    )
    allow_empty: bool = _switch("let a session pass in CI (environment CI) though all of its tests were skipped")
    env: bool = _switch(
        "take settings from names that benchmark scripts export, as TARGET_MODEL; print all settings with their origin"
    )
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def baseline(self) -> str | None:
        """The baseline run: the one that is named, or the latest where a gate needs one; None: nothing is compared."""
        return self.compare or (LATEST if self.fail or self.fail_on else None)

    @classmethod
    def resolve(
        cls, command_line: Texts, environment: Mapping[str, str], ini: Texts, exported: Mapping[str, Found] = {}
    ) -> Settings:
        """Read each setting from the first source that has it. Raises ConfigurationError.

        `exported`: values below the environment and above the ini file, by the setting's name or, for the keys of a
        table, as "engine_options.seed". They do not replace a table that is given above them; they fill it up.
        """
        _refuse_unknown(environment)
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for option in OPTIONS:
            sources = (
                (option.flag, command_line.get(option.name)),
                (option.variable, environment.get(option.variable) or None),
            )
            above = next((option.read(place, text) for place, text in sources if text is not None), None)
            below = option.read(f"{option.ini} in the ini file", text) if (text := ini.get(option.name)) else {}
            filled = {name: each for name, each in exported.items() if name.partition(".")[0] == option.name}
            found = {**below, **filled} if above is None else {**filled, **above}
            if isinstance(option.default, Mapping):
                values[option.name] = {name.partition(".")[2]: each.value for name, each in found.items()}
            else:
                found = found or {option.name: Found("default", option.default)}
                values[option.name] = found[option.name].value
            origins |= {name: each.place for name, each in found.items()}
        return cls(**values, origins=origins)

    def rows(self) -> list[tuple[str, str, str]]:
        """Every setting, and each key of one that is a table: its name, its value in words, the place it came from."""
        parts = {name: name.partition(".") for name in self.origins}
        values = {
            name: getattr(self, setting)[key] if key else getattr(self, setting)
            for name, (setting, _, key) in parts.items()
        }
        return [(name, _told(values[name]), place) for name, place in self.origins.items()]

    def differing(self) -> str:
        """What differs from the defaults, in one line: each with its value and its place; empty if nothing does."""
        defaults = {option.name: _told(option.default) for option in OPTIONS}
        differ = [row for row in self.rows() if row[1] != defaults.get(row[0])]
        return "; ".join(
            f"{name} = {value} ({place.partition(' in the ')[2] or place})" for name, value, place in differ
        )

    def places(self, table: str) -> dict[str, str]:
        """Of a setting that is a table, the place that each of its keys came from."""
        start = f"{table}."
        return {name.removeprefix(start): at for name, at in self.origins.items() if name.startswith(start)}


BY_NAME = {
    each.name: replace(each.metadata["option"], name=each.name)
    for each in fields(Settings)
    if "option" in each.metadata
}
OPTIONS = tuple(BY_NAME.values())


def _told(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    return ", ".join(map(str, value)) or "-" if isinstance(value, tuple) else str(value)


NO_SETTINGS = ("SPECDEC_WORKLOADS",)
"""Variables that are no settings and may be set all the same: public workload files for this project's tests."""


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = [option.variable for option in OPTIONS]
    for name in environment:
        if name.startswith("SPECDEC_") and name not in (*known, *NO_SETTINGS):
            hint = did_you_mean(name, known, f"known: {', '.join(known)}")
            raise ConfigurationError(f"unknown option {name} in the environment; {hint}")
