"""The noise of the target's own decoding, measured and not guessed, and what a verdict against it could have found.

Adding the same numbers in another order rounds otherwise, and near a tie the rounding decides. Gaps are counted in ULPs
at each token's own top logit. Two questions are asked apart: is one token further off than rounding goes
(`NoiseFloor.bound`), and do near-ties come more often than in the calibration (`NearTies`)? What could have been found
(`Sensitivity`) is planted on paper: the argmax is replaced by its runner-up, and judged again.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_specdec.generation import Score

MANTISSA_BITS = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}
ALIASES = {"half": "float16", "float": "float32", "double": "float64"}
SANE_ULPS = {"bfloat16": 8, "float16": 32, "float32": 4096, "float64": 4096}
SANE_RATE = 0.25
UNKNOWN_TOP = 32.0  # logits of language models seldom reach 64, so no ULP is taken for smaller than it is
LEAST_TOP = 1.0  # a logit near 0 is a sum of larger numbers, whose rounding its own ULP does not show
LEVEL = 1e-3  # of a session: the chance that any of its sound gates is red
GATES_TOTAL = 2.1097428  # sum of 1 / (i ln² i) over i = 2, 3, …
PRIOR = {"bfloat16": (1, 69), "float16": (1, 69)}  # assumed before anything is seen: one ULP more on one of 70
WIDE_PRIOR = (64, 4)  # assumed: float32 rounds at every addition, so errors of dozens of ULPs are usual

VERIFYING, ROWS, PLAIN = "steps of verification", "as many rows as a step of verification", "plain decoding"
MARGIN = {VERIFYING: 1.5, ROWS: 3.0, PLAIN: 3.0}


def level_of_gate(number: int) -> float:
    """What gate 1, 2, … may spend of the level: shares that fall slowly, and of all gates sum to the level."""
    return LEVEL / (GATES_TOTAL * (number + 1) * math.log(number + 1) ** 2)


def resolve_dtype(name: str) -> tuple[str, tuple[str, ...]]:
    """The dtype by its one name, and what has to be said where it is not known."""
    plain = name.removeprefix("torch.")
    known = ALIASES.get(plain, plain)
    if known in MANTISSA_BITS:
        return known, ()
    return "bfloat16", (f"the dtype {name!r} has no known ULP: that of bfloat16 is taken",)


@dataclass(frozen=True)
class Null:
    """How often the target's own choices are near-ties, `shape` the shape of the steps that made them."""

    near_ties: int
    tokens: int
    shape: str

    @property
    def margin(self) -> float:
        """How many times as often near-ties may come before it is a fault: other shapes round otherwise."""
        return MARGIN[self.shape]


@dataclass(frozen=True)
class NoiseFloor:
    """What the calibration showed, for one target, dtype, engine, hardware and shape of steps; never for another.

    `tokens`: how many were rated. `near_ties`: of them not the argmax; `excess`: by how many whole ULPs more than one,
    all together, the furthest token counted like the second; `largest`: the furthest, in ULPs. `largest_logits`, `top`:
    largest gap and largest logit (None without logits). `disagreements` of `compared`: requests whose output differs
    between batch 1 and the workload's concurrency. `unknown`: what could not be known. `level`: of this gate;
    `bound`: the most ULPs that are a tie among so many tokens as are judged there.
    """

    dtype: str
    tokens: int
    near_ties: int
    excess: int
    largest: float
    null: Null
    largest_logits: float = 0.0
    top: float | None = None
    disagreements: int = 0
    compared: int = 0
    histogram: tuple[tuple[int, int], ...] = ()
    unknown: tuple[str, ...] = ()
    level: float = level_of_gate(1)
    bound: int = 2

    def for_gate(self, tokens: int, level: float) -> NoiseFloor:
        """With the level of a gate and the bound for as many tokens as it judges.

        The bound is the fewest ULPs that a near-tie of a sound engine exceeds among `tokens` with half of the level's
        chance. Whole ULPs beyond the first are geometric (peaks over a threshold whose tail falls by a constant
        factor), the factor is unknown with a Beta distribution, and what is left of it beyond `bound` is
        B(a + bound, b) / B(a, b).
        """
        a, b = PRIOR.get(self.dtype, WIDE_PRIOR)
        a, b = a + self.excess, b + self.near_ties
        expected = self.null.margin * tokens * (self.null.near_ties + 0.5) / max(self.null.tokens, 1)
        bound, beyond = 0, min(expected, float(tokens))
        while bound < 2 or (beyond > level / 2 and bound < SANE_ULPS[self.dtype]):
            beyond *= (a + bound) / (a + b + bound)
            bound += 1
        return replace(self, level=level, bound=bound)

    def is_beyond(self, score: Score) -> bool:
        """Whether a token is further from the argmax than rounding goes, or not a number."""
        return not self.bears(gap_in_ulps(score, self.dtype))

    def bears(self, ulps: float) -> bool:
        """Whether rounding goes so far below the argmax."""
        return whole(ulps) <= self.bound

    @property
    def insane(self) -> str | None:
        """Why this calibration decides nothing, or None: a target that strays so far from its own argmax is broken."""
        limit = SANE_ULPS[self.dtype]
        if math.isnan(self.largest):
            return "the target's own logits are not numbers"
        if whole(self.largest) > limit:
            strays = f"{self.largest:.0f} {self.dtype} ULPs"
            return f"target-only output strays {strays} from its own argmax (sane: {limit})"
        if self.tokens and self.near_ties > SANE_RATE * self.tokens:
            strays = f"{self.near_ties} of {self.tokens} target-only tokens"
            return f"{strays} are not its own argmax (sane: {SANE_RATE:.0%})"
        return None


