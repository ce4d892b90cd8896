"""What was found at one position: the tests of its prefixes joined, what they could see, and the difference in figures.

The statistics of independent samples add up, and so do their degrees of freedom. So a position is one test, however
many prefixes lead to it, and what was seen after each of them counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_specdec.verdict.sampling.plan import SamplingPlan
from pytest_specdec.verdict.sampling.power import power, radius, tail
from pytest_specdec.verdict.sampling.tables import Comparison

DERIVED = ("statistic", "dof", "p_value", "samples", "effective", "total_variation")


@dataclass(frozen=True)
class PositionFinding:
    """One position: the token of number `token` (the first is 1), after each of its prefixes.

    `p_holm`: the p-value corrected over the positions; it is compared with the look's share of the level. `power`: the
    probability that the plan's total variation, on average over these prefixes, is found at this look. `at_least`,
    `at_most`: bounds of the true total variation, which all positions and looks keep together with the plan's
    confidence.
    """

    token: int
    comparisons: tuple[Comparison, ...]
    p_holm: float
    power: float
    at_least: float
    at_most: float

    @property
    def statistic(self) -> float:
        """G, summed over the prefixes."""
        return sum(comparison.statistic for comparison in self.comparisons)

    @property
    def dof(self) -> int:
        """Degrees of freedom, summed over the prefixes."""
        return sum(comparison.dof for comparison in self.comparisons)

    @property
    def p_value(self) -> float:
        """Of the summed statistic, uncorrected."""
        return joint_p_value(self.comparisons)

    @property
    def samples(self) -> int:
        """The engine's samples that had one of the prefixes."""
        return sum(comparison.samples for comparison in self.comparisons)

    @property
    def effective(self) -> float:
        """Effective number of samples, over the prefixes that can be tested."""
        return sum(comparison.effective for comparison in self.comparisons)

    @property
    def total_variation(self) -> float:
        """As measured, on average over the prefixes that can be tested. Chance alone keeps it above 0."""
        return mean_total_variation(self.comparisons)

    def in_words(self) -> str:
        """One line."""
        return (
            f"  token {self.token}: G = {self.statistic:.2f}, dof {self.dof}, p = {self.p_value:.3g}, "
            f"Holm {self.p_holm:.3g}; total variation {self.total_variation:.3f} (at most {self.at_most:.3f}); "
            f"{self.samples} samples after {len(self.comparisons)} prefixes, power {self.power:.3f}"
        )

    def largest_shift(self) -> str:
        """The cell that strays farthest from what is expected, in words."""
        cells = [(each.prefix, cell) for each in self.comparisons for cell in each.cells]
        prefix, cell = max(cells, key=lambda found: found[1].surprise)
        which = "the rare tokens together" if cell.token is None else f"token id {cell.token}"
        after = f"after {list(prefix)}" if prefix else "after the prompt"
        return f"most of all, {which} {after} came {cell.observed} times, where {cell.expected:.1f} are expected"

    def wire(self) -> dict[str, Any]:
        """Plain values for a record."""
        return {**asdict(self), **{name: getattr(self, name) for name in DERIVED}}


def position_finding(
    token: int, comparisons: tuple[Comparison, ...], p_holm: float, plan: SamplingPlan
) -> PositionFinding:
    """The finding at one position, with its power and bounds."""
    dof = sum(comparison.dof for comparison in comparisons)
    effective = sum(comparison.effective for comparison in comparisons)
    measured, around = mean_total_variation(comparisons), radius(dof, effective, plan.doubt)
    return PositionFinding(
        token=token,
        comparisons=comparisons,
        p_holm=p_holm,
        power=power(dof, effective, plan.total_variation, plan.level_of_test),
        at_least=max(0.0, measured - around),
        at_most=min(1.0, measured + around),
    )


def joint_p_value(comparisons: Sequence[Comparison]) -> float:
    """The p-value of the summed statistic; 1 where there is nothing to test."""
    return tail(sum(each.statistic for each in comparisons), sum(each.dof for each in comparisons))


def mean_total_variation(comparisons: Sequence[Comparison]) -> float:
    """The total variations, weighed by the effective numbers of samples; 0 where nothing can be tested."""
    effective = sum(each.effective for each in comparisons)
    weighed = sum(each.effective * each.total_variation for each in comparisons)
    return weighed / effective if effective else 0.0
