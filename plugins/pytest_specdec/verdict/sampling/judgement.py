"""The judgement: draw a batch, look, and stop as soon as the question is settled either way.

At each look every position is tested over its prefixes together, and the p-values are corrected over the positions
(Holm). One that falls below the look's share of the level settles it: different. If none does, and each position would
have shown the stated difference with the stated power at this very look, that settles it too: consistent. When the
samples run out before, nothing is decided, which is no pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from pytest_specdec.verdict.sampling.statistics import Comparison, Draw, Prefix, SamplingPlan, Tally, power, tail
from pytest_specdec.verdict.sampling.target import Target, frequent_prefixes

DERIVED = ("statistic", "dof", "p_value", "samples", "effective", "total_variation")


@dataclass(frozen=True)
class PositionFinding:
    """One position: the token of number `token` (the first is 1), after each of its prefixes.

    `p_holm`: the p-value corrected over the positions; it is compared with the look's share of the level. `power`: the
    probability that the plan's total variation, on average over these prefixes, is found at this look.
    """

    token: int
    comparisons: tuple[Comparison, ...]
    p_holm: float
    power: float

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
            f"Holm {self.p_holm:.3g}; total variation {self.total_variation:.3f}; "
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
    seen = power(dof, effective, plan.total_variation, plan.level_of_test)
    return PositionFinding(token, comparisons, p_holm, seen)


def joint_p_value(comparisons: Sequence[Comparison]) -> float:
    """The p-value of the summed statistic; 1 where there is nothing to test."""
    return tail(sum(each.statistic for each in comparisons), sum(each.dof for each in comparisons))


def mean_total_variation(comparisons: Sequence[Comparison]) -> float:
    """The total variations, weighed by the effective numbers of samples; 0 where nothing can be tested."""
    effective = sum(each.effective for each in comparisons)
    weighed = sum(each.effective * each.total_variation for each in comparisons)
    return weighed / effective if effective else 0.0


class SamplingOutcome(str, Enum):
    """What a sampling verdict says. Only the first passes."""

    CONSISTENT = "consistent"
    DIFFERENT = "different"
    UNDECIDABLE = "undecidable"

    @property
    def passes(self) -> bool:
        """Whether a gate may be green on it."""
        return self is SamplingOutcome.CONSISTENT


@dataclass(frozen=True)
class SamplingVerdict:
    """The judgement at the last look. `samples`: drawn from the engine; `look`: how many looks were taken."""

    outcome: SamplingOutcome
    positions: tuple[PositionFinding, ...]
    samples: int
    look: int
    plan: SamplingPlan

    @property
    def passes(self) -> bool:
        """Whether the gate is green."""
        return self.outcome.passes

    @property
    def worst(self) -> PositionFinding:
        """The position with the smallest p-value."""
        return min(self.positions, key=lambda position: position.p_value)

    @property
    def weakest(self) -> PositionFinding:
        """The position with the least power."""
        return min(self.positions, key=lambda position: position.power)

    def power_statement(self) -> str:
        """What this verdict could see, in words."""
        plan, last = self.plan, self.positions[-1].token
        return (
            f"a total variation of {plan.total_variation:g} at any of the tokens 1 to {last}, on average over the "
            f"prefixes tested, is found in {self.samples} samples with probability {self.weakest.power:.3f} or more, "
            f"at level {plan.level:g} (look {self.look} of {plan.looks} spends {plan.level_of_look:.3g}; "
            f"Holm over {len(self.positions)} positions)"
        )

    def in_words(self) -> str:
        """The verdict as a message: the outcome, its reason, and a line for each position."""
        reasons = {
            SamplingOutcome.CONSISTENT: self.power_statement(),
            SamplingOutcome.DIFFERENT: self._difference(),
            SamplingOutcome.UNDECIDABLE: self._shortage(),
        }
        return "\n".join(
            [f"{self.outcome.value}: {reasons[self.outcome]}", *(position.in_words() for position in self.positions)]
        )

    def _difference(self) -> str:
        worst = self.worst
        return (
            f"token {worst.token} is not distributed as the target's (p = {worst.p_holm:.3g} after Holm's correction, "
            f"where this look may spend {self.plan.level_of_look:.3g}); {worst.largest_shift()}"
        )

    def _shortage(self) -> str:
        weakest, plan = self.weakest, self.plan
        if not weakest.effective:
            return (
                f"token {weakest.token} cannot be tested: no prefix came often enough, or next to all the target's "
                "probability lies on one token; raise the temperature, lower depth, or raise samples"
            )
        return (
            f"at token {weakest.token}, a total variation of {plan.total_variation:g} would be found with probability "
            f"{weakest.power:.3f} only, not {plan.power:g}, in {self.samples} samples: take more of them (samples), or "
            "ask for a larger total_variation (in a scenario, detects.total_variation)"
        )


def judge_sampling(draw: Draw, target: Target, plan: SamplingPlan) -> SamplingVerdict:
    """Judge an engine by samples of one prompt.

    `draw`: gives for each seed the token ids of one sample, `plan.tokens` or more of them. `target`: what they are
    compared with. Raises EngineError where samples are missing or too short.
    """
    tally = Tally(plan.tokens)
    positions: list[list[Prefix]] = []
    for look in range(1, plan.looks + 1):
        target.observe(plan.target_seeds(look), plan.tokens)
        positions = positions or frequent_prefixes(target, plan.depth, plan.width)
        tally.draw(draw, plan.engine_seeds(look))
        compared = [tuple(target.compare(prefix, tally.after(prefix)) for prefix in prefixes) for prefixes in positions]
        findings = _findings(compared, plan)
        outcome = _outcome(findings, plan)
        if outcome is not SamplingOutcome.UNDECIDABLE:
            break
    return SamplingVerdict(outcome, findings, tally.samples, look, plan)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: for each p-value, the level at which it is rejected with all others in view."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def _outcome(findings: Sequence[PositionFinding], plan: SamplingPlan) -> SamplingOutcome:
    if any(position.p_holm <= plan.level_of_look for position in findings):
        return SamplingOutcome.DIFFERENT
    if all(position.power >= plan.power for position in findings):
        return SamplingOutcome.CONSISTENT
    return SamplingOutcome.UNDECIDABLE


def _findings(compared: Sequence[tuple[Comparison, ...]], plan: SamplingPlan) -> tuple[PositionFinding, ...]:
    corrected = holm([joint_p_value(comparisons) for comparisons in compared])
    return tuple(
        position_finding(token, comparisons, p_holm, plan)
        for token, (comparisons, p_holm) in enumerate(zip(compared, corrected, strict=True), start=1)
    )
