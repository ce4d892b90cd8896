"""A scenario is a TOML file that defines a workload: no code, one level of keys, a table for where prompts come from.

`discover` finds the files, `load_scenario` reads one and tells all its mistakes at once, and `Scenario.realise` turns
it into a workload of token ids, once an engine has said what its target's vocabulary, context and tokenizer are. The
same file, target and seed give the same token ids on every machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, ValidationInfo

from pytest_specdec.errors import ConfigurationError, did_you_mean
from pytest_specdec.workloads.datasets import FileDataset, HubSource
from pytest_specdec.workloads.load import Above0, ClosedLoad, Load, Objectives, OpenLoad
from pytest_specdec.workloads.mistakes import (
    Mistake,
    Natural,
    Positive,
    Switch,
    Table,
    Text,
    TomlFile,
    all_mistakes,
    key,
    read_toml,
    refuse_by,
)
from pytest_specdec.workloads.prompts import Drawing, Encode, EncodeMessages, PlainSource, no_chat_template
from pytest_specdec.workloads.traces import Trace
from pytest_specdec.workloads.workload import Conversation, Limits, Request, Workload

_T = TypeVar("_T")
_MOST_TOLD = 20
_SMALLEST = 'source = { format = "random", length = 16 }\ncount = 8\nmax_tokens = 64'
_SAID_BY_KEYS = {
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_length"), "max_tokens"),
    **dict.fromkeys(("min_tokens", "min_new_tokens", "min_length"), "min_tokens"),
    "ignore_eos": "ignore_eos",
    **dict.fromkeys(("eos_token_id", "stop_token_ids"), "stop_token_ids"),
    **dict.fromkeys(("stop", "stop_strings"), "stop"),
}

Source: TypeAlias = PlainSource | FileDataset | Trace | HubSource
"""`source.format` chooses one."""

_Share = Annotated[float, Field(strict=True, ge=0, le=1)]
_SomeShare = Annotated[float, Field(strict=True, gt=0, le=1)]


Demand = Literal[
    "rejection",
    "some_accepted",
    "all_accepted",
    "eos_in_burst",
    "block_edge",
    "chunk_edge",
    "context_edge",
    "cached_prompt",
    "cached_answer",
    "preemption",
]


def _refuse_duplicate(field: str) -> str:
    if field in _SAID_BY_KEYS:
        raise Mistake(f"not a matter of sampling: use the scenario's key {_SAID_BY_KEYS[field]!r}")
    return field


def _plain(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise Mistake(f"no engine samples by {value}: write numbers, texts, true or false, and lists of them") from None
    return value


STRUCTURES = ("choice", "regex", "json", "json_object", "grammar", "structural_tag")


def _readable(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Sampling fields that the verdict reads itself are refused where it could not; the others are the engine's."""
    bias, structure, logprobs = (fields.get(name) for name in ("logit_bias", "structured_outputs", "logprobs"))
    if structure is not None and (not isinstance(structure, Mapping) or not set(structure) & set(STRUCTURES)):
        raise Mistake(
            f"structured_outputs has one of {', '.join(STRUCTURES)}, not {structure!r}: write for example "
            '{ choice = ["yes", "no"] }'
        )
    if logprobs is not None and (isinstance(logprobs, bool) or not isinstance(logprobs, int)):
        raise Mistake(f"logprobs is a whole number, not {logprobs!r}: write for example 1")
    if not isinstance(bias, Mapping):
        return fields
    if strange := [token for token in bias if not str(token).isdecimal()]:
        raise Mistake(f"logit_bias is of token ids, not of {strange[0]!r}: write for example {{ 17 = -100.0 }}")
    return {**fields, "logit_bias": {int(token): value for token, value in bias.items()}}  # TOML's keys are texts


_Fields = Annotated[
    Mapping[Annotated[str, AfterValidator(_refuse_duplicate)], Annotated[Any, AfterValidator(_plain)]],
    AfterValidator(_readable),
]


