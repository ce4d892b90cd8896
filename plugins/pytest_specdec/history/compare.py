"""One figure against its baseline run: better or the same, worse, or not yet decided.

The change is judged by its interval (resampling.py), not by its middle. It is worse when the whole interval lies beyond
the threshold, and good when the whole interval lies within it; else the rounds do not decide, and it is said how many
would. A figure that has no value for each round is held against the plain threshold, and that is said too.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import partial
from typing import Any

from pytest_specdec.history.figures import figure_of, reason_of, sample_of
from pytest_specdec.history.resampling import FEWEST, LEVEL, Sample, changes
from pytest_specdec.record import Record
from pytest_specdec.record.parts import ChangePart
from pytest_specdec.thresholds import Threshold

MOST_ROUNDS = 1000


class Outcome(str, Enum):
    """What a gate says of one figure. SHOWN: nobody set a threshold. MISSING: one of the two runs lacks the figure."""

    GOOD = "better or same"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"
    MISSING = "missing"
    SHOWN = "shown"


def compare_figure(now: Record, then: Record, threshold: Threshold) -> ChangePart | None:
    """The change of one figure; None where neither run could have it, as the target alone has no acceptance."""
    metric = threshold.metric
    figures = figure_of(now, metric), figure_of(then, metric)
    if figures == (None, None) and not now.asked.speculates and metric.name in ACCEPTANCE:
        return None
    if figures[0] is None or figures[1] is None:
        return _missing(now, then, threshold, figures)
    samples = sample_of(now, metric), sample_of(then, metric)
    if samples[0] is None or samples[1] is None:
        return _plain(figures[0], figures[1], threshold)
    return _compare_samples(samples[0], samples[1], threshold)


ACCEPTANCE = ("acceptance_rate", "mean_accepted_length", "speedup")


def _missing(now: Record, then: Record, threshold: Threshold, figures: tuple[float | None, float | None]) -> ChangePart:
    side, record = ("this run", now) if figures[0] is None else ("the baseline run", then)
    why = f"{side} has no {threshold.metric.name}: {reason_of(record, threshold.metric)}"
    outcome = Outcome.MISSING if threshold.gates else Outcome.SHOWN
    return ChangePart(
        metric=threshold.metric.name,
        outcome=outcome.value,
        threshold=threshold.text,
        now=figures[0],
        then=figures[1],
        why=why,
        level=LEVEL,
    )


def _plain(now: float, then: float, threshold: Threshold) -> ChangePart:
    outcome = Outcome.WORSE if _loss(threshold, now, then) > threshold.most else Outcome.GOOD
    return ChangePart(
        metric=threshold.metric.name,
        outcome=(outcome if threshold.gates else Outcome.SHOWN).value,
        level=LEVEL,
        threshold=threshold.text,
        now=now,
        then=then,
        change=_relative(now, then),
        why="held against the plain threshold: there is no value of it for each round, so it has no interval",
    )


def _compare_samples(now: Sample, then: Sample, threshold: Threshold) -> ChangePart:
    losses, ratios = changes(now, then, partial(_loss, threshold), _ratio) or (None, None)
    rounds = min(now.rounds, then.rounds)
    outcome, wanted = _decide(losses, _loss(threshold, now.figure, then.figure), threshold.most, rounds)
    return ChangePart(
        metric=threshold.metric.name,
        outcome=(outcome if threshold.gates else Outcome.SHOWN).value,
        level=LEVEL,
        threshold=threshold.text,
        now=now.figure,
        then=then.figure,
        change=_relative(now.figure, then.figure),
        low=ratios[0] if ratios else None,
        high=ratios[1] if ratios else None,
        rounds=rounds,
        wanted=wanted if threshold.gates else None,
        why="" if ratios else f"{rounds} rounds give no interval: at least {FEWEST} are needed on each side",
    )


def _decide(losses: tuple[float, float] | None, middle: float, most: float, rounds: int) -> tuple[Outcome, int | None]:
    """The outcome, and how many rounds would decide if it is inconclusive."""
    if losses is None:
        return Outcome.INCONCLUSIVE, FEWEST
    low, high = losses
    if low > most:
        return Outcome.WORSE, None
    if high <= most:
        return Outcome.GOOD, None
    return Outcome.INCONCLUSIVE, _rounds_to_decide(high - low, abs(middle - most), rounds)


def _rounds_to_decide(width: float, distance: float, rounds: int) -> int | None:
    """Rounds a side after which half the interval is shorter than the way to the threshold; it shrinks as 1/√n."""
    if distance * 2 * math.sqrt(MOST_ROUNDS) <= width * math.sqrt(rounds):
        return None
    return max(rounds + 1, math.ceil(rounds * (width / (2 * distance)) ** 2))


def _loss(threshold: Threshold, now: Any, then: Any) -> Any:
    """How much worse, never mind which way is worse; a share of the baseline run or in the record's unit."""
    worse_by = then - now if threshold.metric.more_is_better else now - then
    return worse_by / then if threshold.relative else worse_by


def _ratio(now: Any, then: Any) -> Any:
    return now / then - 1


def _relative(now: float, then: float) -> float | None:
    return now / then - 1 if then else None


def in_words(change: ChangePart) -> str:
    """A change in one line: figure, change, interval, threshold, outcome, what would help."""
    if change.now is None or change.then is None:
        return f"{change.metric}: {change.outcome}: {change.why}"
    values = f"{change.metric} {_short(change.then)} → {_short(change.now)}"
    limit = f", threshold {change.threshold}" if change.threshold else ""
    told = "" if change.outcome == Outcome.SHOWN.value else f": {change.outcome}"
    return f"{values} ({interval_in_words(change)}{limit}){told}{_remedy(change)}"


def interval_in_words(change: ChangePart) -> str:
    """E.g. "−9.8 % [−10.9, −8.7]"."""
    if change.change is None:
        return "from zero"
    middle = f"{_percent(change.change)} %"
    if change.low is None or change.high is None:
        return middle
    return f"{middle} [{_percent(change.low)}, {_percent(change.high)}]"


def _remedy(change: ChangePart) -> str:
    if change.outcome != Outcome.INCONCLUSIVE.value:
        return f"; {change.why}" if change.why else ""
    if change.why:
        return f"; {change.why} (--specdec-rounds {FEWEST} or more, here and for the baseline run)"
    if change.wanted is None:
        return f"; it is too near the threshold for {MOST_ROUNDS} rounds to decide"
    return f"; about {change.wanted} rounds on each side would decide, there were {change.rounds}"


def _short(figure: float) -> str:
    return f"{figure:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")
