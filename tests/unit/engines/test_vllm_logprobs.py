"""How the vLLM backend reads returned log-probabilities: of each token its own, as vLLM gives them with a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_specdec.engines.vllm import _Answer


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
