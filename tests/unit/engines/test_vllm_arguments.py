"""What a specification says reaches vLLM's constructor, and what vLLM's own processes say reaches the test."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_specdec.engines import vllm, worker

SHARDED = {"enable_batch_sharded_sampling": True}
POINTER = (
    "WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
)
UNLIKE = "Currently, 'draft_tensor_parallel_size' and 'tensor_parallel_size' must be the same. Got 1 and 2."
CHILD = "(Worker_TP0 pid=4711) ERROR 11-28 12:00:00 [multiproc_executor.py:901]"
CONFIG: dict[str, Any] = {
    "target": "t",
    "draft": None,
    "method": "none",
    "gamma": None,
    "dtype": "bfloat16",
    "max_model_len": None,
    "options": {},
    "speculative_options": {},
}


def test_what_spreads_an_engine_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executor and parallelism of the target by options, those of the drafter by speculative options."""
    monkeypatch.setattr(vllm, "_platform_arguments", lambda speculates: {})
    monkeypatch.setattr(vllm, "_count_by_request", dict)
    spread = {"distributed_executor_backend": "ray", "tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    drafting = {"draft": "d", "method": "draft_model", "gamma": 3}
    options = {"options": spread, "speculative_options": {"draft_tensor_parallel_size": 1}}
    arguments = vllm._constructor_arguments({**CONFIG, **drafting, **options})
    assert spread.items() <= arguments.items()
    assert arguments["speculative_config"] == {
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "model": "d",
        "draft_tensor_parallel_size": 1,
    }


def test_sharded_sampling_gets_a_number_of_logits_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses -1, which the target alone is given otherwise; what a mark says goes before either."""
    monkeypatch.setattr(vllm, "_platform_arguments", lambda speculates: {"max_logprobs": -1})
    config = {**CONFIG, "method": "none"}
    told = [
        vllm._constructor_arguments({**config, "options": options})["max_logprobs"]
        for options in ({}, SHARDED, {**SHARDED, "max_logprobs": 7})
    ]
    assert told == [-1, 1024, 7]


@pytest.mark.parametrize(
    ("tokenizer", "settings", "ends"),
    [(None, {"eos_token_id": 2}, [2]), (7, {"eos_token_id": [2, 3]}, [2, 3, 7]), (7, {}, [7]), (None, {}, [])],
)
def test_ends_are_those_of_tokenizer_and_generation_settings(
    tokenizer: int | None, settings: dict[str, Any], ends: list[int]
) -> None:
    """As vLLM has them: what the model's configuration alone says is in its settings, where no file has any."""
    model = SimpleNamespace(
        skip_tokenizer_init=tokenizer is None,
        try_get_generation_config=lambda: settings,
        hf_config=SimpleNamespace(eos_token_id=99),
        enable_sleep_mode=False,
    )
    core = SimpleNamespace(model_config=model)
    llm = SimpleNamespace(llm_engine=core, get_tokenizer=lambda: SimpleNamespace(eos_token_id=tokenizer))
    assert vllm.VllmBackend(llm, {**CONFIG, "method": "none"})._eos_token_ids() == ends


def loading(monkeypatch: pytest.MonkeyPatch, log: Path, said: str) -> tuple[str, str]:
    """How a worker reports an engine that ends with a pointer to its log."""

    def refuses(**_: Any) -> None:
        raise Exception(POINTER)

    log.write_text(f"{CHILD} WorkerProc failed to start.\n{said}\nException: {POINTER}\n")
    found = vllm._refusal_in_child
    monkeypatch.setattr(vllm, "_refusal_in_child", lambda: found(str(log)))
    monkeypatch.setattr(vllm, "_platform_arguments", lambda speculates: {})
    monkeypatch.setattr(vllm, "preload", lambda: refuses)
    monkeypatch.setitem(sys.modules, f"{worker.BACKEND}vllm", vllm)
    kind, told = worker.answer(vllm.load, CONFIG)
    return kind, told


def test_a_refusal_of_vllms_own_process_is_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In its words, which vLLM's own exception does not have, so that the test is skipped by name."""
    told = loading(monkeypatch, tmp_path / "log", f"{CHILD} ValueError: {UNLIKE}")
    assert told == ("unsupported", f"ValueError: {UNLIKE}")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (
            "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.",
            "unsupported",
        ),
        ("Model Runner V2 does not yet support: speculative decoding method 'medusa'", "unsupported"),
        ("Model Runner V2 requires Triton.", "unsupported"),
        ("Head size 80 is not supported by this attention back end: the cache is corrupt", "error"),
    ],
)
def test_words_that_nobody_vouches_for_are_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, kind: str
) -> None:
    """That a message happens to say "not supported" makes no skip, which would be green."""
    assert loading(monkeypatch, tmp_path / "log", f"{CHILD} ValueError: {said}") == (kind, f"ValueError: {said}")


