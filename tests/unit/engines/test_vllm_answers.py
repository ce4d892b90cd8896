"""What the vLLM backend reads in answers, here made by hand: what the prefix cache had, and log-probabilities."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_specdec.engines.vllm import VllmBackend, _Answer

CONFIG = {"method": "none", "target": "t"}
MISSED = SimpleNamespace(name="vllm:prefix_cache_hits", value=0)


def answer(cached: int | None) -> _Answer:
    """A request that has been answered with one token."""
    made = _Answer({"prompt_ids": [1]}, SimpleNamespace(detokenize=False))
    completion = SimpleNamespace(token_ids=[5], finish_reason="length")
    made.take(SimpleNamespace(outputs=[completion], prompt_token_ids=[1], num_cached_tokens=cached), 0.1)
    return made


def backend(*cached: int | None) -> Any:
    """A backend after a run; its engine's counter has missed every hit, as under asynchronous scheduling."""
    llm = SimpleNamespace(llm_engine=None, get_metrics=lambda: [MISSED])
    made: Any = VllmBackend(llm, CONFIG)
    made._counted = made._counters()
    made._answers = [answer(each) for each in cached]
    return made


@pytest.mark.parametrize(("cached", "hits"), [((192, 0, 192), 384), ((0, 0), 0), ((192, None), None)])
def test_hits_are_what_the_answers_tell(cached: tuple[int | None, ...], hits: int | None) -> None:
    """Whatever the counter says; not known as soon as one answer does not tell."""
    run = backend(*cached).collect()
    assert run["prefix_cache_hits"] == hits
    assert [each["cached_tokens"] for each in run["generations"]] == [*cached]


class Tree:
    """What suffix decoding keeps of requests under way and of earlier ones."""

    def __init__(self) -> None:
        self.active_requests, self.cached_requests = {"2"}, {"1", "2"}

    def stop_request(self, name: str) -> None:
        self.active_requests.remove(name)

    def evict_cached_response(self, name: str) -> None:
        self.cached_requests.remove(name)


EMPTY: tuple[set[str], set[str]] = (set(), set())


@pytest.mark.parametrize(("keeps", "left"), [(False, EMPTY), (True, ({"2"}, {"1", "2"}))], ids=["forgotten", "kept"])
def test_answers_of_earlier_rounds_are_forgotten_with_the_prefix_cache(
    keeps: bool, left: tuple[set[str], set[str]]
) -> None:
    """Suffix decoding would find them again; a scenario that keeps the cache keeps them too."""
    tree = Tree()
    runner = SimpleNamespace(drafter=SimpleNamespace(suffix_cache=tree))
    worker = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
    core = SimpleNamespace(engine_core=SimpleNamespace(engine_core=SimpleNamespace(model_executor=worker)))
    llm: Any = SimpleNamespace(llm_engine=core, get_metrics=list, reset_prefix_cache=bool)
    VllmBackend(llm, CONFIG).prepare([], 1, keeps)
    assert (tree.active_requests, tree.cached_requests) == left


@pytest.mark.parametrize(("connector", "asked"), [(None, {}), ("offload", {"reset_connector": True})])
def test_a_connectors_store_is_emptied_with_the_prefix_cache(connector: str | None, asked: dict[str, bool]) -> None:
    """It would give prompts of earlier rounds back."""
    told: list[dict[str, bool]] = []
    core = SimpleNamespace(vllm_config=SimpleNamespace(kv_transfer_config=connector))
    llm: Any = SimpleNamespace(llm_engine=core, get_metrics=list, reset_prefix_cache=lambda **how: told.append(how))
    VllmBackend(llm, CONFIG).prepare([], 1)
    assert told == [asked]


@pytest.mark.parametrize(("second", "told"), [(True, "V2"), (False, "V1"), (None, None)])
def test_the_model_runner_is_among_what_is_compared(second: bool | None, told: str | None) -> None:
    """A property of vLLM's configuration, which the method decides; older versions have none."""
    config = SimpleNamespace(**({} if second is None else {"use_v2_model_runner": second}))
    core = SimpleNamespace(vllm_config=config, model_config=SimpleNamespace(skip_tokenizer_init=True))
    llm: Any = SimpleNamespace(llm_engine=core)
    assert VllmBackend(llm, CONFIG)._configuration().get("model_runner") == told


def row(**logprobs: float) -> dict[int, Any]:
    """What vLLM tells at one place: ids, each with its log-probability."""
    return {int(name.removeprefix("t")): SimpleNamespace(logprob=value) for name, value in logprobs.items()}


STEPS = {
    "of each token": ([row(t5=-0.1, t6=-2.0), row(t7=-0.2)], [-0.1, -0.2]),
    "another token's": ([row(t5=-0.1), row(t6=-0.2)], [-0.1, None]),
    "too few": ([row(t5=-0.1)], [-0.1]),
    "too many": ([row(t5=-0.1), row(t7=-0.2), row(t7=-0.2)], [-0.1, -0.2, None]),
    "none": (None, []),
}


@pytest.mark.parametrize(("rows", "told"), STEPS.values(), ids=STEPS)
def test_log_probabilities_of_a_step(rows: list[dict[int, Any]] | None, told: list[float | None]) -> None:
    """A step of two tokens, twice."""
    answer = _Answer({"prompt_ids": [1]}, SimpleNamespace(detokenize=False, logprobs=1))
    completion = SimpleNamespace(token_ids=[5, 7], finish_reason=None, logprobs=rows)
    for at_s in (0.1, 0.2):
        answer.take(SimpleNamespace(outputs=[completion], prompt_token_ids=[1], num_cached_tokens=0), at_s)
    assert answer.wire()["logprobs"] == told * 2
