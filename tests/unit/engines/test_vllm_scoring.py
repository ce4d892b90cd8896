"""How the vLLM backend reads gaps from prompt logprobs, on rows made by hand."""

from __future__ import annotations

from types import SimpleNamespace

from pytest_specdec.engines.vllm import _scored

EOS = 2


def row(**logits: float) -> dict[int, SimpleNamespace]:
    return {int(token.removeprefix("t")): SimpleNamespace(logprob=logit) for token, logit in logits.items()}


def test_each_token_has_its_gap_to_the_best() -> None:
    rows = [None, row(t5=9.0), row(t7=8.5, t6=10.0)]
    assert _scored([5, 7], rows, (0, [])) == [[0.0, 9.0, 5], [1.5, 10.0, 6]]


def test_an_end_that_is_withheld_is_not_the_best() -> None:
    rows = [row(t2=12.0, t5=9.0), row(t2=12.0, t5=9.0)]
    assert _scored([5, 5], rows, (1, [EOS])) == [[0.0, 9.0, 5], [3.0, 12.0, EOS]]


def test_nothing_emitted_has_no_rows() -> None:
    assert _scored([], [None, row(t5=1.0)], (0, [])) == []
