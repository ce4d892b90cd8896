"""How the vLLM backend reads gaps from prompt logprobs, on rows made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_specdec.engines.vllm import _Rating

EOS = 2
FREE: tuple[int, list[int]] = (0, [])


def row(**logits: float) -> dict[int, SimpleNamespace]:
    return {int(token.removeprefix("t")): SimpleNamespace(logprob=logit) for token, logit in logits.items()}


def result(prompt: list[Any], generated: list[Any] | None = None) -> SimpleNamespace:
    return SimpleNamespace(prompt_logprobs=prompt, outputs=[SimpleNamespace(logprobs=generated)])


def test_each_token_has_its_gap_to_the_best_and_the_runner_ups() -> None:
    asked = _Rating([1], [5, 7], FREE, context=64)
    assert asked.ids == [1, 5, 7]
    assert asked.rows(result([None, row(t5=9.0), row(t7=8.5, t6=10.0)])) == [[0.0, 9.0, 5, None], [1.5, 10.0, 6, 1.5]]


def test_an_end_that_is_withheld_is_not_the_best() -> None:
    asked = _Rating([1], [5, 5], (1, [EOS]), context=64)
    rows = asked.rows(result([None, row(t2=12.0, t5=9.0), row(t2=12.0, t5=9.0)]))
    assert rows == [[0.0, 9.0, 5, None], [3.0, 12.0, EOS, 3.0]]


def test_the_token_that_fills_the_context_is_read_where_it_is_generated() -> None:
    asked = _Rating([1], [5, 7], FREE, context=3)
    assert asked.ids == [1, 5]
    assert asked.rows(result([None, row(t5=9.0)], [row(t7=8.0, t6=9.5)])) == [[0.0, 9.0, 5, None], [1.5, 9.5, 6, 1.5]]


def test_nothing_emitted_has_no_rows() -> None:
    assert _Rating([1], [], FREE, context=64).rows(result([None, row(t5=1.0)])) == []