def test_a_request_that_vllm_refuses_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own exception is no ValueError; another exception in the same words is a fault."""
    monkeypatch.setitem(sys.modules, f"{worker.BACKEND}vllm", vllm)
    own, other = type("VLLMValidationError", (Exception,), {}), type("RuntimeError", (Exception,), {})
    said = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
    assert [worker.is_refusal(kind(said)) for kind in (own, other)] == [True, False]


def test_a_fault_of_vllms_own_process_is_no_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = loading(monkeypatch, tmp_path / "log", f"{CHILD} torch.OutOfMemoryError: CUDA out of memory")
    assert told == ("error", f"Exception: {POINTER}")


class Left(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize(("is_failed", "end"), [(True, Left), (False, RuntimeError)])
def test_an_engine_that_lost_a_process_of_its_own_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_failed: bool, end: type[BaseException]
) -> None:
    """So it is dead for the pool too, and the next gate gets a new one; after another fault it goes on."""

    def left(status: int) -> None:
        raise Left(status)

    def cancelled() -> None:
        raise RuntimeError("cancelled")

    monkeypatch.setattr(vllm, "_sampling", lambda request: None)
    monkeypatch.setattr(vllm.os, "_exit", left)
    core = SimpleNamespace(
        model_executor=SimpleNamespace(is_failed=is_failed),
        add_request=lambda *_, **__: None,
        abort_request=lambda names: None,
        step=cancelled,
    )
    llm = SimpleNamespace(llm_engine=core, get_metrics=list, reset_prefix_cache=bool)
    backend = vllm.VllmBackend(llm, {"method": "none", "target": "t"})
    backend.prepare([{"prompt_ids": [5]}], 1)
    with pytest.raises(end):
        backend.run()
    assert ("a process of vLLM's executor has died" in capsys.readouterr().err) is is_failed


SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]  # vLLM's own


def graphs_of(gamma: int, sizes: list[int], **more: Any) -> Any:
    """What vLLM's configuration has of CUDA graphs."""
    graphs = SimpleNamespace(
        cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE"),
        cudagraph_capture_sizes=sizes,
        max_cudagraph_capture_size=512,
    )
    drafting, scheduler = SimpleNamespace(num_speculative_tokens=gamma), SimpleNamespace(max_num_seqs=256)
    every = {"compilation_config": graphs, "speculative_config": drafting, "scheduler_config": scheduler}
    return SimpleNamespace(**every | {"use_v2_model_runner": True} | more)


@pytest.mark.parametrize(("gamma", "piecewise"), [(1, []), (2, [4, 5]), (3, []), (4, [3])])
def test_requests_whose_graph_is_piecewise_are_named(gamma: int, piecewise: list[int]) -> None:
    """Of up to five, as vLLM 0.26 was slow on a GPU; with graphs of their own sizes there are none."""
    found = vllm._requests_piecewise(graphs_of(gamma, SIZES), "0.26.0")
    assert [requests for requests in found or () if requests <= 5] == piecewise
    assert vllm._requests_piecewise(graphs_of(gamma, [*range(1, 513)]), "0.26.0") == []


@pytest.mark.parametrize(
    ("version", "more"),
    [
        ("0.29.0", {}),
        ("1.20.0", {}),
        ("dev", {}),
        ("0.1.dev5+g0123", {}),
        ("0.28.0", {"use_v2_model_runner": False}),
        ("0.28.0", {"speculative_config": None}),
    ],
)
def test_where_full_graphs_go_first_none_is_named(version: str, more: dict[str, Any]) -> None:
    assert vllm._requests_piecewise(graphs_of(2, SIZES, **more), version) is None
