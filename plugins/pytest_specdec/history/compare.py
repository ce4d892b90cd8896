"""One figure against earlier runs: better or the same, worse, or not yet decided.

It is worse when the whole interval of its rounds (by resampling) lies beyond the threshold and the difference between
sessions does not explain it, and good when the whole interval lies within. Else it is inconclusive for want of rounds,
and it is said how many would decide, or of sessions. A figure that has no value for each round is held against the
plain threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any

from pytest_specdec.metrics.load import SUSTAINED_SHARE
from pytest_specdec.metrics.rounds import DETERMINED, LEVEL, TELLING, rounds_to_decide, sessions_differ, stretch
from pytest_specdec.metrics.speed import LATENCY_OF, seconds_of_line
from pytest_specdec.record import Figure, Record, Spread
from pytest_specdec.record.parts import ChangePart, LatencyPart
from pytest_specdec.thresholds import METRICS, Metric, Threshold

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]


NO_FIGURE = "the record does not have it"


def latency_of(part: LatencyPart, metric: Metric) -> Figure[float]:
    """A metric that is a latency, in seconds."""
    spread: Spread = getattr(part, f"{metric.latency}_s")
    return Figure(spread.at(f"p{metric.percentile}"), spread.reason or NO_FIGURE)


def figure_of(record: Record, metric: Metric) -> Figure[float]:
    """The metric's value in the record's own unit, or why it was not measured."""
    if metric.latency:
        return latency_of(record.latency, metric)
    figure: Figure[float] = attrgetter(metric.place)(record)
    return figure


def sample_of(record: Record, metric: Metric) -> Sample | None:
    """The metric over the record's rounds; None where it has no value for each of them."""
    rounds = record.throughput.per_round
    if metric.latency in LATENCY_OF:
        lines = getattr(rounds, f"{metric.latency}_us") or ()
        return pooled_percentile([seconds_of_line(line) for line in lines], metric.percentile)
    totals: dict[str, tuple[Sequence[float] | None, Sequence[float] | None, float]] = {
        "tokens_per_second": (rounds.tokens, rounds.seconds, 0.0),
        "joules_per_token": (record.energy.joules_each_round, rounds.tokens, 0.0),
        "acceptance_rate": (rounds.accepted_tokens, rounds.draft_tokens, 0.0),
        "mean_accepted_length": (rounds.accepted_tokens, rounds.drafts, 1.0),
    }
    above, below, offset = totals.get(metric.name, (None, None, 0.0))
    return ratio_of_totals(above, below, offset) if above and below else None


ALARM_LEVEL = (1 - LEVEL) / 2
RESAMPLES = 10_000
SEED = 20_151_004
FEWEST = 4
MAX_CELLS = 4_000_000


@dataclass(frozen=True)
class Sample:
    """A figure over all rounds, and in `each`. `drawn`: for counts of shape (resamples, rounds), how often each round
    was drawn, the figure of every resample, shape (resamples,)."""

    figure: float
    each: Sequence[float]
    drawn: Callable[[Array], Array]

    @property
    def rounds(self) -> int:
        """How many."""
        return len(self.each)


def ratio_of_totals(above: Sequence[float], below: Sequence[float], offset: float = 0.0) -> Sample | None:
    """offset + Σ above / Σ below, one value of each a round; None where nothing lies below."""
    import numpy

    over, under = numpy.asarray(above, float), numpy.asarray(below, float)
    if len(over) != len(under) or not len(over) or under.min() <= 0:
        return None
    figure = offset + float(over.sum() / under.sum())
    return Sample(figure, (over / under).tolist(), lambda counts: offset + (counts @ over) / (counts @ under))


def pooled_percentile(rounds: Sequence[Sequence[float]], percent: float) -> Sample | None:
    """A percentile over the values of all rounds, each round's values drawn together; None where a round has none."""
    import numpy

    if not rounds or not all(rounds):
        return None
    pooled = numpy.concatenate([numpy.asarray(values, float) for values in rounds])
    order = numpy.argsort(pooled, kind="stable")
    values, round_of = pooled[order], numpy.repeat(numpy.arange(len(rounds)), list(map(len, rounds)))[order]
    share = percent / 100
    figure = float(numpy.quantile(values, share))
    each = [float(numpy.quantile(values_of, share)) for values_of in rounds]
    return Sample(figure, each, lambda counts: _percentiles(values, round_of, counts, share))


