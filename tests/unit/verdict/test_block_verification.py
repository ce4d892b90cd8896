"""Block verification (Sun et al. 2025, algorithm 2) by arithmetic: the sampling verdict holds for it as it is.

How many drafts are accepted depends on all of them, later ones too. Measured tokens are grouped by their place in the
burst, so it must be shown that each place has the target's distribution also where later drafts decide whether it is
reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.verdict.binomial import quantile
from tests.unit.verdict.test_sampling_evidence import DECIDED, HERE, ranking
from tests.unit.verdict.test_sampling_verdict import DRAFTER, PROMPT_END, TARGET

from pytest_specdec.verdict.equivalence import Outcome
from pytest_specdec.verdict.rated import Place, Rated, rate
from pytest_specdec.verdict.sampling_evidence import RatedVerdict

GAMMA, TEMPERATURE = 4, 1.2
BURSTS, ANSWERS = 4, 48
WARM, DRAFTED = (table ** (1 / TEMPERATURE) for table in (TARGET, DRAFTER))
P, Q = (table / table.sum(axis=1, keepdims=True) for table in (WARM, DRAFTED))


@dataclass(frozen=True)
class Blocks:
    """`until_rejected`: an acceptance ends at the first draft that is not kept by itself, which block verification does
    not. `from_target`: what follows a rejection is drawn from the target, not from what is left."""

    until_rejected: bool = False
    from_target: bool = False

    def burst(self, last: int, rng: np.random.Generator) -> list[int]:
        """The tokens of one step."""
        drafts = [last]
        for _ in range(GAMMA):
            drafts.append(_draw(Q[drafts[-1]], rng))
        kept, at_kept, share = 0, 1.0, 1.0
        for at, (before, draft) in enumerate(pairwise(drafts), 1):
            share = min(share * P[before, draft] / Q[before, draft], 1.0)
            rest = float(np.maximum(share * P[draft] - Q[draft], 0).sum())
            chance = share if at == GAMMA else rest / (rest + 1 - share) if rest or share < 1 else 0.0
            if rng.random() < chance:
                kept, at_kept = at, share
            elif self.until_rejected:
                break
        return [*drafts[1 : kept + 1], self._after(drafts[kept], kept, at_kept, rng)]

    def _after(self, last: int, kept: int, share: float, rng: np.random.Generator) -> int:
        """The bonus token, or the one in the place of a rejected draft."""
        if kept == GAMMA or self.from_target:
            return _draw(P[last], rng)
        return _draw(np.maximum(share * P[last] - Q[last], 0), rng)

    def rated(self, seed: int, answers: int = ANSWERS) -> list[Rated]:
        """Answers of several bursts, each token as the target rates it at its place."""
        rng, found = np.random.default_rng(seed), []
        for answer in range(answers):
            last, token = PROMPT_END, 0
            for _ in range(BURSTS):
                for place, drawn in enumerate(self.burst(last, rng), 1):
                    found.append(_rated(last, drawn, Place(0, answer, token, place)))
                    last, token = drawn, token + 1
        return found

    def verdict(self, seed: int, answers: int = ANSWERS) -> RatedVerdict:
        """By all of them."""
        return RatedVerdict.of(self.rated(seed, answers), repeats=False)


def _draw(shares: NDArray[np.float64], rng: np.random.Generator) -> int:
    """As `rng.choice` draws, which spends most of its time on checks."""
    edges = shares.cumsum()
    return int(edges.searchsorted(rng.random() * edges[-1], side="right"))


@cache
def _cell(last: int, token: int) -> Rated:
    order = np.argsort(-TARGET[last], kind="stable").tolist()
    told = ranking(order.index(token), np.log(TARGET[last][order]).tolist())
    found = rate(HERE, told, {"temperature": TEMPERATURE}, "float32")
    assert isinstance(found, Rated)
    return found


def _rated(last: int, token: int, place: Place) -> Rated:
    known = _cell(last, token)
    return Rated(place, known.mass, known.cell, known.slack)


def test_sound_block_verification_is_consistent() -> None:
    """At γ = 4 and temperature 1.2: of 120 runs no more reach a level than chance allows; every place occurs."""
    found = np.array([Blocks().verdict(seed).evidence.log_e for seed in range(120)])
    assert found.max() < DECIDED
    for level in (0.3, 0.05):
        assert (found >= -np.log(level)).sum() <= quantile(1 - 1e-4, 120, level)
    places = {rated.place.burst for rated in Blocks().rated(0)}
    assert places == set(range(1, GAMMA + 2))


def test_it_accepts_more_than_token_by_token() -> None:
    """Which is what it is for; so the loop is not that of the other method."""
    bursts = [len(Blocks().burst(PROMPT_END, np.random.default_rng(seed))) for seed in range(4000)]
    least = np.minimum(P, Q).sum(axis=1)
    reached, expected = np.eye(len(P))[PROMPT_END], 0.0
    for _ in range(GAMMA):
        reached = reached @ np.minimum(P, Q)
        expected += reached.sum()
    assert least.max() < 1
    assert np.mean(bursts) - 1 > expected + 3 * np.std(bursts) / np.sqrt(len(bursts))


@pytest.mark.parametrize("fault", [Blocks(until_rejected=True), Blocks(from_target=True)], ids=str)
def test_a_wrong_block_verification_is_different(fault: Blocks) -> None:
    """The acceptance of another method, and another residual."""
    assert fault.verdict(1, 600).outcome is Outcome.DIFFERENT
