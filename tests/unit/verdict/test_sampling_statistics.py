"""The pieces of the sampling verdict, each against a textbook, a library or a simulation: G, Holm, power, bounds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.verdict.binomial import quantile

from pytest_specdec.errors import ConfigurationError, EngineError
from pytest_specdec.verdict.sampling import KnownTarget, SampledTarget, frequent_prefixes, holm
from pytest_specdec.verdict.sampling_statistics import (
    Comparison,
    SamplingPlan,
    Tally,
    against_known,
    against_sample,
    power,
    separate_tokens,
    tail,
)

UNIFORM_4 = [0.25] * 4


def test_tokens_expected_less_than_five_times_share_a_cell() -> None:
    """And the most expected tokens come first."""
    assert separate_tokens({1: 40.0, 2: 50.0, 3: 4.9, 4: 5.1}, total=100.0) == [2, 1]
    assert separate_tokens({1: 40.0, 2: 50.0, 3: 4.9, 4: 5.1, 5: 5.0}, total=105.0) == [2, 1, 4]


def test_a_common_cell_below_five_takes_the_rarest_token_in() -> None:
    comparison = against_known((), {0: 70, 1: 20, 2: 10}, [0.7, 0.2, 0.099, 0.001])
    assert [(cell.token, cell.observed) for cell in comparison.cells] == [(0, 70), (1, 20), (None, 10)]


@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=12).filter(lambda counts: sum(counts) > 0),
    st.lists(st.floats(0.0, 1.0), min_size=12, max_size=12).filter(lambda weights: sum(weights[:2]) > 0),
)
@settings(max_examples=100)
def test_every_sample_is_in_one_cell_and_every_cell_expects_five(counts: list[int], weights: list[float]) -> None:
    """Whatever the distribution; a lone cell is not tested at all."""
    known = [weight / sum(weights[: len(counts)]) for weight in weights[: len(counts)]]
    comparison = against_known((), dict(enumerate(counts)), known)
    assert sum(cell.observed for cell in comparison.cells) == sum(counts)
    assert sum(cell.expected for cell in comparison.cells) == pytest.approx(sum(counts))
    assert comparison.dof == len(comparison.cells) - 1
    if comparison.dof:
        assert min(cell.expected for cell in comparison.cells) >= 5 - 1e-6


def test_a_token_that_the_target_never_emits_is_counted() -> None:
    """It falls into the common cell, also when its id lies beyond the distribution."""
    comparison = against_known((), {0: 50, 9: 50}, [0.5, 0.5])
    assert [(cell.token, cell.observed) for cell in comparison.cells] == [(0, 50), (None, 50)]
    missing = against_known((), {0: 100}, [0.5, 0.5])
    assert missing.total_variation == 0.5


def test_the_statistic_against_a_known_distribution_is_the_corrected_g_of_scipy() -> None:
    """With Williams' divisor for equal shares, 1 + (k² − 1) / (6·n·(k − 1))."""
    from scipy.stats import power_divergence

    counts = [30, 22, 28, 20]
    plain = power_divergence(counts, [25] * 4, lambda_="log-likelihood").statistic
    comparison = against_known((), dict(enumerate(counts)), UNIFORM_4)
    assert comparison.statistic == pytest.approx(plain / (1 + (4**2 - 1) / (6 * 100 * 3)))
    assert (comparison.dof, comparison.samples) == (3, 100)
    assert comparison.total_variation == pytest.approx((5 + 3 + 3 + 5) / 200)


def test_the_statistic_of_two_samples_is_the_corrected_g_of_scipy() -> None:
    """With Williams' divisor for a table of two rows."""
    from scipy.stats import chi2_contingency

    ours, theirs = [30, 50, 20], [60, 70, 70]
    plain = chi2_contingency([ours, theirs], correction=False, lambda_="log-likelihood").statistic
    comparison = against_sample((), dict(enumerate(ours)), dict(enumerate(theirs)))
    columns = sum(300 / (mine + his) for mine, his in zip(ours, theirs, strict=True))
    assert comparison.statistic == pytest.approx(
        plain / (1 + (300 / 100 + 300 / 200 - 1) * (columns - 1) / (6 * 300 * 2))
    )
    assert comparison.total_variation == pytest.approx((abs(0.3 - 0.3) + abs(0.5 - 0.35) + abs(0.2 - 0.35)) / 2)
    assert comparison.effective == pytest.approx(100 * 200 / 300, rel=0.02)
    assert {cell.token: (cell.observed, cell.target) for cell in comparison.cells} == {
        1: (50, 70),
        0: (30, 60),
        None: (20, 70),
    }


