"""Which engines a test runs on, and in which order tests run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.engines.choice import choose_engines, engine_order
from pytest_specdec.engines.spec import EngineSpec, distinct_labels
from pytest_specdec.errors import ConfigurationError
from pytest_specdec.settings import Settings


def settings(**command_line: str) -> Settings:
    return Settings.resolve(command_line, {}, {})


def test_settings_alone_name_the_engines() -> None:
    engines = choose_engines("vllm", True, [], settings(target="m", draft="d", gamma="3,5"))
    assert [(engine.method, engine.draft, engine.gamma) for engine in engines] == [
        ("draft_model", "d", 3),
        ("draft_model", "d", 5),
    ]


@pytest.mark.parametrize(("backend", "method"), [("vllm", "ngram"), ("transformers", "prompt_lookup")])
def test_without_a_draft_model_the_prompt_is_looked_up(backend: str, method: str) -> None:
    (engine,) = choose_engines(backend, True, [], settings(target="m"))
    assert (engine.method, engine.draft) == (method, None)


def test_a_mark_wins_over_the_settings_for_what_it_names() -> None:
    (engine,) = choose_engines("vllm", True, [{"gamma": 7}], settings(target="m", draft="d", gamma="3"))
    assert (engine.target, engine.gamma) == ("m", 7)


def test_target_only_takes_what_concerns_the_target() -> None:
    (engine,) = choose_engines(
        "vllm", False, [{"target": "m", "draft": "d", "gamma": (2, 4), "dtype": "float32"}], settings()
    )
    assert engine == EngineSpec(backend="vllm", target="m", dtype="float32")


def test_the_reference_of_a_speculative_engine_is_the_target_only_engine_of_the_same_mark() -> None:
    mark = {"target": "m", "draft": "d", "gamma": 2, "options": {"x": 1}}
    (engine,) = choose_engines("vllm", True, [mark], settings())
    assert [engine.target_only()] == choose_engines("vllm", False, [mark], settings())


def test_the_reference_can_run_in_another_interpreter() -> None:
    (engine,) = choose_engines("vllm", True, [], settings(target="m", python="/new", reference_python="/old"))
    assert (engine.python, engine.target_only().python) == ("/new", "/old")


def test_the_reference_can_have_options_of_its_own() -> None:
    """In all else it is as the mark says, and both fixtures of a test mean the same one."""
    mark = {"target": "m", "gamma": 3, "environment": {"A": "1"}, "options": {"kv_cache_dtype": "fp8"}}
    mark |= {"reference": {"options": {"seed": 1}}, "gateway": "ssh=host", "python": "/new", "reference_python": "/old"}
    (engine,) = choose_engines("vllm", True, [mark], settings())
    assert engine.target_only() == EngineSpec(
        backend="vllm",
        target="m",
        dtype=engine.dtype,
        options={"seed": 1},
        environment={"A": "1"},
        gateway="ssh=host",
        python="/old",
    )
    assert choose_engines("vllm", False, [mark], settings()) == [engine.target_only()]


def test_a_reference_of_another_kind_is_compared_with_and_is_not_what_the_fixture_runs() -> None:
    mark = {"target": "m", "gamma": 3, "reference": "transformers"}
    (engine,) = choose_engines("vllm", True, [mark], settings())
    assert engine.target_only().backend == "transformers"
    for reference in ("transformers", {"url": "http://b:8000"}):
        (alone,) = choose_engines("vllm", False, [{**mark, "reference": reference}], settings())
        assert alone == EngineSpec(backend="vllm", target="m", dtype=engine.dtype)


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ({"target": "m", "reference": {"option": {}}}, "reference: unknown key 'option'; did you mean 'options'"),
        ({"target": "m", "reference": {"options": 3}}, "options=3: expected a table"),
        ({"target": "m", "reference": 5}, "reference is 5: it must be an engine's name, or a table"),
        ({"target": "m", "gama": 3}, "unknown key 'gama'; did you mean 'gamma'"),
        ({"target": "m", "engine": "vllm"}, "unknown key 'engine'; known keys: draft, dtype"),
        (
            {"target": "m", "gama": 3, "options": 5, "speculative_options": 7},
            "unknown key 'gama'.*; .*options=5: expected.*; .*speculative_options=7: expected",
        ),
        ({"gamma": 3}, "no target model: give --specdec-target"),
        ({"target": "m", "method": "none"}, "does not speculate: use the fixtures vllm_ar"),
    ],
)
def test_a_wrong_mark_is_refused_with_the_remedy(mark: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        choose_engines("vllm", True, [mark], settings())


def test_a_model_below_the_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mark, no shell writes out what ~ stands for."""
    monkeypatch.setenv("HOME", "/home/me")
    (spec,) = choose_engines("vllm", True, [{"target": "~/models/m", "draft": "~/models/d", "gamma": 3}], settings())
    assert (spec.target, spec.draft) == ("/home/me/models/m", "/home/me/models/d")


def test_the_key_is_over_every_field() -> None:
    spec = EngineSpec(backend="vllm", target="m")
    changed = [replace(spec, options={"a": 1}), replace(spec, environment={"a": "1"}), replace(spec, gateway="ssh=h")]
    assert len({spec.key, *(each.key for each in changed)}) == 4


def test_labels_that_would_stand_for_several_engines_are_made_longer() -> None:
    spec = EngineSpec(
        backend="vllm", target="m", method="draft_model", draft="constructed:tiny:draft?alpha=0.8", gamma=3
    )
    others = [replace(spec, draft="constructed:tiny:draft?alpha=0.5"), replace(spec, gamma=5), spec]
    assert distinct_labels(others) == [
        "m-draft_model-g3-tiny-draft-alpha0.5",
        "m-draft_model-g5",
        "m-draft_model-g3-tiny-draft-alpha0.8",
    ]
    assert len(set(distinct_labels([spec, replace(spec, options={"a": 1})]))) == 2


def test_tests_run_target_only_first_and_engine_by_engine() -> None:
    target = EngineSpec(backend="vllm", target="m")
    two, four = (replace(target, method="draft_model", draft="d", gamma=gamma) for gamma in (2, 4))
    other = EngineSpec(backend="vllm", target="n")
    tests = [[two], [other], [four], [two], [target]]
    assert engine_order(tests) == [4, 0, 3, 2, 1]


def test_a_label_is_short_enough_for_a_test_id() -> None:
    """A longer one is cut, and told from others by its key."""
    one, other = (EngineSpec(backend="fake", target=f"{'x' * 400}{end}") for end in "ab")
    assert (len(one.label) < 120, one.label != other.label) == (True, True)
