"""What a verdict on this very sample could have found: the smallest faults that would have turned it red.

Faults are planted on paper: tokens that are the target's argmax are replaced by its runner-up, whose distance the
target's rating has told, and the sample is judged again. So the limit is that of these tokens, this calibration and
this gate's share of the level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_specdec.generation import Score
from pytest_specdec.verdict.noise import NoiseFloor, Null, compare_near_ties, count_near_ties

SURELY = 0.95
MOST_TIMES = 1000.0


@dataclass(frozen=True)
class Sensitivity:
    """The smallest faults found with 95 %. None: no number of such tokens, or the runner-ups are not known.

    `near_ties`: how many of the `candidates`, tokens whose runner-up is within the floor, the runner-up must take;
    `judged`: how many it has taken as it is. `lossy`: how many tokens, wherever they are, must be the runner-up.
    `rated`: of the tokens; the others are of answers that equal the target's own, of which a sample is rated.
    """

    tokens: int
    rated: int
    judged: int
    candidates: int
    near_ties: int | None
    lossy: int | None
    floor: NoiseFloor

    @property
    def statement(self) -> str:
        """In words."""
        found = [f"one token beyond {self.floor.bound} ULPs"]
        if self.near_ties is not None:
            found.append(f"{self.near_ties} or more wrong near-ties of {self.tokens} tokens")
        if self.lossy is not None:
            found.append(f"a lossy acceptance of {self.lossy} or more runner-ups, however far ({self.share:.2%})")
        if self.near_ties is None:
            found.append(f"no number of wrong near-ties ({self.candidates} of {self.tokens} tokens could be)")
        rated = "" if self.rated == self.tokens else f"; {self.rated:,} of {self.tokens:,} tokens were rated"
        return f"would have found, with {100 * SURELY:.0f} %: {'; '.join(found)}{rated}"

    @property
    def share(self) -> float:
        """The share of tokens that a lossy acceptance must be found at."""
        return (self.lossy or 0) / max(self.tokens, 1)

    def tokens_wanted(self, kind: str, share: float) -> int | None:
        """How many more tokens would show faults of this kind and share: 0 if none are needed, None if none suffice.

        Calibration and judged output are taken to grow alike.
        """
        if kind == "lossy":
            return None if self.lossy is None else max(0, math.ceil(self.lossy / share) - self.tokens)
        times = 1.0
        while self.tokens and times < MOST_TIMES:
            null, tokens = self.floor.null, math.ceil(self.tokens * times)
            larger = Null(round(null.near_ties * times), round(null.tokens * times), null.shape)
            floor = replace(self.floor, null=larger)
            if least_near_ties(floor, round(self.judged * times), tokens) <= share * tokens:
                return tokens - self.tokens
            times *= 1.05
        return None


NAMES = {"near_ties": "wrong near-ties", "lossy": "runner-ups accepted"}


def too_few_tokens(limits: Sensitivity, shares: Mapping[str, float]) -> list[str]:
    """What could not have been found of these shares, and how many more tokens it takes."""
    wanted = {kind: limits.tokens_wanted(kind, share) for kind, share in shares.items()}
    remedy = "" if limits.rated == limits.tokens else ", or all of them rated (--specdec-rate=all)"
    return [
        f"too few tokens to find {shares[kind]:.2%} {NAMES[kind]}: "
        f"{f'{more} more' if more is not None else 'no number of tokens shows it here'}{remedy}; detects.{kind}"
        for kind, more in wanted.items()
        if more != 0
    ]


def find_limits(scores: Sequence[Score], floor: NoiseFloor, tokens: int) -> Sensitivity:
    """The limits of a verdict on so many tokens, of which those that are rated have these scores.

    A fault in any of the others would have made its answer differ, and so be rated.
    """
    right = [runner_up for score in scores if score.gap == 0 and (runner_up := _runner_up(score)) is not None]
    within = sum(not floor.is_beyond(each) for each in right)
    judged = count_near_ties(scores)
    least, candidates = least_near_ties(floor, judged, tokens), within * tokens // max(len(scores), 1)
    return Sensitivity(
        tokens=tokens,
        rated=len(scores),
        judged=judged,
        candidates=candidates,
        near_ties=least if least <= candidates else None,
        lossy=_least_anywhere(within, len(right)),
        floor=floor,
    )


def _runner_up(score: Score) -> Score | None:
    """The score of the runner-up, planted in the place of the argmax."""
    return None if score.runner_up is None else replace(score, gap=score.runner_up)


def _least_anywhere(within: int, right: int) -> int | None:
    """How many runner-ups must be planted until one of them is beyond the floor with 95 %; None where none is."""
    if within >= right:
        return None
    return 1 if not within else math.ceil(math.log(1 - SURELY) / math.log(within / right))


def least_near_ties(floor: NoiseFloor, judged: int, tokens: int) -> int:
    """How many more near-ties both looks find with 95 %, their number itself being a matter of chance."""
    from scipy.special import pdtri

    critical = _critical(floor, tokens)
    return max(1, math.ceil(float(pdtri(critical - 1, 1 - math.sqrt(SURELY))) - judged))


def _critical(floor: NoiseFloor, tokens: int) -> int:
    """The fewest near-ties that a look finds too many."""
    low, high = 0, max(tokens, 1) * 64
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if compare_near_ties(floor, middle, tokens).suspect else (middle, high)
    return high
