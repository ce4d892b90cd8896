"""The sampling verdict from end to end, on speculative decoding by arithmetic: a target and a drafter that are tables.

The right loop is called consistent, every known fault of the loop is called different, and hundreds of simulated gates
show that false alarms stay below the level and that the stated difference is found as often as stated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.verdict.binomial import quantile

from pytest_specdec.record import to_json
from pytest_specdec.verdict.equivalence import Outcome
from pytest_specdec.verdict.sampling import (
    KnownTarget,
    SampledTarget,
    SamplingVerdict,
    Target,
    judge_sampling,
)
from pytest_specdec.verdict.sampling_statistics import Draw, SamplingPlan
from pytest_specdec.verdict.words import sampling_part

GAMMA = 2
PROMPT_END = 0
TARGET = np.array([[0.1, 0.6, 0.2, 0.1], [0.2, 0.1, 0.6, 0.1], [0.6, 0.2, 0.1, 0.1], [0.3, 0.3, 0.2, 0.2]])
DRAFTER = np.array([[0.2, 0.4, 0.3, 0.1], [0.1, 0.2, 0.6, 0.1], [0.3, 0.3, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4]])
PLAN = SamplingPlan.for_gamma(GAMMA, samples=8000)
RESIDUAL = np.maximum(TARGET - DRAFTER, 0) / np.maximum(TARGET - DRAFTER, 0).sum(axis=1, keepdims=True)

Tokens = NDArray[np.int64]
Table = NDArray[np.float64]


def draw(table: Table, last: Tokens, rng: np.random.Generator) -> Tokens:
    """One token after each of the last ones."""
    edges = table.cumsum(axis=1)[last]
    return (rng.random((len(last), 1)) * edges[:, -1:] > edges).sum(axis=1)


@dataclass
class Loop:
    """Speculative sampling of many requests at once (Leviathan et al. 2023, algorithm 1), with parts to exchange.

    `residual`: what is sampled after a rejection. `bonus`: what is sampled when all drafts are accepted. `lenience`:
    factor on the ratio by which a draft is accepted.
    """

    residual: Table
    bonus: Table
    lenience: float = 1.0
    target: Table = field(default_factory=lambda: TARGET)

    def __call__(self, seeds: Sequence[int]) -> list[tuple[int, ...]]:
        """One sample a seed; the first seed decides all of them."""
        rng = np.random.default_rng(seeds[0])
        columns = [draw(self.target, np.full(len(seeds), PROMPT_END), rng)]
        accepted = np.zeros(len(seeds), dtype=int)
        for _ in range(PLAN.depth):
            token, accepted = self._next(columns[-1], accepted, rng)
            columns.append(token)
        return list(map(tuple, np.stack(columns, axis=1).tolist()))

    def _next(self, last: Tokens, accepted: Tokens, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        draft = draw(DRAFTER, last, rng)
        ratio = self.lenience * self.target[last, draft] / DRAFTER[last, draft]
        kept = (accepted < GAMMA) & (rng.random(len(last)) < ratio)
        other = np.where(accepted < GAMMA, draw(self.residual, last, rng), draw(self.bonus, last, rng))
        return np.where(kept, draft, other), np.where(kept, accepted + 1, 0)


RIGHT = Loop(RESIDUAL, TARGET)
FAULTS = {
    "residual from the target": Loop(TARGET, TARGET),
    "residual from the drafter": Loop(DRAFTER, TARGET),
    "drafts always accepted": Loop(RESIDUAL, TARGET, lenience=1e9),
    "lenient acceptance": Loop(RESIDUAL, TARGET, lenience=1.5),
    "bonus from the drafter": Loop(RESIDUAL, DRAFTER),
}


def known_target() -> KnownTarget:
    return KnownTarget(lambda prefix: TARGET[prefix[-1] if prefix else PROMPT_END].tolist())


def target_alone(seeds: Sequence[int]) -> list[tuple[int, ...]]:
    """The target without speculation: drafts are never accepted, and all comes from its own table."""
    return Loop(TARGET, TARGET, lenience=0.0)(seeds)


def sampled_target() -> SampledTarget:
    return SampledTarget(target_alone, PLAN.tokens)


@pytest.mark.parametrize("target", [known_target, sampled_target])
def test_the_right_loop_is_consistent(target: type[Target]) -> None:
    """And says what it could have seen."""
    verdict = judge_sampling(RIGHT, target(), PLAN)
    assert (verdict.outcome, verdict.passes) == (Outcome.CONSISTENT, True)
    assert [position.token for position in verdict.positions] == [1, 2, 3, 4]
    assert min(position.power for position in verdict.positions) >= PLAN.power
    assert verdict.in_words().startswith(
        "consistent: a total variation of 0.1 at any of the tokens 1 to 4, on average over the prefixes tested, is"
    )


@pytest.mark.parametrize("target", [known_target, sampled_target])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_every_fault_of_the_loop_is_different(fault: Loop, target: type[Target]) -> None:
    """None of them shows at the first token, which comes from the prompt's own pass."""
    verdict = judge_sampling(fault, target(), PLAN)
    assert (verdict.outcome, verdict.passes) == (Outcome.DIFFERENT, False)
    assert verdict.worst.token > 1
    assert verdict.positions[0].p_holm > PLAN.level_of_look
    assert verdict.in_words().startswith(f"different: token {verdict.worst.token} is not distributed as the target's")
    assert "are expected" in verdict.in_words()