class Detects(Table):
    """The least faults that the verdict must be able to see, with 95 %; those that are None are not asked.

    `near_ties`, `lossy`: shares of wrong tokens, runner-ups within the noise floor, and wherever they are.
    """

    near_ties: _SomeShare | None = key("a number above 0, at most 1", "near_ties = 0.01", None)
    lossy: _SomeShare | None = key("a number above 0, at most 1", "lossy = 0.001", None)
    total_variation: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = key(
        "a number between 0 and 1", "total_variation = 0.05", None
    )

    @property
    def shares(self) -> dict[str, float]:
        """What is asked of a greedy verdict, by key."""
        return self.model_dump(include={"near_ties", "lossy"}, exclude_none=True)


def _enough_prompts(count: int | None, info: ValidationInfo) -> Iterator[str]:
    if "source" in info.data:
        source = info.data["source"]
        size = source.available(count, info.data.get("seed", 0))
        if size is None and count is None:
            yield f"missing, and {source.why_no_size}: add for example count = 8"
        if size is not None and count is not None and count > size:
            yield f"{count} prompts asked for, the source has {size}: lower count to {size} or add prompts"


def _source_tells(output_length: str, info: ValidationInfo) -> Iterator[str]:
    if output_length == "source" and {"source", "count"} <= info.data.keys():
        source, count = info.data["source"], info.data["count"] or info.data["source"].size
        if source.output_lengths(count, info.data.get("seed", 0)) is None:
            yield (
                f"a source of format {source.format!r} tells no output lengths:"
                ' remove it, or use a trace or format = "vllm_custom"'
            )


def _below_max_tokens(min_tokens: int, info: ValidationInfo) -> Iterator[str]:
    max_tokens = info.data.get("max_tokens", min_tokens)
    if min_tokens > max_tokens:
        yield f"{min_tokens} exceeds max_tokens = {max_tokens}: lower it, or raise max_tokens"


def _playable(load: Load, info: ValidationInfo) -> Iterator[str]:
    if load.needs_times and {"source", "count", "seed"} <= info.data.keys():
        source, count, seed = (info.data[key] for key in ("source", "count", "seed"))
        if source.arrivals(count or source.size or 0, seed) is None:
            yield 'arrivals = "trace" needs a source whose prompts have times: name one, or give a rate'


def _heeded(value: int | None, info: ValidationInfo) -> Iterator[str]:
    kind = info.data["load"].kind if "load" in info.data else "closed"
    if kind != "closed" and info.field_name in (info.context or {}).get("given", ()):
        yield f'only a closed load keeps to it: remove it, or write load = {{ kind = "closed" }}, not {kind}'


def _reachable(concurrency: int, info: ValidationInfo) -> Iterator[str]:
    """No figure is labelled with a concurrency that never occurred."""
    yield from _heeded(concurrency, info)
    if {"source", "count"} <= info.data.keys():
        count = info.data["count"] or info.data["source"].size
        if concurrency > count:
            yield f"{concurrency} cannot be reached with {count} prompts: lower it, or raise count"


def _after_answers(follow_ups: Sequence[Any], info: ValidationInfo) -> Iterator[str]:
    if follow_ups and getattr(info.data.get("load"), "kind", "closed") != "closed":
        yield "a turn begins after the one before, as in a closed load alone: remove follow_ups, or load"
    if follow_ups and info.data.get("prefix_cache") == "keep":
        yield 'would be found as prompts of an earlier round: remove prefix_cache = "keep"'


def _missable(min_speedup: float | None, info: ValidationInfo) -> Iterator[str]:
    if min_speedup is not None and isinstance(info.data.get("load"), OpenLoad):
        yield "an open load sets the throughput: ask for slo and min_goodput, or use a closed load"


def _of_the_template(values: Mapping[str, Any], info: ValidationInfo) -> Iterator[str]:
    if taken := sorted({"add_generation_prompt", "conversation", "return_dict", "tokenize"} & set(values)):
        yield f"{taken[0]!r} is not for the template to read: remove it"


def _of_its_verdict(detects: Detects, info: ValidationInfo) -> Iterator[str]:
    sampled = info.data.get("sampling", {}).get("temperature")
    if sampled and detects.shares:
        yield f"{', '.join(detects.shares)}: at a temperature ask for total_variation"
    if not sampled and detects.total_variation is not None:
        yield "total_variation: without a temperature ask for near_ties or lossy"


