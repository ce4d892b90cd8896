"""A LoRA adapter over the target: in both arms and where tokens are rated, or told where one arm lacks it.

vLLM multiplies by its matrices in every step, and Transformers has them merged into the weights, so that one is the
other's reference.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.adapters import write_adapter
from tests.engines.test_memory import random_prompts

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.models import expected_continuation
from pytest_specdec.run.gate import Gate
from pytest_specdec.run.session import Session
from pytest_specdec.workloads.scenario import load_scenario
from pytest_specdec.workloads.workload import Request, Workload

TARGET = "constructed:tiny?memory=12"
WORKLOAD = Workload("adapted", tuple(Request(tuple(ids), 24) for ids in random_prompts([16] * 4)), concurrency=4)

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target=TARGET,
        draft="constructed:tiny:draft?memory=12",
        method="draft_model",
        gamma=4,
        dtype="float32",
        max_model_len=384,
        environment={"OMP_NUM_THREADS": "1"},
    ),
]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where it lies."""
    return write_adapter(TARGET, tmp_path_factory.mktemp("lora") / "adapter")


def adapted(spec: EngineSpec, adapter: str) -> EngineSpec:
    """The engine with the adapter."""
    return replace(spec, options={**spec.options, "adapter": adapter})


def answers(session: Session, spec: EngineSpec) -> list[tuple[int, ...]]:
    """What it decodes."""
    with session.pool.using(spec) as engine:
        return [each.token_ids for each in one_pass(engine, WORKLOAD).generations]


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}], ids=["lora", "rslora"])
def test_vllm_and_transformers_agree_on_an_adapted_target(
    specdec_session: Session, vllm_spec: EngineSpec, transformers_ar: EngineSpec, settings: Any, tmp_path: Path
) -> None:
    """With speculation and without, and none of them says what the target says alone."""
    adapter = write_adapter(TARGET, tmp_path, **settings)
    alone = [tuple(expected_continuation(TARGET, each.prompt_ids, 24)) for each in WORKLOAD.requests]
    merged = answers(specdec_session, adapted(transformers_ar, adapter))
    target = adapted(vllm_spec, adapter).target_only()
    assert merged == answers(specdec_session, target) == answers(specdec_session, adapted(vllm_spec, adapter))
    assert merged != alone


def test_vllm_rates_several_adapted_answers(specdec_session: Session, vllm_ar: EngineSpec, adapter: str) -> None:
    """Each token of its own answers is its argmax, whichever request it belongs to."""
    target = adapted(vllm_ar, adapter)
    outputs = answers(specdec_session, target)
    with specdec_session.pool.using(target) as engine:
        scores = engine.score(WORKLOAD.requests, outputs)
    assert [[each.argmax for each in several] for several in scores] == [[*ids] for ids in outputs]


@pytest.mark.engine("vllm")
@pytest.mark.specdec(server={})
def test_a_server_rates_several_adapted_answers(
    specdec_session: Session, openai_server: EngineSpec, adapter: str
) -> None:
    """As vLLM in this process does, and it knows how long its context is."""
    target = adapted(replace(openai_server, options={"max_model_len": 384}, max_model_len=None), adapter).target_only()
    outputs = answers(specdec_session, target)
    with specdec_session.pool.using(target) as engine:
        scores, about = engine.score(WORKLOAD.requests, outputs), engine.description
    assert [[each.argmax for each in several] for several in scores] == [[*ids] for ids in outputs]
    assert (about.context, about.configuration) == (384, {"adapter": adapter})


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_an_adapter_that_is_not_there_is_an_error_of_loading(
    specdec_session: Session, vllm_ar: EngineSpec, transformers_ar: EngineSpec, engine: str, tmp_path: Path
) -> None:
    """It is named."""
    nowhere = str(tmp_path / "nowhere")
    with (
        pytest.raises(EngineError, match=nowhere),
        specdec_session.pool.using(adapted({"vllm": vllm_ar, "transformers": transformers_ar}[engine], nowhere)),
    ):
        pass


def test_an_adapter_in_one_arm_alone_is_refused(
    specdec: Gate, transformers_spec: EngineSpec, transformers_ar: EngineSpec, adapter: str, tmp_path: Path
) -> None:
    """It is an error with the remedy, before anything is judged."""
    scenario = tmp_path / "adapted.toml"
    scenario.write_text('source = { format = "random", length = 16 }\ncount = 4\nmax_tokens = 24\nrounds = 1\n')
    two = f"this engine has the adapter {adapter} and the target alone has none, so these are two models"
    with pytest.raises(pytest.fail.Exception, match=two):
        specdec(replace(adapted(transformers_spec, adapter), reference=transformers_ar), load_scenario(scenario))


def test_what_is_more_than_lora_is_refused_in_transformers(
    specdec_session: Session, transformers_ar: EngineSpec, tmp_path: Path
) -> None:
    """By its setting, with what to do."""
    more = write_adapter(TARGET, tmp_path / "adapter", use_dora=True)
    with (
        pytest.raises(EngineError, match=r"use_dora is more than LoRA on linear layers.* merge_and_unload"),
        specdec_session.pool.using(adapted(transformers_ar, more)),
    ):
        pass