def test_a_wrong_bonus_shows_at_the_bonus_token_only() -> None:
    """So the longest prefix must be γ + 1 tokens long."""
    fault = FAULTS["bonus from the drafter"]
    short = SamplingPlan(samples=8000, depth=GAMMA)
    assert judge_sampling(fault, known_target(), short).outcome is Outcome.CONSISTENT
    assert judge_sampling(fault, known_target(), PLAN).worst.token == GAMMA + 2


def test_a_gross_fault_is_found_at_the_first_look() -> None:
    """The samples of the other looks are saved."""
    verdict = judge_sampling(FAULTS["drafts always accepted"], known_target(), PLAN)
    assert (verdict.look, verdict.samples) == (1, PLAN.batch)


def test_another_temperature_is_different_from_the_first_token_on() -> None:
    """Squared probabilities are half the temperature."""
    colder = TARGET**2 / (TARGET**2).sum(axis=1, keepdims=True)
    verdict = judge_sampling(Loop(colder, colder, lenience=0.0, target=colder), known_target(), PLAN)
    assert verdict.outcome is Outcome.DIFFERENT
    assert verdict.positions[0].p_holm < PLAN.level_of_look


def test_too_few_samples_decide_nothing() -> None:
    """The message says how surely the difference would have been found; more samples do."""
    verdict = judge_sampling(RIGHT, known_target(), SamplingPlan.for_gamma(GAMMA, samples=800))
    assert (verdict.outcome, verdict.passes, verdict.look) == (Outcome.UNDECIDABLE, False, 4)
    assert f"with probability {verdict.weakest.power:.3f} only, not 0.9, in 800 samples" in verdict.in_words()
    assert judge_sampling(RIGHT, known_target(), SamplingPlan.for_gamma(GAMMA, samples=4000)).passes


def test_a_distribution_without_spread_cannot_be_tested() -> None:
    """Sampling that always gives one token is greedy decoding, which the equivalence verdict judges."""
    certain = KnownTarget(lambda prefix: [1.0, 0.0])
    verdict = judge_sampling(lambda seeds: [(0,) * PLAN.tokens] * len(seeds), certain, PLAN)
    assert verdict.outcome is Outcome.UNDECIDABLE
    assert "token 1 cannot be tested" in verdict.in_words()


def test_a_power_that_is_reached_early_saves_the_rest() -> None:
    """A clean engine costs no more samples than the stated power takes."""
    verdict = judge_sampling(RIGHT, known_target(), SamplingPlan.for_gamma(GAMMA, samples=40_000, looks=8))
    assert (verdict.outcome, verdict.look, verdict.samples) == (Outcome.CONSISTENT, 1, 5000)


