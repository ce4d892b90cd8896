"""What a specification says reaches vLLM's constructor."""

from __future__ import annotations

import pytest

from pytest_specdec.engines import vllm


def test_what_spreads_an_engine_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executor and parallelism of the target by options, those of the drafter by speculative options."""
    monkeypatch.setattr(vllm, "_platform_arguments", lambda speculates: {})
    monkeypatch.setattr(vllm, "_counted_by_request", dict)
    spread = {"distributed_executor_backend": "ray", "tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    arguments = vllm._constructor_arguments(
        {
            "target": "t",
            "draft": "d",
            "method": "draft_model",
            "gamma": 3,
            "dtype": "bfloat16",
            "max_model_len": None,
            "options": spread,
            "speculative_options": {"draft_tensor_parallel_size": 1},
        }
    )
    assert spread.items() <= arguments.items()
    assert arguments["speculative_config"] == {
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "model": "d",
        "draft_tensor_parallel_size": 1,
    }