@pytest.mark.parametrize(
    "comparison",
    [
        against_known((), {0: 1000}, [1.0, 0.0]),
        against_known((), {}, UNIFORM_4),
        against_sample((), {0: 4}, {0: 2, 1: 2}),
        against_sample((), {}, {0: 50, 1: 50}),
        against_sample((), {}, {}),
    ],
    ids=["certain", "no samples", "few samples", "one arm empty", "both empty"],
)
def test_what_cannot_be_tested_tells_nothing(comparison: Comparison) -> None:
    """No degree of freedom, no sample that counts."""
    assert (comparison.dof, comparison.effective, comparison.statistic) == (0, 0.0, 0.0)


@pytest.mark.parametrize("known", [[0.6, 0.3, 0.06, 0.04], [0.1] * 10], ids=["skewed", "flat"])
@pytest.mark.parametrize("two_samples", [False, True], ids=["known", "sampled"])
def test_one_test_keeps_its_level_at_the_smallest_counts(known: list[float], two_samples: bool) -> None:
    """2000 tables with expected counts down to 5: false alarms at 1 % within a binomial error of 10⁻⁴."""
    rng = np.random.default_rng(1)
    tables, samples, level = 2000, 125, 0.01
    arms = rng.multinomial(samples, known, size=(2, tables))
    alarms = 0
    for ours, theirs in zip(arms[0].tolist(), arms[1].tolist(), strict=True):
        compared = (
            against_sample((), dict(enumerate(ours)), dict(enumerate(theirs)))
            if two_samples
            else against_known((), dict(enumerate(ours)), known)
        )
        alarms += tail(compared.statistic, compared.dof) <= level
    assert quantile(1e-4, tables, level / 2) <= alarms <= quantile(1 - 1e-4, tables, level)


