"""The noise floor: what the calibration's scores say, in logits and in ULPs."""

from __future__ import annotations

import math

import pytest

from pytest_specdec.generation import Score
from pytest_specdec.verdict.noise import compare_near_ties, noise_floor, ulp


@pytest.mark.parametrize(
    ("magnitude", "dtype", "expected"),
    [
        (16.0, "bfloat16", 0.125),
        (31.9, "bfloat16", 0.125),
        (15.9, "bfloat16", 0.0625),
        (10.0, "float16", 2**-7),
        (10.0, "float32", 2**-20),
    ],
)
def test_ulp_is_that_of_neighbouring_numbers(magnitude: float, dtype: str, expected: float) -> None:
    assert ulp(magnitude, dtype) == expected


def test_ulp_agrees_with_the_platform_for_doubles() -> None:
    assert ulp(10.0, "float64") == math.ulp(10.0)


@pytest.mark.parametrize(
    ("magnitude", "dtype"), [(0.0, "bfloat16"), (math.inf, "bfloat16"), (math.nan, "float32"), (1.0, "fp8")]
)
def test_ulp_is_none_where_it_is_not_known(magnitude: float, dtype: str) -> None:
    assert ulp(magnitude, dtype) is None


def test_the_floor_is_the_largest_gap_of_the_calibration() -> None:
    floor = noise_floor([[Score(0.0, 10.0, 1), Score(0.25, 20.0, 2)]], "bfloat16", disagreements=1, compared=4)
    assert (floor.gap, floor.ulp, floor.tokens, floor.near_ties, floor.bound) == (0.25, 0.125, 2, 1, 0.375)


def test_two_ulps_are_a_tie_even_if_the_calibration_saw_none() -> None:
    assert noise_floor([[Score(0.0, 20.0, 1)]], "bfloat16", 0, 1).bound == 0.25


def test_without_logits_the_measured_gap_is_the_bound() -> None:
    assert noise_floor([[Score(0.01, None, 1)]], "bfloat16", 0, 1).bound == 0.01


def test_a_target_that_strays_far_from_its_own_argmax_decides_nothing() -> None:
    reason = noise_floor([[Score(4.0, 20.0, 1)]], "bfloat16", 0, 1).insane
    assert reason == "target-only output strays 32 bfloat16 ULPs from its own argmax (sane: 8)"


def test_logits_that_are_no_numbers_decide_nothing() -> None:
    assert (
        noise_floor([[Score(math.nan, 20.0, 1)]], "bfloat16", 0, 1).insane == "the target's own logits are not numbers"
    )


def test_gaps_are_counted_in_ulps_at_their_own_magnitude() -> None:
    scores = [Score(0.0, 20.0, 1), Score(0.125, 20.0, 1), Score(0.125, 10.0, 1)]
    assert noise_floor([scores], "bfloat16", 0, 1).histogram == ((0, 1), (1, 1), (2, 1))


def test_a_target_that_is_often_not_its_own_argmax_decides_nothing() -> None:
    scores = [Score(0.125, 20.0, 1)] * 30 + [Score(0.0, 20.0, 1)] * 70
    assert (
        noise_floor([scores], "bfloat16", 0, 1).insane
        == "30 of 100 target-only tokens are not its own argmax (sane: 25%)"
    )


@pytest.mark.parametrize(("judged", "too_many"), [(4, False), (8, False), (20, True), (0, False)])
def test_near_ties_are_too_many_only_beyond_chance(judged: int, too_many: bool) -> None:
    floor = noise_floor([[Score(0.125, 20.0, 1)] * 4 + [Score(0.0, 20.0, 1)] * 396], "bfloat16", 0, 1)
    assert compare_near_ties(floor, judged, 400).too_many is too_many


def test_the_p_value_is_that_of_the_conditional_binomial() -> None:
    floor = noise_floor([[Score(0.125, 20.0, 1)] + [Score(0.0, 20.0, 1)] * 99], "bfloat16", 0, 1)
    assert compare_near_ties(floor, 3, 100).p_value == pytest.approx(5 / 16)


def test_the_rate_is_that_of_the_batch_size_where_near_ties_are_most_frequent() -> None:
    """Batch 1 strays on one token in ten here; pooled with the rest, its own rate would look like a fault."""
    together = [Score(0.0, 20.0, 1)] * 6000
    alone = [Score(0.125, 20.0, 1)] * 10 + [Score(0.0, 20.0, 1)] * 90
    floor = noise_floor([together, alone], "bfloat16", 0, 1)
    assert (floor.near_ties, floor.tokens, floor.rate) == (10, 6100, (10, 100))
    assert not compare_near_ties(floor, 18, 200).too_many