def noise_floor(rated: Sequence[Score], dtype: str, judged: tuple[str, Sequence[Score]] | None = None) -> NoiseFloor:
    """The floor of a calibration whose tokens got these scores; one that comes twice is one observation.

    `judged`: the shape that is most like the one to be judged, and the scores of its tokens; else all of plain
    decoding.
    """
    name, unknown = resolve_dtype(dtype)
    shape, row = judged or (PLAIN, rated)
    scores = list({id(score): score for score in (*rated, *row)}.values())
    tops = [abs(score.top) for score in scores if score.top is not None]
    gaps = [gap_in_ulps(score, name) for score in scores]
    floor = NoiseFloor(
        dtype=name,
        tokens=len(scores),
        near_ties=count_near_ties(scores),
        excess=excess_of([whole(gap) for gap in gaps if gap > 0 and math.isfinite(gap)]),
        largest=math.nan if any(map(math.isnan, gaps)) else max(gaps, default=0.0),
        null=Null(count_near_ties(row), len(row), shape),
        largest_logits=largest_gap(scores),
        top=max(tops) if tops else None,
        histogram=tuple(sorted(Counter(int(whole(gap)) for gap in gaps if math.isfinite(gap)).items())),
        unknown=unknown if tops or not scores else (*unknown, NO_TOP),
    )
    return floor.for_gate(floor.null.tokens, level_of_gate(1))


def excess_of(ulps: Sequence[float]) -> int:
    """Whole ULPs beyond the first of each near-tie, the furthest counted like the second: it may be a stray token."""
    beyond = sorted(max(int(each) - 1, 0) for each in ulps)
    return sum(beyond[:-1] + beyond[-2:-1])


NO_TOP = f"the target gives no raw logits, so the ULP of logits from {UNKNOWN_TOP:g} on is taken"


def count_near_ties(scores: Sequence[Score]) -> int:
    """How many tokens are not the argmax."""
    return sum(score.gap > 0 for score in scores)


def largest_gap(scores: Sequence[Score]) -> float:
    """The largest gap in logits; NaN if any is NaN, 0.0 of nothing."""
    gaps = [score.gap for score in scores]
    return math.nan if any(math.isnan(gap) for gap in gaps) else max(gaps, default=0.0)


def ulp(magnitude: float, dtype: str) -> float:
    """Distance between neighbouring numbers of `dtype` at this magnitude; NaN where it is no number."""
    if not math.isfinite(magnitude):
        return math.nan
    return float(2.0 ** (math.floor(math.log2(max(magnitude, LEAST_TOP))) - MANTISSA_BITS[dtype]))


def unit_of(score: Score, dtype: str) -> float:
    """The ULP, in logits, at the token's own top logit."""
    return ulp(UNKNOWN_TOP if score.top is None else abs(score.top), dtype)


def gap_in_ulps(score: Score, dtype: str) -> float:
    """How many ULPs a token lies below the argmax."""
    return score.gap / unit_of(score, dtype)


def whole(ulps: float) -> float:
    """Up to whole ULPs, since logits lie on a grid of them; a hundredth is what log-probabilities round off."""
    return math.ceil(ulps - 0.01) if math.isfinite(ulps) else ulps


