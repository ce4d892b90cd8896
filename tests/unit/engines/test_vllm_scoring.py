"""How the vLLM backend reads gaps from prompt logprobs, on rows made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_specdec.engines.vllm import Rating

EOS = 2
FREE: tuple[int, list[int]] = (0, [])


Position = list[tuple[int, float]]


def flat(*positions: Position) -> SimpleNamespace:
    """As vLLM's FlatLogprobs: of each position the emitted token first, then the best."""
    ends = [sum(map(len, positions[: at + 1])) for at in range(len(positions))]
    entries = [entry for position in positions for entry in position]
    return SimpleNamespace(
        start_indices=[end - len(position) for end, position in zip(ends, positions, strict=True)],
        end_indices=ends,
        token_ids=[token for token, _ in entries],
        logprobs=[logit for _, logit in entries],
    )


def result(prompt: SimpleNamespace, generated: SimpleNamespace | None = None) -> SimpleNamespace:
    return SimpleNamespace(prompt_logprobs=prompt, outputs=[SimpleNamespace(logprobs=generated)])


def test_each_token_has_its_gap_to_the_best_and_the_runner_ups() -> None:
    """Also where it is the best itself; of equals the emitted one is the argmax."""
    asked = Rating([1], [5, 7, 8], FREE, context=64, most=2)
    assert asked.ids == [1, 5, 7, 8]
    told = flat(
        [],
        [(5, 9.0), (5, 9.0), (6, 7.0)],
        [(7, 8.5), (6, 10.0), (5, 9.5)],
        [(8, 4.0), (3, 4.0), (8, 4.0)],
    )
    assert asked.rows(result(told)) == [[0.0, 9.0, 5, 2.0], [1.5, 10.0, 6, 0.5], [0.0, 4.0, 8, 0.0]]


def test_an_end_that_is_withheld_is_not_the_best() -> None:
    asked = Rating([1], [5, 5], (1, [EOS]), context=64, most=2)
    best = [(EOS, 12.0), (5, 9.0), (6, 8.0)]
    rows = asked.rows(result(flat([], [(5, 9.0), *best], [(5, 9.0), *best])))
    assert rows == [[0.0, 9.0, 5, 1.0], [3.0, 12.0, EOS, 3.0]]


def test_the_token_that_fills_the_context_is_read_where_it_is_generated() -> None:
    asked = Rating([1], [5, 7], FREE, context=3, most=2)
    assert asked.ids == [1, 5]
    told = result(flat([], [(5, 9.0), (5, 9.0), (4, 8.0)]), flat([(7, 8.0), (6, 9.5), (7, 8.0)]))
    assert asked.rows(told) == [[0.0, 9.0, 5, 1.0], [1.5, 9.5, 6, 1.5]]


def test_nothing_emitted_has_no_rows() -> None:
    assert Rating([1], [], FREE, context=64).rows(result(flat([]))) == []


def rankings(asked: Rating, answer: SimpleNamespace, vocabulary: int = 9) -> list[list[Any]]:
    told = asked.rankings(answer, vocabulary)
    return [[*map(list, row[:2]), *row[2:]] for row in told]


def test_each_token_has_its_place_among_the_best() -> None:
    """A token that is not among them has none."""
    asked = Rating([1], [5, 7, 8], FREE, context=64, most=2)
    best = [(6, 9.5), (5, 9.0)]
    answer = result(flat([], [(5, 9.0), *best], [(7, 1.0), *best], [(6, 9.5), *best]))
    assert rankings(asked, answer) == [
        [[9.5, 9.0], [6, 5], 1, False],
        [[9.5, 9.0], [6, 5], None, False],
        [[9.5, 9.0], [6, 5], None, False],
    ]


def test_all_of_the_vocabulary_are_told_as_all() -> None:
    asked = Rating([1], [5], FREE, context=64, most=2)
    answer = result(flat([], [(5, 9.0), (6, 9.5), (5, 9.0)]))
    assert rankings(asked, answer, vocabulary=2) == [[[9.5, 9.0], [6, 5], 1, True]]


def test_the_place_of_a_token_that_fills_the_context_is_read_where_it_is_generated() -> None:
    asked = Rating([1], [5, 7], FREE, context=3, most=1)
    answer = result(flat([], [(5, 9.0), (5, 9.0)]), flat([(7, 8.0), (6, 9.5)]))
    assert rankings(asked, answer) == [[[9.0], [5], 0, False], [[9.5], [6], None, False]]