def _percentiles(values: Array, round_of: Array, counts: Array, share: float) -> Array:
    """By linear interpolation between the two nearest, as if each value stood there as often as its round was drawn."""
    import numpy

    batch, found = max(1, MAX_CELLS // len(values)), []
    for first in range(0, len(counts), batch):
        upto = counts[first : first + batch][:, round_of].cumsum(axis=1)
        place = (upto[:, -1] - 1) * share
        below = numpy.floor(place)
        above = numpy.minimum(below + 1, upto[:, -1] - 1)
        low, high = (values[(upto > rank[:, None]).argmax(axis=1)] for rank in (below, above))
        found.append(low + (high - low) * (place - below))
    return numpy.concatenate(found)


def change_interval(now: Sample, base: Sample) -> tuple[float, float] | None:
    """The interval of now over base at LEVEL, the same each time for the same rounds; None for too few."""
    if min(now.rounds, base.rounds) < FEWEST:
        return None
    of_ours, of_theirs = _counts(RESAMPLES, now.rounds, base.rounds)
    return _interval(now.figure / base.figure, now.drawn(of_ours) / base.drawn(of_theirs), now, base)


def own_width(sample: Sample) -> float | None:
    """Half the width of the figure's own interval, as a share of it; None for too few rounds."""
    if sample.rounds < FEWEST:
        return None
    low, high = _interval(sample.figure, sample.drawn(*_counts(RESAMPLES, sample.rounds)), sample)
    return (high - low) / 2 / sample.figure


def _interval(middle: float, drawn: Array, *samples: Sample) -> tuple[float, float]:
    """Of the resamples' figures; wider for few rounds, and for rounds that depend on those before.

    It is made wider on logarithms, so that no bound is below 0; where a bound is 0, which has none, as they are.
    """
    import numpy

    tail, wider = expanded_tail(min(each.rounds for each in samples)), stretch(*(each.each for each in samples))
    low, high = map(float, numpy.quantile(drawn, (tail, 1 - tail)))
    if low <= 0:
        return max(0.0, middle - wider * (middle - low)), middle + wider * (high - middle)
    return middle * (low / middle) ** wider, middle * (high / middle) ** wider


@lru_cache(maxsize=2)
def _counts(resamples: int, *rounds: int) -> tuple[Array, ...]:
    """How often each resample has each round, for one side or two: the same for every figure of as many rounds."""
    import numpy

    source = numpy.random.default_rng(SEED)
    return tuple(source.multinomial(count, [1 / count] * count, size=resamples) for count in rounds)


def expanded_tail(rounds: int) -> float:
    """The share of resamples to leave out at each end, for this many rounds."""
    from scipy.special import stdtrit

    student = -float(stdtrit(rounds - 1, ALARM_LEVEL))
    return NormalDist().cdf(-math.sqrt(rounds / (rounds - 1)) * student)


class Outcome:
    """What a gate says of one figure. SHOWN: nobody set a threshold. MISSING: one of the two runs lacks the figure."""

    GOOD = "better or same"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"
    MISSING = "missing"
    SHOWN = "shown"


def compare_figure(
    now: Record, then: Record, threshold: Threshold, earlier: Sequence[Record] = ()
) -> ChangePart | None:
    """The change of one figure; None where neither run could have it, as the target alone has no acceptance.

    `earlier`: records of sessions before `then` that measured the same with the same versions.
    """
    if _load_sets(now, threshold) or _load_sets(then, threshold):
        instead = replace(threshold, metric=METRICS[UNDER_A_LOAD])
        change = compare_figure(now, then, instead, earlier) if threshold.relative else None
        told = change or _missing(now, then, instead, (None, None))
        return replace(told, why="; ".join(filter(None, (LOAD_SETS, told.why))))
    metric = threshold.metric
    figures = figure_of(now, metric).value, figure_of(then, metric).value
    if figures == (None, None) and not now.asked.speculates and metric.name in ACCEPTANCE:
        return None
    if figures[0] is None or figures[1] is None:
        return _missing(now, then, threshold, figures)
    samples = sample_of(now, metric), sample_of(then, metric)
    if samples[0] is None or samples[1] is None or not samples[1].figure > 0:
        return _by_intervals(now, then, threshold) or _plain(figures[0], figures[1], threshold)
    before = [value for each in earlier if (value := figure_of(each, metric).value)]
    change = _compare_samples(samples[0], samples[1], threshold, before)
    of_time = metric.name not in DETERMINED and change.outcome == Outcome.WORSE
    return replace(change, why=_more_waiting(now, then)) if of_time else change


def _more_waiting(now: Record, then: Record) -> str:
    """That the engine waited for a core more than in the baseline run, which may be why it is slower; else nothing."""
    ours, theirs = (each.throughput.waited_for_cores.value for each in (now, then))
    more = ours is not None and theirs is not None and ours - theirs > MORE_WAITING
    return WAITED.format(ours, theirs) if more else ""


ACCEPTANCE = ("acceptance_rate", "mean_accepted_length", "speedup")
UNDER_A_LOAD = "e2e_p50"
LOAD_SETS = f"the load sets tokens/s, so {UNDER_A_LOAD} is held against the threshold"


def _load_sets(record: Record, threshold: Threshold) -> bool:
    """Whether tokens/s are those of an open load that the engine keeps up with, whatever the engine."""
    asked, completed = record.load.asked_per_second.value, record.load.completed_per_second.value
    kept_up = bool(asked and completed and completed >= SUSTAINED_SHARE * asked)
    return threshold.metric.name == "tokens_per_second" and kept_up


def _change(threshold: Threshold, outcome: str, now: float | None, then: float | None, why: str = "") -> ChangePart:
    return ChangePart(
        metric=threshold.metric.name,
        outcome=outcome if threshold.gates else Outcome.SHOWN,
        threshold=threshold.text,
        now=now,
        then=then,
        change=now / then - 1 if now is not None and then else None,
        why=why,
        level=LEVEL,
    )


def _missing(now: Record, then: Record, threshold: Threshold, figures: tuple[float | None, float | None]) -> ChangePart:
    side, record = ("this run", now) if figures[0] is None else ("the baseline run", then)
    why = f"{side} has no {threshold.metric.name}: {figure_of(record, threshold.metric).reason or NO_FIGURE}"
    return _change(threshold, Outcome.MISSING, *figures, why)


def _plain(now: float, then: float, threshold: Threshold) -> ChangePart:
    loss = then - now if threshold.metric.more_is_better else now - then
    outcome = Outcome.WORSE if (loss / then if threshold.relative else loss) > threshold.most else Outcome.GOOD
    why = "held against the plain threshold: there is no value of it for each round, so it has no interval"
    return _change(threshold, outcome, now, then, why)


def _by_intervals(now: Record, then: Record, threshold: Threshold) -> ChangePart | None:
    """A speed-up by the intervals of both; None of another figure, or where one has none."""
    ours, theirs = now.speedup, then.speedup
    if threshold.metric.name != "speedup" or not (ours.interval.value and theirs.interval.value):
        return None
    half = math.hypot(*(math.log(high / low) / 2 for low, high in (ours.interval.value, theirs.interval.value)))
    part = _change(threshold, Outcome.INCONCLUSIVE, ours.ratio.value, theirs.ratio.value)
    ratio, rounds = 1 + (part.change or 0.0), min(now.throughput.rounds, then.throughput.rounds)
    part = replace(part, low=ratio * math.exp(-half) - 1, high=ratio * math.exp(half) - 1, rounds=rounds)
    return _decide(part, threshold, theirs.ratio.value or 1.0) if threshold.gates else part


def _compare_samples(now: Sample, then: Sample, threshold: Threshold, before: Sequence[float]) -> ChangePart:
    sessions = [then.figure, *before]
    base = math.exp(fmean(map(math.log, sessions)))  # the geometric mean
    differ = 0.0 if threshold.metric.name in DETERMINED else sessions_differ(sessions)
    moved, rounds = then.figure / base, min(now.rounds, then.rounds)
    known = change_interval(now, then)
    why = "" if known else f"{rounds} rounds give no interval: at least {FEWEST} are needed on each side"
    part = replace(
        _change(threshold, Outcome.INCONCLUSIVE, now.figure, base, why),
        low=known[0] * moved - 1 if known else None,
        high=known[1] * moved - 1 if known else None,
        rounds=rounds,
        sessions=len(sessions),
        sessions_differ=differ,
    )
    if not threshold.gates:
        return part
    return _decide(part, threshold, base) if known else replace(part, wanted=FEWEST)


def _decide(part: ChangePart, threshold: Threshold, base: float) -> ChangePart:
    """The outcome, and for want of what it is inconclusive; everything as shares of the base."""
    most = threshold.most if threshold.relative else threshold.most / base
    sign = -1 if threshold.metric.more_is_better else 1
    middle, *bounds = (sign * (each or 0.0) for each in (part.change, part.low, part.high))
    low, high, differ = min(bounds), max(bounds), part.sessions_differ or 0.0
    if high <= most:
        return replace(part, outcome=Outcome.GOOD)
    if low > most and middle > math.hypot(middle - low, differ):
        return replace(part, outcome=Outcome.WORSE)
    half = (high - low) / 2
    if low <= most and half > differ:
        near = max(abs(middle - most), differ)
        return replace(part, wanted=rounds_to_decide(half, near, part.rounds or 1))
    return replace(part, why=WANT_SESSIONS if low > most else NEAR)


MORE_WAITING = 0.02
WAITED = "the engine waited for a core in {:.0%} of the time that it wanted one, {:.0%} then: was the machine busy?"
WANT_SESSIONS = "beyond the threshold, and within what sessions of the same code differ"
NEAR = "too near the threshold for rounds to decide, since sessions of the same code differ by more"


def in_words(change: ChangePart) -> str:
    """A change in one line: figure, change, interval, threshold, outcome, what would help."""
    if change.now is None or change.then is None:
        return f"{change.metric}: {change.outcome}: {change.why}"
    values = f"{change.metric} {change.then:.4g} → {change.now:.4g}"
    limit = f", threshold {change.threshold}" if change.threshold else ""
    guessed = " assumed" if (change.sessions or 0) < TELLING else ""
    apart = f", sessions ±{100 * change.sessions_differ:.1f} %{guessed}" if change.sessions_differ else ""
    told = "" if change.outcome == Outcome.SHOWN else f": {change.outcome}"
    return f"{values} ({interval_in_words(change)}{apart}{limit}){told}{remedy(change)}"


def interval_in_words(change: ChangePart) -> str:
    """E.g. "−9.8 % [−10.9, −8.7]"."""
    if change.change is None:
        return "from zero"
    middle = f"{in_percent(change.change)} %"
    if change.low is None or change.high is None:
        return middle
    return f"{middle} [{in_percent(change.low)}, {in_percent(change.high)}]"


def remedy(change: ChangePart) -> str:
    """What is to be said beside the outcome, after a semicolon: why there is no interval, or what would decide."""
    why = f"; {change.why}" if change.why else ""
    if change.outcome != Outcome.INCONCLUSIVE:
        return why
    if change.low is None:
        return f"{why} (--specdec-rounds {FEWEST} or more, here and for the baseline run)"
    if change.wanted is not None:
        return f"{why}; about {change.wanted} rounds on each side would decide, there were {change.rounds}"
    one = "one earlier run cannot tell how far sessions differ here: save more of them, or "
    return f"{why}; {one * (change.sessions == 1)}measure both versions in one session (docs/history.md)"


def in_percent(share: float) -> str:
    """A share as the reader knows it: "−9.8"."""
    return f"{100 * share:+.1f}".replace("-", "−")
