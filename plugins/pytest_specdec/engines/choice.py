"""Which engines a test runs on, and the order of tests that loads each engine once.

What marks say comes first, what they leave open comes from the settings. Several marks, targets, drafts, methods and
values of γ multiply out; target-only fixtures take what concerns the target and ignore the rest, so that both arms of a
test file can share one mark. What can be known to be wrong is refused here, before anything is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from os.path import expanduser
from typing import Any

from pytest_specdec.engines.methods import BY_BATCH_SIZE, METHODS, Method, method_named
from pytest_specdec.engines.model_files import is_unknown, method_of_draft, read, refuse_wrong_models
from pytest_specdec.engines.server.plan import SERVED, reference_of, what_a_server_decides, with_server
from pytest_specdec.engines.spec import NO_SPECULATION, EngineSpec
from pytest_specdec.engines.vllm_source import names_of_vllm, options_of_vllm, speculative_options_of_vllm
from pytest_specdec.errors import ConfigurationError, did_you_mean, unknown_key
from pytest_specdec.hardware import default_dtype
from pytest_specdec.settings import DTYPES, Settings

LOOKUP = {"vllm": "ngram", "transformers": "prompt_lookup"}
FAKE = "fake"
ENGINES = (*LOOKUP, SERVED, FAKE)
FAKE_TARGET = "arithmetic"
WITHOUT = ("draft", "reference")  # of these None says that there is none; of others, that nothing is said
MARK_KEYS = (*(each.name for each in fields(EngineSpec) if each.name not in ("backend", "named_method")), "scenario")


def _each(*types: type) -> Callable[[Any], bool]:
    return lambda value: all(isinstance(each, types) for each in _several(value))


def _number(value: Any) -> bool:
    return type(value) is int and value > 0


def _batches(value: Any) -> bool:
    return all(isinstance(row, (list, tuple)) and [*map(type, row)] == [int] * 3 for row in _several(value))


_TEXT = ("a text", lambda value: isinstance(value, (str, os.PathLike)))
_TEXTS = ("a text or a list of them", _each(str))
_TABLE = ("a table", lambda value: isinstance(value, Mapping))
EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("target", "draft", "method"), _TEXTS),
    **dict.fromkeys(("dtype", "python", "reference_python", "gateway"), _TEXT),
    **dict.fromkeys(("options", "speculative_options", "environment", "server"), _TABLE),
    "scenario": ("a path or a list of them", _each(str, os.PathLike)),
    "gamma": ("a number of tokens, 1 or more, or a list of them", lambda value: all(map(_number, _several(value)))),
    "max_model_len": ("a number of tokens, 1 or more", _number),
    "unjudged": ("the reason, in words", lambda value: isinstance(value, str) and bool(value.strip())),
    BY_BATCH_SIZE: ("[[first, last, γ], …]", _batches),
}
"""What a key of the mark or of its options may hold besides None; what is not here is checked by who reads it."""


def choose_engines(
    backend: str, speculates: bool, marks: Sequence[Mapping[str, Any]], settings: Settings
) -> list[EngineSpec]:
    """The engines for one fixture of one test, without repetitions. Raises ConfigurationError."""
    specs: list[EngineSpec] = []
    for said in marks or [{}]:
        _refuse_wrong_mark(said)
        mark = {key: value for key, value in said.items() if value is not None or key in WITHOUT}
        for target in _several(mark.get("target", settings.target)):
            base = _base(backend, target, mark, settings)
            specs += _speculative(base, mark, settings) if speculates else [_alone(base)]
    if not specs:
        raise ConfigurationError("no engine is left: target, method and gamma name one or more each, not an empty list")
    return list(dict.fromkeys(specs))


def _alone(base: EngineSpec) -> EngineSpec:
    alone = base.target_only()
    return alone if base.backend in (alone.backend, SERVED) else replace(base, reference=None).target_only()


def _refuse_wrong_mark(mark: Mapping[str, Any]) -> None:
    tables = [mark.get(name) for name in ("reference", "speculative_options")]
    reference, options = (each if isinstance(each, Mapping) else {} for each in tables)
    said = (*mark.items(), *reference.items(), (BY_BATCH_SIZE, options.get(BY_BATCH_SIZE)))
    wrong = [unknown_key("@pytest.mark.specdec", key, sorted(MARK_KEYS)) for key in mark if key not in MARK_KEYS]
    wrong += [told for key, value in said if (told := _wrong_value(key, value))]
    if wrong:
        raise ConfigurationError("; ".join(wrong))


def _wrong_value(key: str, value: Any) -> str:
    expected, holds = EXPECTED.get(key, ("", bool))
    wrong = expected and value is not None and not holds(value)
    return f"@pytest.mark.specdec: {key}={value!r}: expected {expected}" if wrong else ""


def refuse_impossible(specs: Iterable[EngineSpec], others_add_engines: bool, cache: str | None) -> None:
    """Raise ConfigurationError for an engine, dtype or model that is certain not to load, or to load for nothing.

    `others_add_engines`: whether another plugin answers to names that are not known here.
    """
    for spec in specs:
        if spec.backend in LOOKUP and spec.speculates:
            _refuse_wrong_method(spec)
        elif spec.backend == FAKE and spec.speculates and not others_add_engines:
            refuse_missing_method(spec.method, FAKE, [each.name for each in METHODS])
        for each in (spec, spec.target_only()):
            if not others_add_engines:
                _refuse_unknown(
                    "engine", each.backend, ENGINES, "; others come by the hook pytest_specdec_start_engine"
                )
            _refuse_unknown("dtype", each.dtype, DTYPES)
            if each.backend == "vllm" and not _is_elsewhere(each) and not others_add_engines:
                _refuse_wrong_options(each)
            refuse_wrong_models(each, cache)


def _refuse_wrong_method(spec: EngineSpec) -> None:
    """One that the engine lacks, or that needs a draft; what a vLLM elsewhere takes is not known here."""
    name, of_vllm = spec.named_method or spec.method, None if _is_elsewhere(spec) else names_of_vllm()
    if spec.backend != "vllm" or of_vllm is not None:
        refuse_missing_method(name, spec.backend, of_vllm if spec.backend == "vllm" else None)
    method = method_named(spec.method)
    if method in METHODS and method.takes_draft and spec.draft is None:
        raise ConfigurationError(f"method {spec.method!r} drafts with a model of its own: name it as the draft")


def _is_elsewhere(spec: EngineSpec) -> bool:
    return spec.python is not None or spec.gateway is not None


SAID_BY_KEYS = ("speculative_config", "spec_method", "spec_model", "spec_tokens")
MISSPELT = 0.85  # so near that it is meant: a plugin of vLLM's may bring options of its own


def _refuse_wrong_options(spec: EngineSpec) -> None:
    if said := [name for name in SAID_BY_KEYS if name in spec.options]:
        raise ConfigurationError(
            f"options: {said[0]!r} is said by the keys method, draft and gamma, all else by speculative_options"
        )
    for key, names in (("options", options_of_vllm), ("speculative_options", speculative_options_of_vllm)):
        for name in getattr(spec, key):
            known, written = names(), name.replace("-", "_")
            if known and written not in known and (meant := did_you_mean(written, known, cutoff=MISSPELT)):
                raise ConfigurationError(f"{key}: vllm has no option {name!r}; {meant}")


def refuse_missing_method(name: str, engine: str, known: Collection[str] | None = None) -> None:
    """Raise ConfigurationError where the engine has no such method. `known`: its own, or else those of the table."""
    known = known or [each.name for each in METHODS if engine in each.engines]
    if name not in known:
        remedy = did_you_mean(name, known, "`pytest-specdec methods` lists those that it has")
        raise ConfigurationError(f"{engine} has no method {name!r}; {remedy}")


def _refuse_unknown(what: str, word: str, known: Sequence[str], more: str = "") -> None:
    if word not in known:
        hint = did_you_mean(word, known, "none is near")
        raise ConfigurationError(f"unknown {what} {word!r}; {hint} (known: {', '.join(known)}{more})")


def _base(backend: str, target: str | None, mark: Mapping[str, Any], settings: Settings) -> EngineSpec:
    target = FAKE_TARGET if target is None and backend == FAKE else target
    if target is None:
        raise ConfigurationError("no target model: give --specdec-target MODEL, or @pytest.mark.specdec(target=…)")
    here = mark.get("gateway") is None and backend in (*LOOKUP, SERVED)
    base = EngineSpec(
        backend=backend,
        target=expanduser(target),
        dtype=mark.get("dtype") or settings.dtype or (default_dtype() if here else EngineSpec.dtype),
        max_model_len=mark.get("max_model_len", settings.max_model_len),
        options={**settings.engine_options, **mark.get("options", {})},
        environment=mark.get("environment", {}),
        python=mark.get("python", settings.python),
        reference_python=mark.get("reference_python", settings.reference_python),
        gateway=mark.get("gateway"),
    )
    if backend == SERVED:
        return with_server(base, mark, settings)
    said = mark.get("reference")
    return base if said is None else replace(base, reference=reference_of(said, base))


def _speculative(base: EngineSpec, mark: Mapping[str, Any], settings: Settings) -> list[EngineSpec]:
    mark = {**what_a_server_decides(base), **mark}
    drafts: Sequence[str | None] = _several(mark.get("draft", settings.draft)) or (None,)
    base = replace(base, speculative_options=mark.get("speculative_options", {}), unjudged=mark.get("unjudged"))
    return [
        replace(spec, gamma=gamma)
        for draft in drafts
        for spec in _drafting(base, None if draft is None else expanduser(draft), mark, settings)
        for gamma in _gammas(spec, mark, settings)
    ]


def _drafting(base: EngineSpec, draft: str | None, mark: Mapping[str, Any], settings: Settings) -> Iterator[EngineSpec]:
    named: Sequence[str] = _several(mark.get("method", settings.method))
    if NO_SPECULATION in named:
        raise ConfigurationError("method 'none' does not speculate: use the fixtures vllm_ar or transformers_ar for it")
    names = named or (None,)
    methods = [default_method(base.backend, draft) if name is None else method_named(name) for name in names]
    takers = [] if draft is None else [each for each in methods if each.takes_draft or each is method_of_draft(draft)]
    if draft is not None and not takers and is_unknown(draft):  # it may be a head of a target that drafts by itself
        takers = [each for each in methods if each.drafter == "own head"]
    looked_up = all(each.drafter == "text" for each in methods)  # a test's own beside the draft of its module's mark
    if draft is not None and not takers and "draft" in mark and not looked_up:
        raise ConfigurationError(
            f"@pytest.mark.specdec: draft={draft!r} is taken by no method that is named "
            f"({', '.join(each.name for each in methods)}): say draft=None, or method={method_of_draft(draft).name!r}"
        )
    for name, method in zip(names, methods, strict=True):
        yield replace(base, method=method.name, named_method=name, draft=draft if method in takers else None)


def default_method(backend: str, draft: str | None) -> Method:
    """What the draft is made for; without one, the engine's lookup in the text."""
    return method_of_draft(draft) if draft is not None else method_named(LOOKUP.get(backend, "ngram"))


def _gammas(spec: EngineSpec, mark: Mapping[str, Any], settings: Settings) -> Sequence[int]:
    named: Sequence[int] = _several(mark.get("gamma", settings.gamma))
    if named or "gamma" in mark:
        return named
    said = {**read(spec.draft or spec.target, "config.json"), **spec.speculative_options}
    return (method_named(spec.method).default_gamma(said),)


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def engine_order(engines: Sequence[Sequence[EngineSpec]]) -> list[int]:
    """Indices of tests in the order to run them: by target, target-only first, then engine by engine, stably."""
    families: dict[str, int] = {}
    keys: dict[str, int] = {}
    ranks = []
    for index, specs in enumerate(engines):
        last = max(specs, key=lambda spec: spec.speculates)
        family = families.setdefault(last.target_only().key, index)
        ranks.append((family, last.speculates, keys.setdefault(last.key, index), index))
    return [rank[-1] for rank in sorted(ranks)]