def _of_objectives(min_goodput: float | None, info: ValidationInfo) -> Iterator[str]:
    if min_goodput is not None and "slo" in info.data and not info.data["slo"].asked:
        yield "no objective is given that requests could meet: add for example slo = { ttft_ms = 200 }"


class Scenario(Table):
    """One scenario file, checked. Immutable; see docs/scenarios.md for each key's type, unit and default."""

    name: str = key(
        "letters, digits, dots, dashes and underscores, beginning with a letter or digit",
        'name = "short"',
        strict=True,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
    )
    description: str = key("a text", 'description = "Short random prompts, four at once."', "", strict=True)
    source: Source = key(
        "a table that says where prompts come from",
        'source = { format = "random", length = 16 }',
        discriminator="format",
    )
    seed: Natural = key("a whole number, 0 or more", "seed = 7", 0)
    count: Positive | None = key("a whole number of prompts, 1 or more", "count = 8", None)
    chat_template_kwargs: Mapping[str, Annotated[Any, AfterValidator(_plain)]] = key(
        "a table of values that the chat template knows by name",
        "chat_template_kwargs = { enable_thinking = false }",
        {},
    )
    max_tokens: Positive = key("a whole number of tokens, 1 or more", "max_tokens = 64")
    min_tokens: Natural = key("a whole number of tokens, 0 or more", "min_tokens = 16", 0)
    ignore_eos: Switch = key("true or false", "ignore_eos = false", True)
    stop: tuple[Text, ...] = key("a list of texts, none of them empty", 'stop = ["\\n\\n", "###"]', ())
    stop_token_ids: tuple[Natural, ...] = key("a list of token ids, each 0 or more", "stop_token_ids = [2, 7]", ())
    output_length: Literal["max_tokens", "source"] = key(
        '"max_tokens" or "source"', 'output_length = "source"', "max_tokens"
    )
    sampling: _Fields = key(
        "a table of sampling fields under the engine's own names", "sampling = { frequency_penalty = 0.5 }", {}
    )
    sampling_in_turn: tuple[_Fields, ...] = key(
        "a list of tables of sampling fields, one for each request in turn, beside `sampling`",
        "sampling_in_turn = [{ frequency_penalty = 0.5 }, {}]",
        (),
    )
    load: Load = key(
        "a table that says how requests arrive",
        'load = { kind = "closed" }',
        ClosedLoad(kind="closed"),
        discriminator="kind",
    )
    concurrency: Positive = key(
        "a whole number of requests, 1 or more, or a list of such to sweep", "concurrency = 4", 1
    )
    waves: Positive | None = key("a whole number, 1 or more", "waves = 4", None)
    prefix_cache: Literal["reset", "keep"] = key('"reset" or "keep"', 'prefix_cache = "keep"', "reset")
    follow_ups: tuple[Annotated[tuple[Natural, ...], Field(min_length=1)], ...] = key(
        "a list of lists of token ids, none of them empty, each what is said after an answer",
        "follow_ups = [[5, 17, 9], [8, 8]]",
        (),
    )
    rounds: Positive = key("a whole number of rounds, 1 or more", "rounds = 5", 4)
    interval: Annotated[float, Field(strict=True, gt=0, lt=1)] = key(
        "a number between 0 and 1", "interval = 0.02", 0.05
    )
    warmup_rounds: Natural = key("a whole number of rounds, 0 or more", "warmup_rounds = 2", 1)
    demand: tuple[Demand, ...] = key(
        f"a list of what must happen, out of {', '.join(get_args(Demand))}",
        'demand = ["rejection", "eos_in_burst"]',
        (),
    )
    min_speedup: Above0 | None = key("a number above 0", "min_speedup = 1.2", None)
    max_energy_ratio: Above0 | None = key("a number above 0", "max_energy_ratio = 0.9", None)
    min_acceptance_rate: _Share | None = key("a number from 0 to 1", "min_acceptance_rate = 0.6", None)
    min_mean_accepted_length: Above0 | None = key("a number of tokens above 0", "min_mean_accepted_length = 2.5", None)
    max_tie_rate: _Share | None = key("a number from 0 to 1", "max_tie_rate = 0.05", None)
    detects: Detects = key(
        "a table of the least faults that the verdict must be able to see",
        "detects = { near_ties = 0.01, lossy = 0.001 }",
        Detects(),
    )
    slo: Objectives = key(
        "a table of the longest times that a request may take",
        "slo = { ttft_ms = 200, tpot_ms = 30, e2e_ms = 2000 }",
        Objectives(),
    )
    min_goodput: _Share | None = key("a number from 0 to 1", "min_goodput = 0.95", None)
    _path: Path = PrivateAttr(default=Path())

    _checks = refuse_by(
        count=_enough_prompts,
        chat_template_kwargs=_of_the_template,
        min_tokens=_below_max_tokens,
        output_length=_source_tells,
        load=_playable,
        concurrency=_reachable,
        waves=_heeded,
        follow_ups=_after_answers,
        min_speedup=_missable,
        detects=_of_its_verdict,
        min_goodput=_of_objectives,
    )

    @property
    def path(self) -> Path:
        """The file, as it was named to `load_scenario`."""
        return self._path

    @property
    def prompt_count(self) -> int:
        """How many prompts the workload has."""
        whole = self.count or self.source.size or 0
        return whole if self.waves is None else min(whole, self.waves * self.concurrency)

    @property
    def _times(self) -> Sequence[float] | None:
        return self._of_source(self.source.arrivals, self.prompt_count) if self.load.needs_times else None

    @property
    def due_s(self) -> tuple[float, ...]:
        """When each request of the workload is due, in seconds after the run began; empty where no moment is set."""
        return self.load.due_s(self.prompt_count, self.seed, self._times)

    @property
    def max_concurrency(self) -> int:
        """How many requests may be under way at once: all, unless the load is closed and `concurrency` counts."""
        return self.concurrency if self.load.kind == "closed" else len(self.due_s) or self.prompt_count

    def by_rate(self) -> dict[float, Scenario]:
        """For each rate of the load's sweep, from low to high, this scenario at that rate; empty without a sweep."""
        loads = {rate: self.load.model_copy(update={"rate": rate, "rates": None}) for rate in self.load.sweep}
        return {rate: self.model_copy(update={"load": load}) for rate, load in loads.items()}

    @property
    def digest(self) -> str:
        """Twelve hex digits over what defines the workload, whatever the target.

        Stable over the order of keys, comments, and where prompts are kept; description, name, rounds and thresholds
        are not part of it.
        """
        request = self.model_dump(
            include={"max_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "sampling"}
        )
        prompts = self._of_source(self.source.definition, self.prompt_count)
        given = {name: getattr(self, name) for name in ("chat_template_kwargs", "sampling_in_turn", "follow_ups")}
        request |= {name: value for name, value in given.items() if value}
        if self.output_length == "source":
            request["output_lengths"] = self._of_source(self.source.output_lengths, self.prompt_count)
        times = {"times": self._times} if self.load.needs_times else {}
        arrival: dict[str, Any] = {"load": self.load.model_dump(), "concurrency": self.concurrency, **times}
        arrival |= {"prefix_cache": self.prefix_cache} if self.prefix_cache == "keep" else {}
        canonical = json.dumps({"prompts": prompts, **request, **arrival}, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def realise(
        self, vocabulary: int, context: int, encode: Encode, encode_messages: EncodeMessages = no_chat_template
    ) -> Workload:
        """The workload for a target with `vocabulary` token ids and room for `context` tokens.

        `encode`: texts to lists of token ids, by the target's tokenizer; not called where the scenario has no text.
        `encode_messages`: conversations to the same, by its chat template; not called where none is to be applied.
        Raises ConfigurationError naming every prompt that is empty, does not fit the context, or has an unknown id.
        """
        due, source = self.due_s, self.source
        count = len(due) or self.prompt_count
        talks: dict[tuple[int, ...], Conversation] = {}
        by_template = partial(_write, encode_messages, self.chat_template_kwargs, talks)
        drawing = Drawing(count, self.seed, vocabulary, encode, by_template)
        prompts = self._of_source(lambda count, seed: source.draw(drawing), count)
        told = self._of_source(source.output_lengths, count) if self.output_length == "source" else None
        answers = [min(length, self.max_tokens) for length in told or [self.max_tokens] * count]
        longer = sum(length > self.max_tokens for length in told or ())
        cut = [f"answers cut to max_tokens = {self.max_tokens}: {longer} of {count}"] * (longer > 0)
        chosen = self._of_source(source.choose, count)
        names = [f" ({source.short_name}{item.at})" for item in chosen.items] or [""] * count
        _refuse(self._faults(prompts, answers, names, Limits(vocabulary, context)))
        fields = cycle(self.sampling_in_turn or ({},))
        rows = map(self._request, range(count), prompts, answers, fields)
        requests = tuple(replace(each, conversation=talks.get(each.prompt_ids)) for each in rows)
        return Workload(
            self.name,
            requests,
            self.max_concurrency,
            due,
            keeps_prefix_cache=self.prefix_cache == "keep",
            skipped_rows=chosen.skipped,
            notes=(*chosen.notes(source.short_name), *cut),
            categories=chosen.categories,
        )

    def add_turn(
        self, workload: Workload, answers: Sequence[Sequence[int]], said: Sequence[int], limits: Limits
    ) -> Workload:
        """The workload, and after it each request of its last turn with its answer and what is `said` then.

        Raises ConfigurationError naming every prompt that does not fit the context, or has an unknown id.
        """
        last = workload.requests[-len(answers) :]
        prompts = [(*each.prompt_ids, *answer, *said) for each, answer in zip(last, answers, strict=True)]
        _refuse(
            f"prompt {row} of {self.path}, after an answer: {fault}"
            for row, (prompt, each) in enumerate(zip(prompts, last, strict=True), 1)
            for fault in limits.faults(prompt, each.max_tokens)
        )
        turn = (replace(each, prompt_ids=prompt) for each, prompt in zip(last, prompts, strict=True))
        kinds = (*workload.categories, *workload.categories[-len(answers) :])
        return replace(workload, requests=(*workload.requests, *turn), categories=kinds)

    def _of_source(self, ask: Callable[[int, int], _T], count: int) -> _T:
        try:
            return ask(count, self.seed)
        except Mistake as mistake:
            raise ConfigurationError(f"{self.path}: source.{mistake.key}: {mistake}") from None

    def _faults(self, prompts: list[list[int]], answers: list[int], names: list[str], limits: Limits) -> Iterator[str]:
        if strange := limits.unknown_ids(self.stop_token_ids):
            yield f"stop_token_ids of {self.path}: {strange}: it would never stop there, so remove it"
        for row, (prompt, answer, name) in enumerate(zip(prompts, answers, names, strict=True)):
            where = f"prompt {row + 1} of {self.path}{name}"
            for fault in limits.faults(prompt, answer):
                yield f"{where}: {fault}"
            if answer < self.min_tokens:
                yield f"{where}: its answer of {answer} tokens is shorter than min_tokens = {self.min_tokens}: lower it"

    def _request(self, row: int, prompt: list[int], answer: int, own: Mapping[str, Any]) -> Request:
        """A seed moves on from prompt to prompt: with the same one, all would be sampled by the same random numbers."""
        fields = {**self.sampling, **own}
        if isinstance(fields.get("seed"), int):
            fields["seed"] += row
        ends = self.min_tokens, self.ignore_eos, self.stop_token_ids, self.stop
        return Request(tuple(prompt), answer, *ends, fields)


def _write(
    encode_messages: EncodeMessages,
    template: Mapping[str, Any],
    kept: dict[tuple[int, ...], Conversation],
    talks: Sequence[Sequence[Mapping[str, str]]],
) -> list[list[int]]:
    prompts = encode_messages(talks)
    for talk, ids in zip(talks, map(tuple, prompts), strict=True):
        kept[ids] = Conversation(tuple(talk), template, ids)
    return prompts


@dataclass(frozen=True)
class Choice:
    """One gate's scenario: the file, and the concurrency where the file sweeps it."""

    path: Path
    concurrency: int | None = None

    @property
    def label(self) -> str:
        """Short and stable, for test ids, e.g. "chat-c16"."""
        return self.path.stem + (f"-c{self.concurrency}" if self.concurrency is not None else "")


def load_scenario(
    path: str | Path, overrides: Mapping[str, Any] | None = None, said_by: Mapping[str, str] | None = None
) -> Scenario:
    """Read and check one scenario file that sweeps nothing.

    `overrides`: keys that take the place of the file's, each with its whole value; `said_by`: who gave each. With
    another `load` the file's `concurrency`, which belongs to its own load, is left out.
    Raises ConfigurationError with a line for each mistake: the file, the line, the key, and what to write instead.
    """
    scenario, *more = load_sweep(Path(path), overrides or {}, said_by or {}).values()
    if more:
        raise ConfigurationError(
            f"{path}: concurrency is swept, a gate each: use the fixture scenario, or `load_sweep`"
        )
    return scenario


def load_sweep(path: Path, overrides: Mapping[str, Any], said_by: Mapping[str, str]) -> dict[Choice, Scenario]:
    """Read and check one scenario file: a scenario for each value of `concurrency`. Raises ConfigurationError."""
    file = read_toml(path)
    if not file.values:
        raise ConfigurationError(f"{path}:1: the file is empty: a scenario needs at least\n{_SMALLEST}")
    kept = {key: each for key, each in file.values.items() if key != "concurrency" or "load" not in overrides}
    file = replace(file, values={**kept, **overrides}, said_by=said_by)
    swept = file.values.get("concurrency")
    if not isinstance(swept, list) or not swept:
        return {Choice(path): _validate(file)}
    if twice := [value for at, value in enumerate(swept) if value in swept[:at]]:
        where = file.where(("concurrency",))
        raise ConfigurationError(
            f"{where}: concurrency: {twice[0]!r} stands twice: write each value once, for its gate"
        )
    each = [_validate(replace(file, values={**file.values, "concurrency": value})) for value in swept]
    return {Choice(path, scenario.concurrency): scenario for scenario in each}


def load_scenarios(
    paths: Iterable[str | Path],
    overrides: Mapping[str, Any],
    said_by: Mapping[str, str],
    read: Mapping[Choice, Scenario],
) -> dict[Choice, Scenario]:
    """Check every file of `discover(paths)` that is not `read` yet. Raises ConfigurationError with all mistakes."""
    scenarios: dict[Choice, Scenario] = {}
    mistakes = []
    for path in discover(paths):
        known = {choice: scenario for choice, scenario in read.items() if choice.path == path}
        try:
            scenarios |= known or load_sweep(path, overrides, said_by)
        except ConfigurationError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigurationError("\n".join(mistakes))
    return scenarios


def _validate(file: TomlFile) -> Scenario:
    values = {"name": file.path.stem, **file.values}
    try:
        scenario = Scenario.model_validate(values, context={"folder": file.path.parent, "given": frozenset(values)})
    except ValidationError as error:
        raise all_mistakes(error, Scenario, file) from None
    scenario._path = file.path
    return scenario


def discover(paths: Iterable[str | Path]) -> list[Path]:
    """The scenario files among `paths`: a file stands for itself, a folder for its *.toml in order of name.

    A file that is named twice counts once. Raises ConfigurationError for a path that does not exist, a folder without
    scenarios, and two scenarios of one name.
    """
    found = {file.resolve(): file for path in paths for file in _files(Path(path))}
    first: dict[str, Path] = {}
    for file in found.values():
        if (name := _name(file)) in first:
            raise ConfigurationError(f"{file}: {first[name]} is also named {name!r}: give one of them another `name`")
        first[name] = file
    return list(found.values())


def _files(path: Path) -> list[Path]:
    if not path.exists():
        beside = [each.name for each in path.parent.glob("*")]
        remedy = did_you_mean(path.name, beside, "name a scenario file or a folder of them")
        raise ConfigurationError(f"{path}: no such file or folder: {remedy}")
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.toml"))
    if not files:
        raise ConfigurationError(f"{path}: a folder without *.toml: put a scenario file there, or name another folder")
    return files


def _name(file: Path) -> str:
    """The scenario's name, also of a file with mistakes: those are told when it is loaded."""
    try:
        return str(read_toml(file).values.get("name", file.stem))
    except ConfigurationError:
        return file.stem


def _refuse(found: Iterable[str]) -> None:
    faults = list(found)
    more = [f"and {len(faults) - _MOST_TOLD} more"] * (len(faults) > _MOST_TOLD)
    if faults:
        raise ConfigurationError("\n".join([*faults[:_MOST_TOLD], *more]))
