"""The settings of a session: command line over environment over ini file over default, one table for all four.

`--specdec-gamma 3,5`, `SPECDEC_GAMMA=3,5` and `specdec_gamma = 3,5` are the same setting. A value that does not parse
is refused with the place it came from; an environment variable that no setting answers to is refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pytest_specdec.errors import ConfigurationError

if TYPE_CHECKING:
    from pytest_specdec.thresholds import Threshold

PRESETS = ("quick", "thorough")
NEEDS = ("gpu", "cpu", "multi_gpu", "vllm", "transformers")
FAIL_ON = ("missing", "inconclusive")
LATEST = "latest"


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


def _thresholds(text: str) -> tuple[Threshold, ...]:
    from pytest_specdec.thresholds import Threshold

    return tuple(Threshold.parse(written) for written in _names(text))


def _fail_on(text: str) -> tuple[str, ...]:
    names = _names(text)
    unknown = [name for name in names if name not in FAIL_ON]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(FAIL_ON)}")
    return names


def _preset(text: str) -> str:
    if text not in PRESETS:
        raise ValueError(f"must be one of {', '.join(PRESETS)}")
    return text


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
    """One setting: how its text is read, what it is when nobody sets it, and what `pytest --help` says.

    `argparse`: what its option on the command line has beyond one value; one that may be repeated is a list by commas.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    metavar: str
    help: str
    argparse: Mapping[str, Any] = field(default_factory=dict)

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
    Option(
        "rounds",
        _positive,
        None,
        "N",
        "exactly so many timed rounds; default: the scenario's at least, and more until tokens/s are known well enough",
    ),
    Option(
        "warmup",
        _natural,
        None,
        "N",
        "exactly so many untimed rounds before; default: the scenario's at least, and more until two take equally long",
    ),
    Option(
        "time_budget",
        _seconds,
        20.0,
        "SECONDS",
        "timed rounds of one test, both arms together, beyond the fewest; default 20",
    ),
    Option("monitor", _seconds, None, "SECONDS", "sample the engine's GPUs so often, for the report; default: never"),
    Option("series", str, ".benchmarks/series", "FOLDER", "where those samples are kept; default .benchmarks/series"),
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
    Option("server_url", str, None, "URL", "endpoint of the fixture openai_server, e.g. http://127.0.0.1:8000"),
    Option("server_protocol", str, None, "NAME", "what it speaks: vllm (default), sglang, trtllm, llamacpp or dynamo"),
    Option(
        "server_reference",
        str,
        None,
        "NAME or URL",
        "what a served engine is compared with: vllm or transformers in a worker, or the URL of a target-only endpoint",
    ),
    Option("load_timeout", _seconds, 900.0, "SECONDS", "limit for loading an engine; default 900"),
    Option("timeout", _seconds, 600.0, "SECONDS", "limit for one call to an engine; default 600"),
    Option("cache", str, None, "FOLDER", "where made models are kept; default: the user's cache folder"),
    Option("preset", _preset, "quick", "NAME", "quick, or thorough for tests marked so as well; default quick"),
    Option(
        "require",
        _needs,
        (),
        "NAME[,NAME]",
        "turn skips for want of these into failures: gpu, cpu, multi_gpu, or an engine's name",
    ),
    Option(
        "compare",
        str,
        None,
        "latest|ID|FILE",
        "show changes since a saved run: the latest with the same measurement, a run's number, or a file; "
        "default with no value: latest",
        {"nargs": "?", "const": LATEST},
    ),
    Option(
        "fail",
        _thresholds,
        (),
        "METRIC:MOST",
        "fail a test whose figure is worse than its baseline by more, e.g. ttft_p99:10ms, or a percentage; "
        "may be repeated",
        {"action": "append"},
    ),
    Option(
        "fail_on",
        _fail_on,
        (),
        "NAME[,NAME]",
        "fail a test also where its baseline or figure is missing, or its rounds are inconclusive",
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
    time_budget: float
    monitor: float | None
    series: str
    control: int
    python: str | None
    reference_python: str | None
    server_url: str | None
    server_protocol: str | None
    server_reference: str | None
    load_timeout: float
    timeout: float
    cache: str | None
    preset: str
    require: tuple[str, ...]
    compare: str | None
    fail: tuple[Threshold, ...]
    fail_on: tuple[str, ...]
    repro: str | None
    repro_seconds: float
    report: str | None

    @property
    def baseline(self) -> str | None:
        """Which run is the baseline: the named one, or the latest where a gate needs one; None: nothing is compared."""
        return self.compare or (LATEST if self.fail or self.fail_on else None)

    @classmethod
    def resolve(
        cls,
        command_line: Mapping[str, str | list[str] | None],
        environment: Mapping[str, str],
        ini: Mapping[str, str | None],
    ) -> Settings:
        """Read each setting from the first source that has it. Raises ConfigurationError."""
        _refuse_unknown(environment)
        return cls(**{name: _value(BY_NAME[name], command_line, environment, ini) for name in _field_names(cls)})


def _field_names(cls: type) -> list[str]:
    return [field.name for field in fields(cls)]


def _value(
    option: Option,
    command_line: Mapping[str, str | list[str] | None],
    environment: Mapping[str, str],
    ini: Mapping[str, str | None],
) -> Any:
    sources = (
        (option.flag, _joined(command_line.get(option.name))),
        (option.variable, environment.get(option.variable) or None),
        (f"{option.ini} in the ini file", ini.get(option.name) or None),
    )
    for place, text in sources:
        if text is not None:
            return _parsed(option, place, text)
    return option.default


def _joined(given: str | list[str] | None) -> str | None:
    """An option that was repeated, as the one text that the other sources have."""
    return ",".join(given) if isinstance(given, list) else given


def _parsed(option: Option, place: str, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{place}: cannot read {text!r} as {option.metavar} ({error}); {option.help}"
        ) from None


NO_SETTINGS = ("SPECDEC_WORKLOADS",)
"""Variables that are no settings and may be set all the same: public workload files for this project's tests."""


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    known = [option.variable for option in OPTIONS]
    for name in environment:
        if name.startswith("SPECDEC_") and name not in (*known, *NO_SETTINGS):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigurationError(f"the environment variable {name} is no setting of pytest-specdec; {hint}")
