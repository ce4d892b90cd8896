"""The noise floor: what the calibration's scores say in ULPs, what a gate may spend, and what it finds."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.evidence.greedy_simulation import FAULTS, Engine, rounding, share_red

from pytest_specdec.generation import Score
from pytest_specdec.verdict.noise import (
    LEVEL,
    PLAIN,
    ROWS,
    VERIFYING,
    NoiseFloor,
    Null,
    Sensitivity,
    compare_near_ties,
    count_near_ties,
    find_limits,
    gap_in_ulps,
    level_of_gate,
    noise_floor,
    too_few_tokens,
    ulp,
)

EXACT = Score(0.0, 20.0, 1)
TIE = Score(0.125, 20.0, 1)


def row(near_ties: int, tokens: int) -> list[Score]:
    return [replace(TIE) for _ in range(near_ties)] + [replace(EXACT) for _ in range(tokens - near_ties)]


def floor_of(scores: Sequence[Score], dtype: str = "bfloat16") -> NoiseFloor:
    return noise_floor(scores, dtype)


@pytest.mark.parametrize(
    ("magnitude", "dtype", "expected"),
    [
        (16.0, "bfloat16", 0.125),
        (31.9, "bfloat16", 0.125),
        (15.9, "bfloat16", 0.0625),
        (10.0, "float16", 2**-7),
        (10.0, "float32", 2**-20),
        (0.001, "bfloat16", 2**-7),
    ],
)
def test_ulp_is_that_of_neighbouring_numbers(magnitude: float, dtype: str, expected: float) -> None:
    """From 1 on; below, a logit is the sum of larger numbers."""
    assert ulp(magnitude, dtype) == expected


def test_ulp_agrees_with_the_platform_for_doubles() -> None:
    assert ulp(10.0, "float64") == math.ulp(10.0)


def test_a_tie_is_told_by_the_ulp_of_its_own_logit() -> None:
    """Half a logit is 4 ULPs at 20, and 32 at 3.75; a large logit elsewhere does not excuse it."""
    floor = floor_of([*row(70, 6400), Score(0.25, 41.75, 1)])
    assert floor.is_beyond(Score(0.5, 3.75, 1))
    assert not floor.is_beyond(Score(0.5, 20.0, 1))


def test_one_stray_token_of_the_target_does_not_move_the_floor() -> None:
    """The furthest of the calibration counts like the second."""
    ordinary, strayed = floor_of(row(70, 6400)), floor_of([*row(70, 6400), Score(1.0, 20.0, 1)])
    assert (ordinary.bound, strayed.bound) == (4, 4)


def test_an_output_that_two_shapes_gave_is_one_observation() -> None:
    """A stray token that both batch sizes give is one still."""
    strayed = [*row(70, 6400), Score(1.0, 20.0, 1)]
    floor = noise_floor([*strayed, *strayed], "bfloat16")
    assert (floor.tokens, floor.near_ties, floor.bound) == (6401, 71, 4)


def test_a_target_that_often_strays_further_has_a_higher_floor() -> None:
    wide = [replace(each, gap=3 * each.gap) for each in row(70, 6400)]
    assert floor_of(wide).bound > floor_of(row(70, 6400)).bound


def test_the_floor_rises_with_the_tokens_and_with_the_gates() -> None:
    """Among more tokens rounding goes further, and a later gate has less of the level."""
    floor = floor_of(row(70, 6400))
    bounds = [floor.for_gate(tokens, level_of_gate(1)).bound for tokens in (400, 6400, 100_000)]
    assert bounds == [3, 4, 4]
    assert floor.for_gate(6400, level_of_gate(200)).bound == 6


def test_a_calibration_without_a_near_tie_takes_the_measured_one_for_its_own() -> None:
    assert floor_of(row(0, 400)).bound == 3


@pytest.mark.parametrize("name", ["float16", "half", "torch.float16"])
def test_every_name_of_a_dtype_has_its_ulp(name: str) -> None:
    """One ULP at 20 in float16; as bfloat16 it would be an eighth of one."""
    floor = floor_of(row(0, 400), name)
    assert (floor.dtype, gap_in_ulps(Score(2**-6, 20.0, 1), floor.dtype), floor.unknown) == ("float16", 1.0, ())


@pytest.mark.parametrize("name", ["auto", "fp8"])
def test_a_dtype_without_an_ulp_is_told_and_no_tie_is_called_a_fault(name: str) -> None:
    floor = floor_of(row(0, 400), name)
    assert not floor.is_beyond(TIE)
    assert floor.unknown == (f"the dtype {name!r} has no known ULP: that of bfloat16 is taken",)


def test_without_logits_a_tie_is_a_tie_and_what_is_not_known_is_said() -> None:
    """Log-probabilities tell distances, not at which magnitude."""
    floor = floor_of([Score(0.0, None, 1)])
    assert not floor.is_beyond(Score(0.25, None, 1))
    assert floor.unknown == ("the target gives no raw logits, so the ULP of logits from 32 on is taken",)


def test_a_target_that_strays_far_from_its_own_argmax_decides_nothing() -> None:
    reason = floor_of([Score(4.0, 20.0, 1)]).insane
    assert reason == "target-only output strays 32 bfloat16 ULPs from its own argmax (sane: 8)"


def test_logits_that_are_no_numbers_decide_nothing() -> None:
    assert floor_of([Score(math.nan, 20.0, 1)]).insane == "the target's own logits are not numbers"


def test_gaps_are_counted_in_ulps_at_their_own_magnitude() -> None:
    scores = [EXACT, TIE, Score(0.125, 10.0, 1)]
    assert floor_of(scores).histogram == ((0, 1), (1, 1), (2, 1))


def test_a_target_that_is_often_not_its_own_argmax_decides_nothing() -> None:
    reason = floor_of(row(30, 100)).insane
    assert reason == "30 of 100 target-only tokens are not its own argmax (sane: 25%)"


def test_near_ties_are_held_against_the_shape_that_was_judged() -> None:
    """Batch 1 strays on 2 of 256 tokens, batch 8 on none of 6,400: 285 of 6,400 are too many at batch 8."""
    plain = row(0, 6400)
    floor = noise_floor([*plain, *row(2, 256)], "bfloat16", judged=(PLAIN, plain))
    assert compare_near_ties(floor, 285, 6400).too_many


def test_a_shape_that_rounds_twice_as_often_is_no_fault_however_many_tokens() -> None:
    """0.05 % in plain decoding and 0.10 % in verification."""
    floor = noise_floor(row(50, 100_000), "bfloat16")
    assert not compare_near_ties(floor, 100, 100_000).too_many


def test_steps_of_verification_are_the_null_where_there_are_any() -> None:
    floor = noise_floor(row(0, 6400), "bfloat16", judged=(VERIFYING, row(30, 6400)))
    assert floor.null == Null(30, 6400, VERIFYING)
    assert not compare_near_ties(floor, 45, 6400).suspect
    assert compare_near_ties(floor, 90, 6400).suspect


def test_a_second_look_that_finds_nothing_clears_the_first() -> None:
    floor = noise_floor(row(0, 6400), "bfloat16")
    first, second = compare_near_ties(floor, 60, 6400), compare_near_ties(floor, 1, 6400)
    looks = [first, replace(first, again=second), replace(first, again=first)]
    assert [each.too_many for each in looks] == [True, False, True]


def test_the_p_value_is_that_of_the_conditional_binomial() -> None:
    """At three times the calibration's rate, three of four tokens of equal samples fall to the judged one."""
    floor = replace(floor_of(row(1, 100)), null=Null(1, 100, PLAIN))
    assert compare_near_ties(floor, 3, 100).p_value == pytest.approx(4 * 0.75**3 * 0.25 + 0.75**4)