@dataclass(frozen=True)
class NearTies:
    """Tokens that are not the target's argmax, in the calibration and in the judged output, each over distinct outputs.

    `p_value`: the chance of so many in the judged output if they came `margin` times as often as in the calibration,
    the most that is taken for the same. Given their sum, one of two Poisson counts is binomial (Przyborowski and
    Wilenski 1940). `level`: of one look. `again`: the second look, at fresh prompts, where the first found too many.
    """

    null: Null
    judged: int
    judged_tokens: int
    level: float
    p_value: float
    again: NearTies | None = None

    @property
    def suspect(self) -> bool:
        """Whether this look alone finds too many."""
        return self.p_value < self.level

    @property
    def too_many(self) -> bool:
        """Whether there are too many at each look: both by chance together are as rare as the gate's level."""
        return self.suspect and (self.again is None or self.again.too_many)


def compare_near_ties(floor: NoiseFloor, judged: int, judged_tokens: int) -> NearTies:
    """Is `judged` of `judged_tokens` more than the calibration and its margin allow?"""
    from scipy.special import bdtrc

    null, scaled = floor.null, floor.null.margin * judged_tokens
    tried = judged and null.tokens
    chance = bdtrc(judged - 1, null.near_ties + judged, scaled / (null.tokens + scaled)) if tried else 1.0
    return NearTies(null, judged, judged_tokens, math.sqrt(floor.level / 2), float(chance))


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
        if self.lossy is not None:
            share = self.lossy / max(self.tokens, 1)
            found.append(f"a lossy acceptance of {self.lossy} or more runner-ups, however far ({share:.2%})")
        if self.near_ties is not None:  # the second look has a calibration of its own, with more of them or fewer
            ties = f"{self.near_ties} of {self.tokens} tokens or more"
            found.append(f"and, in 8 of 10 gates at least, wrong near-ties: {ties}")
        if self.near_ties is None and self.candidates:
            found.append(f"no number of wrong near-ties ({self.candidates} of {self.tokens} tokens could be)")
        rated = "" if self.rated == self.tokens else f"; {self.rated:,} of {self.tokens:,} tokens were rated"
        return f"would have found, with {100 * SURELY:.0f} %: {'; '.join(found)}{rated}"

    def tokens_wanted(self, kind: str, share: float) -> int | None:
        """How many more tokens would show faults of this kind and share: 0 if none are needed, None if none suffice.

        Judged output grows, and the calibration with it where all of it is rated.
        """
        if kind == "lossy":
            return None if self.lossy is None else max(0, math.ceil(self.lossy / share) - self.tokens)
        times = 1.0
        while self.tokens and times < MOST_TIMES:
            null, tokens = self.floor.null, math.ceil(self.tokens * times)
            grown = times if self.rated == self.tokens else 1.0
            larger = Null(round(null.near_ties * grown), round(null.tokens * grown), null.shape)
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
    right = [(score, score.runner_up) for score in scores if score.gap == 0 and score.runner_up is not None]
    within = sum(floor.bears(runner_up / unit_of(score, floor.dtype)) for score, runner_up in right)
    judged, lossy = count_near_ties(scores), 1  # so many must be planted until one is beyond the floor with 95 %
    if 0 < within < len(right):
        lossy = math.ceil(math.log(1 - SURELY) / math.log(within / len(right)))
    least, candidates = least_near_ties(floor, judged, tokens), within * tokens // max(len(scores), 1)
    return Sensitivity(
        tokens=tokens,
        rated=len(scores),
        judged=judged,
        candidates=candidates,
        near_ties=least if least <= candidates else None,
        lossy=lossy if within < len(right) else None,
        floor=floor,
    )


def least_near_ties(floor: NoiseFloor, judged: int, tokens: int) -> int:
    """How many more near-ties both looks find, their number itself being a matter of chance.

    With 95 % where the second look's calibration has as many as the first one's; it has one of its own, so with 80 % at
    least (simulated: tests/unit/test_simulated_limits.py).
    """
    from scipy.special import pdtri

    many = range(max(tokens, 1) * 64)
    critical = bisect(many, False, key=lambda judged: compare_near_ties(floor, judged, tokens).suspect)
    return max(1, math.ceil(float(pdtri(critical - 1, 1 - math.sqrt(SURELY))) - judged))