def test_holm_is_the_textbook_example() -> None:
    """The smallest p-value times 4, the next times 3, and never less than the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_lies_between_no_correction_and_bonferroni(p_values: list[float]) -> None:
    """And is stricter than control of the false discovery rate."""
    from scipy.stats import false_discovery_control

    corrected = holm(p_values)
    discovery = false_discovery_control(p_values)
    for index, p_value in enumerate(p_values):
        assert p_value <= corrected[index] <= min(1.0, len(p_values) * p_value)
        assert corrected[index] >= discovery[index] - 1e-12
    assert [corrected[i] for i in np.argsort(p_values, kind="stable")] == sorted(corrected)


def test_tail_and_power_are_those_of_scipy() -> None:
    """χ² and noncentral χ²; a noncentrality of 4·n·δ²."""
    from scipy.stats import chi2, ncx2

    assert tail(9.3, 3) == pytest.approx(chi2.sf(9.3, 3))
    expected = ncx2.sf(chi2.isf(1e-3, 3), 3, 4 * 800 * 0.1**2)
    assert power(3, 800, 0.1, 1e-3) == pytest.approx(expected)
    assert (tail(0.0, 0), power(0, 0.0, 0.1, 1e-3)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "shift",
    [(0.1, -0.1, 0, 0), (0.05, 0.05, -0.05, -0.05), (0.1, -0.1 / 3, -0.1 / 3, -0.1 / 3)],
    ids=["one to one", "halves", "one to all"],
)
def test_any_difference_of_that_size_is_found_with_the_power_stated(shift: tuple[float, ...]) -> None:
    """2000 samplings of each form: found as often as stated, within a binomial error of 10⁻⁴, or more often."""
    samples, level, runs = 700, 1e-3, 2000
    truth = np.array(UNIFORM_4) + np.array(shift)
    found = 0
    for counts in np.random.default_rng(2).multinomial(samples, truth, size=runs).tolist():
        compared = against_known((), dict(enumerate(counts)), UNIFORM_4)
        found += tail(compared.statistic, compared.dof) <= level
    stated = power(3, against_known((), dict.fromkeys(range(4), samples // 4), UNIFORM_4).effective, 0.1, level)
    assert 0.8 < stated < 0.999
    assert found >= quantile(1e-4, runs, stated)


def test_the_tally_counts_what_followed_each_prefix() -> None:
    """Tokens beyond those asked for are not looked at."""
    tally = Tally(lambda seeds: [(1, 2, 9), (1, 3), (2, 2)], 2)
    tally.observe([5, 6, 7])
    assert (tally.after(()), tally.after((1,))) == (Counter({1: 2, 2: 1}), Counter({2: 1, 3: 1}))
    assert (tally.after((1, 2)), tally.samples) == (Counter(), 3)


def test_a_sample_that_is_missing_or_short_is_an_error() -> None:
    """Counting what is there would judge the samples that happened to be long."""
    with pytest.raises(EngineError, match="1 samples came for 2 seeds"):
        Tally(lambda seeds: [(1,)], 1).observe([5, 6])
    with pytest.raises(EngineError, match="the sample of seed 6 has 1 tokens, not 2 as asked for"):
        Tally(lambda seeds: [(1, 2), (1,)], 2).observe([5, 6])


def test_prefixes_are_the_most_probable_of_each_length() -> None:
    """By the probability of the whole prefix, among those that extend a chosen one."""
    target = KnownTarget(lambda prefix: [0.6, 0.3, 0.1] if not prefix or prefix[-1] else [0.4, 0.35, 0.25])
    assert frequent_prefixes(target, depth=2, width=2) == [[()], [(0,), (1,)], [(0, 0), (0, 1)]]
    assert frequent_prefixes(target, depth=1, width=1) == [[()], [(0,)]]


def test_prefixes_of_a_sampled_target_are_its_own_most_frequent_ones() -> None:
    target = SampledTarget(lambda seeds: [(1, 2), (1, 2), (1, 3), (4, 4)], tokens=2)
    target.observe([1, 2, 3, 4])
    assert frequent_prefixes(target, depth=1, width=2) == [[()], [(1,), (4,)]]


@pytest.mark.parametrize("known", [[0.5, 0.4], [1.5, -0.5], [float("nan"), 0.5]])
def test_a_target_whose_probabilities_are_none_is_an_error(known: list[float]) -> None:
    with pytest.raises(EngineError, match="are no distribution"):
        KnownTarget(lambda prefix: known).shares(())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"power": 1.0}, "power = 1.0 is not between 0 and 1"),
        ({"total_variation": 0}, "total_variation = 0 is not between 0 and 1"),
        ({"level": -0.1}, "level = -0.1 is not between 0 and 1"),
        ({"looks": 0}, "looks = 0 must be 1 or more"),
        ({"depth": -1}, "depth = -1 must be 0 or more"),
        ({"samples": 3}, "samples = 3 must be at least one for each of 4 looks"),
        ({"sample": 3}, "unknown key 'sample'; known keys: total_variation, power"),
    ],
)
def test_a_bad_plan_is_refused_by_name(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SamplingPlan.for_gamma(2, **changes)


def test_the_plan_reaches_the_bonus_token() -> None:
    """First token, γ drafts, bonus: γ + 2 tokens."""
    assert (SamplingPlan.for_gamma(3).tokens, SamplingPlan.for_gamma(None).tokens) == (5, 2)


def test_no_seed_occurs_twice_and_a_plan_always_gives_the_same() -> None:
    """In neither arm and at no look."""
    plan = SamplingPlan(samples=1000, looks=3)
    looks = [*map(plan.engine_seeds, (1, 2, 3)), *map(plan.target_seeds, (1, 2, 3))]
    assert {len(seeds) for seeds in looks} == {334}
    assert len({seed for seeds in looks for seed in seeds}) == 6 * 334
    assert SamplingPlan(samples=1000, looks=3).target_seeds(2) == plan.target_seeds(2)
    assert SamplingPlan(samples=1000, looks=3, seed=1).target_seeds(2) != plan.target_seeds(2)