def test_the_gates_of_a_session_spend_no_more_than_its_level() -> None:
    """However many; the first gates can be judged by the larger part."""
    spent = sum(map(level_of_gate, range(1, 100_000)))
    assert LEVEL / 2 < level_of_gate(1) + level_of_gate(2) < spent < LEVEL


TOKENS = 6400


@cache
def sample(tokens: int = TOKENS) -> list[Score]:
    """Exact choices of top logits from 4 to 40, their runner-ups 1 to 60 ULPs below."""
    draw = random.Random(5)
    tops = [draw.uniform(4.0, 40.0) for _ in range(tokens)]
    return [Score(0.0, top, 1, draw.randint(1, 60) * 2.0 ** (len(bin(int(top))) - 10)) for top in tops]


def limits_of(scores: Sequence[Score]) -> Sensitivity:
    """Judged against as many tokens of verification, none of them a near-tie."""
    floor = noise_floor(sample(), "bfloat16", judged=(VERIFYING, sample(len(scores))))
    return find_limits(scores, floor.for_gate(len(scores), floor.level), len(scores))


def plant(scores: Sequence[Score], count: int, draw: random.Random, where: Sequence[int]) -> list[Score]:
    """So many of the tokens at these places replaced by their runner-ups."""
    planted = list(scores)
    for at in draw.sample(where, count):
        planted[at] = replace(scores[at], gap=scores[at].runner_up or 0.0)
    return planted


