"""The judgement: draw a batch, look, and stop as soon as the question is settled either way.

At each look every position is tested over its prefixes together, and the p-values are corrected over the positions
(Holm). One that falls below the look's share of the level settles it: different. If none does, and each position would
have shown the stated difference with the stated power at this very look, that settles it too: consistent. When the
samples run out before, the verdict is underpowered, which is no pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_specdec.verdict.sampling.plan import SamplingPlan
from pytest_specdec.verdict.sampling.position import PositionFinding, joint_p_value, position_finding
from pytest_specdec.verdict.sampling.power import sample_size
from pytest_specdec.verdict.sampling.tables import Comparison
from pytest_specdec.verdict.sampling.tally import Draw, Prefix, Tally
from pytest_specdec.verdict.sampling.target import Target, frequent_prefixes


class SamplingOutcome(str, Enum):
    """What a sampling verdict says. Only the first passes."""

    CONSISTENT = "consistent"
    DIFFERENT = "different"
    UNDERPOWERED = "underpowered"

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

    def samples_needed(self) -> int | None:
        """About how many samples would reach the plan's power everywhere; None where no number of them is known to."""
        plan = self.plan
        if not all(position.effective for position in self.positions):
            return None
        shares = (
            sample_size(position.dof, plan.power, plan.total_variation, plan.level_of_test) / position.effective
            for position in self.positions
        )
        return round(self.samples * max(shares)) + 1

    def in_words(self) -> str:
        """The verdict as a message: the outcome, its reason, and a line for each position."""
        reasons = {
            SamplingOutcome.CONSISTENT: self.power_statement(),
            SamplingOutcome.DIFFERENT: self._difference(),
            SamplingOutcome.UNDERPOWERED: self._shortage(),
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
            f"{weakest.power:.3f} only, not {plan.power:g}: raise samples to about {self.samples_needed()} (or width, "
            f"now {plan.width}), or ask for a larger total_variation"
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
        if outcome is not SamplingOutcome.UNDERPOWERED:
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
    return SamplingOutcome.UNDERPOWERED


def _findings(compared: Sequence[tuple[Comparison, ...]], plan: SamplingPlan) -> tuple[PositionFinding, ...]:
    corrected = holm([joint_p_value(comparisons) for comparisons in compared])
    return tuple(
        position_finding(token, comparisons, p_holm, plan)
        for token, (comparisons, p_holm) in enumerate(zip(compared, corrected, strict=True), start=1)
    )
