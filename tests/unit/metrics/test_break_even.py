"""Where speculation stops to pay: between measured values, with the bracket that intervals give, or why nowhere."""

from __future__ import annotations

import pytest

from pytest_specdec.metrics.speedup import NONE_MEASURED, Gain, break_even_concurrency


def gains(*told: tuple[int, float, float, float]) -> dict[int, Gain]:
    return {at: Gain(*gain) for at, *gain in told}


def test_the_crossing_is_interpolated_over_the_logarithm_of_concurrency() -> None:
    """From 2 at 16 requests to 1/2 at 64 the gain falls through 1 half way between them by doublings: at 32."""
    found = break_even_concurrency(gains((64, 0.5, 0.4, 0.6), (1, 3.0, 2.9, 3.1), (16, 2.0, 1.9, 2.1)))
    assert found.concurrency.value == pytest.approx(32)
    assert (found.pays_up_to, found.loses_from) == (16, 64)
    assert found.in_words() == "break-even between 16 and 64, at about 32"


def test_what_an_interval_leaves_open_does_not_narrow_the_bracket() -> None:
    """64 and 128 may be either; and without a value that surely loses the bracket is open."""
    told = ((32, 1.5, 1.4, 1.6), (64, 1.1, 0.9, 1.3), (128, 0.95, 0.8, 1.1), (256, 0.5, 0.4, 0.6))
    found = break_even_concurrency(gains(*told))
    assert (found.pays_up_to, found.loses_from) == (32, 256)
    assert 64 < (found.concurrency.value or 0) < 128
    assert break_even_concurrency(gains(*told[:3])).in_words() == "break-even above 32, at about 100"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ([(1, 2.0, 1.9, 2.1), (256, 1.2, 1.1, 1.3)], "pays at every concurrency measured, up to 256"),
        (
            [(1, 2.0, 1.9, 2.1), (256, 1.2, 0.9, 1.6)],
            "pays at every concurrency measured, up to 256, not surely at 256",
        ),
        ([(1, 0.9, 0.8, 0.95), (8, 0.7, 0.6, 0.8)], "pays at no concurrency measured, from 1 to 8"),
        (
            [(1, 0.9, 0.8, 1.1), (8, 0.7, 0.6, 0.8)],
            "pays at no concurrency measured, from 1 to 8, not surely at 1",
        ),
        ([(1, 0.9, 0.8, 0.95), (8, 1.7, 1.6, 1.8)], "pays from 8 on at every concurrency measured, up to 8"),
        (
            [(1, 1.2, 1.1, 1.3), (4, 0.9, 0.8, 0.95), (16, 1.3, 1.2, 1.4)],
            "pays from 16 on at every concurrency measured, up to 16, and at 1",
        ),
        (
            [(1, 2.2, 2.1, 2.3), (4, 0.9, 0.8, 0.95), (16, 1.01, 0.98, 1.04)],
            "seems to pay, not surely, from 16 on at every concurrency measured, up to 16, and at 1",
        ),
        ([], NONE_MEASURED),
    ],
)
def test_without_a_crossing_there_is_a_reason(told: list[tuple[int, float, float, float]], reason: str) -> None:
    """Never a number beyond what was measured."""
    found = break_even_concurrency(gains(*told))
    assert (found.concurrency.value, found.concurrency.reason, found.in_words()) == (None, reason, reason)


def test_a_gain_without_bounds_is_nowhere_sure() -> None:
    """As where there are too few rounds for an interval."""
    found = break_even_concurrency({1: Gain(2.0), 4: Gain(0.5)})
    assert (found.pays_up_to, found.loses_from) == (None, None)
    assert found.in_words() == "break-even, at about 2"
