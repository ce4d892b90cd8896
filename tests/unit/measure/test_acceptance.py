"""Acceptance from counters: the definitions, and that contradictions are refused instead of clamped."""

from __future__ import annotations

import pytest

from pytest_specdec.generation import Speculation
from pytest_specdec.measure.acceptance import Acceptance, acceptance


def test_rates_follow_from_the_counters() -> None:
    assert acceptance(Speculation(10, 40, 20, (9, 6, 3, 2))) == Acceptance(0.5, 3.0, (0.9, 0.6, 0.3, 0.2))


@pytest.mark.parametrize("counted", [None, Speculation(0, 0, 0, ())])
def test_nothing_drafted_has_no_rate(counted: Speculation | None) -> None:
    assert acceptance(counted) is None


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        (Speculation(10, 40, 41, ()), "more tokens accepted"),
        (Speculation(10, 40, 20, (9, 6, 3, 1)), "does not add up"),
        (Speculation(10, 40, 20, (6, 9, 3, 2)), "more often than an earlier one"),
    ],
)
def test_counters_that_contradict_each_other_are_refused(counted: Speculation, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        acceptance(counted)


def test_counters_of_rounds_add_up() -> None:
    assert Speculation(1, 2, 1, (1, 0)) + Speculation(2, 8, 3, (2, 1, 0, 0)) == Speculation(3, 10, 4, (3, 1, 0, 0))