def test_planted_near_ties_are_too_many_from_the_limit_on() -> None:
    """With the limit's number, give or take what chance does to it, in 95 of 100; with half of it in none."""
    limits, draw = limits_of(sample()), random.Random(7)
    assert limits.near_ties is not None
    runner_ups = [replace(score, gap=score.runner_up or 0.0) for score in sample()]
    within = [at for at, runner_up in enumerate(runner_ups) if not limits.floor.is_beyond(runner_up)]
    counts = [sum(draw.random() < limits.near_ties / TOKENS for _ in range(TOKENS)) for _ in range(100)]
    found = [
        compare_near_ties(limits.floor, count_near_ties(plant(sample(), count, draw, within)), TOKENS).too_many
        for count in counts
    ]
    assert sum(found) >= 92
    few = plant(sample(), limits.near_ties // 2, draw, within)
    assert not compare_near_ties(limits.floor, count_near_ties(few), TOKENS).too_many


def test_planted_runner_ups_are_beyond_the_floor_from_the_limit_on() -> None:
    """At least one of so many in 95 of 100; of one fewer, less often than that."""
    limits, draw = limits_of(sample()), random.Random(3)
    assert limits.lossy is not None
    found = [any(map(limits.floor.is_beyond, plant(sample(), limits.lossy, draw, range(TOKENS)))) for _ in range(100)]
    assert sum(found) >= 92
    assert (limits.candidates / TOKENS) ** (limits.lossy - 1) > 0.05


def test_the_statement_has_the_three_limits() -> None:
    limits = limits_of(sample())
    assert limits.statement == (
        f"would have found, with 95 %: one token beyond {limits.floor.bound} ULPs; "
        f"a lossy acceptance of {limits.lossy} or more runner-ups, however far (0.03%); "
        f"and, in 8 of 10 gates at least, wrong near-ties: {limits.near_ties} of 6400 tokens or more"
    )


def test_the_page_s_example() -> None:
    """How far and how often, from one calibration."""
    scores = row(11, 2000)
    floor = noise_floor(scores, "bfloat16", (VERIFYING, scores))
    most = next(count for count in range(2000) if compare_near_ties(floor, count + 1, 2000).suspect)
    page = (Path(__file__).parents[3] / "docs" / "verdict.md").read_text("utf-8")
    assert f"Then the floor of a gate on 2,000 tokens is {floor.bound} ULPs" in page
    assert f"and {most + 1} tokens below the argmax, however near, are too many, where {most} are not" in page


def test_where_runner_ups_are_far_no_number_of_near_ties_can_be_wrong() -> None:
    far = [replace(score, runner_up=9.0) for score in sample(400)]
    limits = limits_of(far)
    assert (limits.candidates, limits.near_ties, limits.lossy) == (0, None, 1)
    assert "near-ties" not in limits.statement


def test_an_engine_that_tells_no_runner_up_limits_what_is_said() -> None:
    unknown = limits_of([replace(score, runner_up=None) for score in sample(400)])
    assert (unknown.near_ties, unknown.lossy) == (None, None)


def test_too_few_tokens_say_how_many_more_it_takes() -> None:
    """And with so many more the share is found."""
    limits = limits_of(sample(400))
    (words,) = too_few_tokens(limits, {"near_ties": 0.01})
    more = limits.tokens_wanted("near_ties", 0.01)
    assert words == f"too few tokens to find 1.00% wrong near-ties: {more} more; detects.near_ties"
    assert more is not None
    assert more > 0
    later = limits_of(sample(400 + more))
    assert later.near_ties is not None
    assert later.near_ties <= 0.01 * (400 + more)


def test_where_a_sample_is_rated_more_tokens_do_not_make_the_calibration_larger() -> None:
    """So no number of them may do, where all of them rated would."""
    limits = limits_of(sample(400))
    rated = replace(limits, rated=limits.tokens - 1)
    whole, part = (each.tokens_wanted("near_ties", 0.005) for each in (limits, rated))
    assert whole is not None
    assert part is None or part > whole


def test_enough_tokens_say_nothing() -> None:
    assert too_few_tokens(limits_of(sample()), {"near_ties": 0.01, "lossy": 0.001}) == []


SOUND = Engine(rounding(), rounding())


@pytest.mark.parametrize("gate", [1, 50])
def test_simulated_gates_of_sound_twins_are_green(gate: int) -> None:
    assert share_red(SOUND, 6400, 1000, level_of_gate(gate)) == 0.0


def test_simulated_verification_that_rounds_twice_as_often_is_green() -> None:
    """At 100,000 tokens, where an exact test would tell any difference."""
    assert share_red(Engine(rounding(), rounding(2.0), shape=ROWS), 100_000, 300, level_of_gate(1)) == 0.0


@pytest.mark.parametrize("fault", ["lossy acceptance", "fp8 cache in one arm"])
def test_simulated_faults_that_reach_further_than_rounding_are_red(fault: str) -> None:
    """Late in a session as well."""
    engine = Engine(rounding(), rounding(), FAULTS[fault])
    assert share_red(engine, 6400, 200, level_of_gate(1)) == 1.0
    assert share_red(engine, 6400, 200, level_of_gate(200)) > 0.95