def test_the_same_plan_gives_the_same_verdict() -> None:
    """To the last figure; and another seed draws other samples."""
    assert judge_sampling(RIGHT, sampled_target(), PLAN) == judge_sampling(RIGHT, sampled_target(), PLAN)
    other = judge_sampling(RIGHT, sampled_target(), SamplingPlan.for_gamma(GAMMA, seed=1))
    assert other.positions != judge_sampling(RIGHT, sampled_target(), PLAN).positions


def test_a_verdict_is_plain_values_for_a_record() -> None:
    """JSON takes it, and the counts are in it."""
    part = sampling_part(judge_sampling(RIGHT, sampled_target(), PLAN))
    wire = json.loads(json.dumps(to_json(part.sampling)))
    first = wire["positions"][0]
    assert (part.outcome, wire["look"], len(wire["positions"])) == ("consistent", 4, 4)
    assert first["samples"] == sum(cell["observed"] for cell in first["comparisons"][0]["cells"]) == wire["samples"]
    assert {"statistic", "dof", "p_value", "p_holm", "total_variation", "power"} <= set(first)


@dataclass
class Independent:
    """An engine whose tokens are independent and follow `shares`: the cheapest of all, for simulations."""

    shares: Sequence[float]
    tokens: int

    def __call__(self, seeds: Sequence[int]) -> list[tuple[int, ...]]:
        rng = np.random.default_rng(seeds[0])
        return list(map(tuple, rng.choice(len(self.shares), size=(len(seeds), self.tokens), p=self.shares).tolist()))


HALF = (0.5, 0.3, 0.2)
RUNS = 500


def gates(shares: Sequence[float], power: float, samples: int) -> list[SamplingVerdict]:
    """Many gates on one prompt, two positions each, at a level of 10 %, so that false alarms can be counted."""
    return [
        judge_sampling(
            Independent(shares, 2),
            KnownTarget(lambda prefix: HALF),
            SamplingPlan(
                samples=samples, looks=4, depth=1, width=1, level=0.1, power=power, total_variation=0.15, seed=seed
            ),
        )
        for seed in range(RUNS)
    ]


def test_false_alarms_stay_below_the_level_over_all_looks_and_positions() -> None:
    """500 faultless engines, all four looks taken; without the corrections, far more would be called different."""
    verdicts = gates(HALF, power=0.9999, samples=240)
    alarms = sum(verdict.outcome is Outcome.DIFFERENT for verdict in verdicts)
    assert max(verdict.look for verdict in verdicts) == 4
    assert quantile(1e-4, RUNS, 0.03) <= alarms <= quantile(1 - 1e-4, RUNS, 0.1)
    assert sum(map(alarms_uncorrected, range(100))) > quantile(1 - 1e-4, 100, 0.1)


def alarms_uncorrected(seed: int) -> bool:
    """The same gate, if each look and position spent the whole level: each look's own alarm, four looks in a row."""
    plan = SamplingPlan(samples=240, looks=4, depth=1, width=1, level=0.1, seed=seed)
    engine, target = Independent(HALF, 2), KnownTarget(lambda prefix: HALF)
    return any(
        position.p_value <= plan.level
        for upto in (1, 2, 3, 4)
        for position in judge_sampling(repeat(engine, plan, upto), target, one_look(plan, upto)).positions
    )


def repeat(engine: Independent, plan: SamplingPlan, upto: int) -> Draw:
    """What a plan of several looks has drawn at look `upto`, drawn at once."""
    return lambda seeds: [sample for look in range(1, upto + 1) for sample in engine(plan.engine_seeds(look))]


def one_look(plan: SamplingPlan, upto: int) -> SamplingPlan:
    return SamplingPlan(samples=upto * plan.batch, looks=1, depth=1, width=1)


def test_the_stated_difference_is_found_as_often_as_stated() -> None:
    """500 faulty engines, a total variation of 0.15 at both tokens; those that pass or run dry are misses."""
    verdicts = gates((0.35, 0.3, 0.35), power=0.9, samples=800)
    found = sum(verdict.outcome is Outcome.DIFFERENT for verdict in verdicts)
    assert found >= quantile(1e-4, RUNS, 0.9)
