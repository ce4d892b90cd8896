"""Whether an open load was what it was asked to be, whether the engine kept up with it, and how many were served well.

As many requests a second were due, were sent, and were completed: an engine that completes fewer than it is asked is
saturated. What the machine itself held up makes a rate that was missed inconclusive, and is part of the latencies; so
does a load that is too short to tell an engine that falls behind from one that takes its time.
Goodput is the share of requests that met every objective. Definitions are in docs/measurements.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pytest_specdec.generation import Generation, Run
from pytest_specdec.metrics import speed
from pytest_specdec.metrics.rounds import IS_BASELINE, NOT_TIMED, Rounds
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import FailedPart, GoodputPart, LoadPart, SendLag

if TYPE_CHECKING:
    from pytest_specdec.workloads.scenario import Scenario


NO_OBJECTIVES = "the scenario gives no objectives (slo)"
FAILED = "failed"
LONGEST_ERROR = 200
SUSTAINED_SHARE = 0.95
RATE_TOLERANCE = 0.01
LAG_TOLERANCE_S = 0.005
NO_MOMENTS = "this load sets no moments at which requests are due"
RATE_BOUND = (
    "the load's rate, not the engine, sets tokens/s below saturation: compare latencies, or measure a closed load"
)


def missed_objectives(answer: Generation, objectives: Mapping[str, float]) -> list[str]:
    """Which objectives (longest times in ms) the request misses; FAILED alone where there is no whole answer."""
    if answer.error is not None or not answer.token_ids:
        return [FAILED]
    times = {key: speed.LATENCY_OF[key.removesuffix("_ms")](answer) for key in objectives}
    return [key for key, time in times.items() if time is not None and 1000 * time > objectives[key]]


def goodput_part(objectives: Mapping[str, float], rounds: Rounds) -> GoodputPart:
    """The record's goodput over all requests of all rounds: a share, requests a second, and what was missed how often.

    `at_best` is the share if each had come sooner by as much as the machine was late in sending. Null with a reason
    where nothing was asked or timed, or the engine tells no times.
    """
    reason = _why_none(objectives, rounds)
    if reason is not None:
        return replace(missing(GoodputPart, reason), slo=dict(objectives))
    outcomes = [missed_objectives(answer, objectives) for answer in rounds.answers]
    at_best = []  # from the moment that counts where the machine put the run behind; the time of a token is its own
    for run in rounds.runs:
        later = {key: ms + (key != "tpot_ms") * 1000 * speed.held_up_s(run) for key, ms in objectives.items()}
        at_best += [missed_objectives(answer, later) for answer in run.generations]
    counts = Counter(key for each in outcomes for key in each)
    return GoodputPart(
        share=Figure(outcomes.count([]) / len(outcomes)),
        requests_per_second=Figure(outcomes.count([]) / sum(rounds.seconds)),
        at_best=Figure(at_best.count([]) / len(at_best)),
        missed=Figure({key: counts[key] for key in (*objectives, FAILED)}),
        slo=dict(objectives),
    )


def _why_none(objectives: Mapping[str, float], rounds: Rounds) -> str | None:
    if not objectives:
        return NO_OBJECTIVES
    if not rounds.measured or sum(rounds.seconds) <= 0:
        return NOT_TIMED
    whole = [answer for answer in rounds.answers if answer.error is None and answer.token_ids]
    if not all(answer.chunks for answer in whole):
        return speed.NO_TIMES
    unknown = any(speed.ttft_s(answer) is None for answer in whole)
    return speed.NO_START if unknown and set(objectives) - {"tpot_ms"} else None


def hold_goodput(goodput: GoodputPart, asked: float | None, path: Path) -> tuple[list[str], list[str]]:
    """The failure that fewer requests than `asked`, a share, met the objectives, or that nobody can tell; and the
    warning where the machine, which sent requests late, may be why."""
    share, reason, at_best = goodput.share.value, goodput.share.reason, goodput.at_best.value or 0.0
    if asked is None or reason in (speed.WITHHELD, NOT_TIMED) or (share is not None and share >= asked):
        return [], []
    limit = f"min_goodput = {asked:g} of {path}"
    if share is None:
        return [f"goodput is not known, so {limit} cannot be asked: {reason}"], []
    below = f"goodput {share:.3g} is below {limit}"
    if at_best >= asked:
        return [], [f"inconclusive: {below}, and up to {at_best:.3g} had this machine sent requests when they were due"]
    limits = {**{key: f"{key} = {ms:g}" for key, ms in goodput.slo.items()}, FAILED: FAILED}
    told = ", ".join(f"{limits[key]}: {count}" for key, count in (goodput.missed.value or {}).items() if count)
    return [f"{below}; requests that missed each objective: {told}"], []


def failed_part(rounds: Rounds) -> FailedPart:
    """How many requests failed, of how many, and what was said of them."""
    errors = [answer.error.strip() for answer in rounds.answers if answer.error is not None]
    told = Counter(each.splitlines()[0][:LONGEST_ERROR] if each else "no words" for each in errors)
    return FailedPart(count=told.total(), of=len(rounds.answers), by_error=dict(told.most_common()))


@dataclass(frozen=True)
class Flow:
    """Requests a second over all rounds: due, sent, completed; None where fewer than two have such a moment.

    `at_best`: completed, had the machine held nothing up. `held_up_s`: how far it put a round behind its schedule.
    `load_s`: how long the shortest round's load was, `behind_s`: how much longer than theirs a round's answers took to
    come in at most, beyond the shortest latency. `grows_s`: how much longer the last third of that round's answers took
    than the first third, by their medians; infinite where there are fewer than three.
    """

    asked: float | None
    sent: float | None
    completed: float | None
    at_best: float | None = None
    held_up_s: float = 0.0
    load_s: float = 0.0
    behind_s: float = 0.0
    grows_s: float = math.inf

    @classmethod
    def of(cls, rounds: Rounds) -> Flow:
        """By the moments of the generations; a request that failed was sent, and not completed."""
        due = [_span([each.scheduled_s for each in run.generations]) for run in rounds.runs]
        done = [_completion(speed.completed_answers(run)) for run in rounds.runs]
        late = [
            (took - asked, _growth_s(run))
            for (_, took), (_, asked), run in zip(done, due, rounds.runs, strict=True)
            if asked
        ]
        return cls(
            _ratio_of_totals(due),
            _ratio_of_totals(_span([each.started_s for each in run.generations]) for run in rounds.runs),
            _ratio_of_totals(done),
            _ratio_of_totals(map(_completion_at_best, rounds.runs)),
            max(map(speed.held_up_s, rounds.runs), default=0.0),
            min((seconds for _, seconds in due), default=0.0),
            *max(late, default=(0.0, math.inf)),
        )

    @property
    def is_open(self) -> bool:
        """Whether requests were due at moments."""
        return self.asked is not None

    @property
    def sustained(self) -> bool:
        """Whether as many were completed as were asked, within SUSTAINED_SHARE."""
        return self._is_enough(self.completed)

    @property
    def sustained_at_best(self) -> bool:
        """Whether as many would have been, at best, had the machine sent what was due."""
        return self._is_enough(self.at_best)

    @property
    def doubt(self) -> str:
        """Why it is not known whether the engine keeps up, where the machine held requests up."""
        return (
            f"inconclusive: asked {self.asked or 0:.4g} requests/s, this machine sent {self.sent or 0:.4g}, "
            f"up to {self.held_up_s:.3g} s late"
        )

    def too_short_beside(self, kept_up: Flow) -> str | None:
        """Why it is not known whether the engine keeps up: as far behind as at a rate at which it did, it would not.

        None where it is known: the load is long enough, or answers came in later than a second load would have ended.
        """
        least_s = kept_up.behind_s * SUSTAINED_SHARE / (1 - SUSTAINED_SHARE)
        if self.asked is None or self.load_s >= least_s or self.behind_s > self.load_s:
            return None
        return (
            f"inconclusive: {self.asked:.4g} requests/s for {self.load_s:.3g} s is too short a load: at "
            f"{kept_up.asked:.4g} requests/s, which were sustained, answers came in {kept_up.behind_s:.3g} s behind; "
            f"give at least {math.ceil(least_s * self.asked) + 1} requests"
        )

    @property
    def too_short_alone(self) -> str | None:
        """Why it is not known whether the engine keeps up: a long answer at the end may be all that it is behind.

        An engine that falls behind answers each request later than the one before. Of what it is behind at the end, two
        thirds lie between the middles of the first third and of the last; here half of that is taken for a sign of it.
        None where it is known: as much as that, or answers came in later than a second load would have ended.
        """
        if self.asked is None or self.sustained or self.behind_s > self.load_s or self.grows_s >= self.behind_s / 3:
            return None
        least_s = self.behind_s * SUSTAINED_SHARE / (1 - SUSTAINED_SHARE)
        return (
            f"inconclusive: {self.asked:.4g} requests/s for {self.load_s:.3g} s is too short a load: answers came in "
            f"{self.behind_s:.3g} s behind, and later ones took {max(self.grows_s, 0.0):.2g} s longer than earlier "
            "ones, too little for an engine that falls behind; "
            f"give at least {math.ceil(least_s * self.asked) + 1} requests"
        )

    def _is_enough(self, rate: float | None) -> bool:
        return bool(self.asked and rate and rate >= SUSTAINED_SHARE * self.asked)


def _span(moments: Iterable[float | None]) -> tuple[int, float]:
    """Gaps between the moments that are told, and the seconds from the first to the last."""
    told = [moment for moment in moments if moment is not None]
    return (len(told) - 1, max(told) - min(told)) if told else (0, 0.0)


def _completion(answers: list[Generation]) -> tuple[int, float]:
    """Gaps between answers, and the seconds that they took beyond the shortest latency."""
    done = [(each.chunks[-1].at_s, took) for each in answers if (took := speed.e2e_s(each)) is not None]
    if not done:
        return 0, 0.0
    first_asked = min(end - took for end, took in done)
    return len(done) - 1, max(end for end, _ in done) - first_asked - min(took for _, took in done)


def _growth_s(run: Run) -> float:
    answers = sorted(speed.completed_answers(run), key=lambda each: each.scheduled_s or 0.0)
    took = [each for each in map(speed.e2e_s, answers) if each is not None]
    third = len(took) // 3
    return median(took[-third:]) - median(took[:third]) if third else math.inf


def _ratio_of_totals(runs: Iterable[tuple[int, float]]) -> float | None:
    told = list(runs)
    gaps, seconds = sum(gaps for gaps, _ in told), sum(seconds for _, seconds in told)
    return gaps / seconds if gaps and seconds > 0 else None


def _completion_at_best(run: Run) -> tuple[int, float]:
    """What `_completion` would have been, at best: no sooner than the last request was due."""
    gaps, seconds = _completion(speed.completed_answers(run))
    return gaps, max(seconds - speed.held_up_s(run), _span(each.scheduled_s for each in run.generations)[1])


def send_lags_s(rounds: Rounds) -> list[float]:
    """From the moment each request was due to that at which it was sent, sorted."""
    dated = (answer for answer in rounds.answers if answer.scheduled_s is not None)
    return sorted(max(0.0, lag) for answer in dated if (lag := speed.queue_s(answer)) is not None)


def load_part(scenario: Scenario, rounds: Rounds, base: Rounds | None) -> LoadPart:
    """The record's load: what was asked, what was sent and completed, the lag of sending, and what is wrong with it.

    `base`: the target's rounds under the same load, None if these are they.
    """
    flow, lags, due = Flow.of(rounds), send_lags_s(rounds), scenario.due_s
    known = {f"p{percent}": speed.percentile(lags, percent) for percent in (50, 90, 99)} if lags else {}
    lag = SendLag(**known, max=lags[-1]) if lags else None
    return LoadPart(
        played=scenario.load.model_dump(mode="json", exclude_none=True),
        requests_left_out=scenario.prompt_count - len(due) if due else 0,
        asked_per_second=Figure(flow.asked, NO_MOMENTS),
        sent_per_second=Figure(flow.sent if flow.is_open else None, speed.NO_START if flow.is_open else NO_MOMENTS),
        completed_per_second=Figure(flow.completed, speed.NO_TIMES),
        send_lag_s=Figure(lag, speed.NO_START if flow.is_open else NO_MOMENTS),
        flags=tuple(flags(flow, lags)),
        latency_over_target=_over_target(rounds, base, flow),
        failed=failed_part(rounds),
        goodput=goodput_part(scenario.slo.asked, rounds),
    )


def flags(flow: Flow, lags: list[float]) -> list[str]:
    """What makes this load another than the one that was asked for; nothing where all is within tolerance."""
    found = []
    if flow.asked and not flow.sent:
        found.append(speed.NO_START)
    if flow.asked and flow.sent and abs(off := flow.sent / flow.asked - 1) > RATE_TOLERANCE:
        told = f"asked {flow.asked:.4g} requests/s, sent {flow.sent:.4g}"
        found.append(f"{told}: off by {off:+.1%}, more than {RATE_TOLERANCE:.0%}")
    if lags and (late := speed.percentile(lags, 99)) > LAG_TOLERANCE_S:
        told = f"p99 of the send lag {1000 * late:.1f} ms, more than {1000 * LAG_TOLERANCE_S:g} ms"
        found.append(f"requests were sent late: {told}; latencies count from the moment they were due")
    return found


def rate_bound(*arms: Rounds) -> str | None:
    """Why the arms' tokens/s do not compare: under an open load only who cannot keep up runs at a speed of its own."""
    flows = [flow for rounds in arms if (flow := Flow.of(rounds)).is_open]
    if any(flow.sustained for flow in flows):
        return RATE_BOUND
    doubts = [flow.doubt if flow.sustained_at_best else flow.too_short_alone for flow in flows]
    return next(filter(None, doubts), None)


def paces(rounds: Rounds) -> tuple[float, ...]:
    """What tells from round to round how fast the engine is: tokens/s, or under an open load, which sets those, the
    answers over their end-to-end latencies."""
    if not Flow.of(rounds).is_open:
        return rounds.rates
    taken = [[took for answer in speed.completed_answers(run) if (took := speed.e2e_s(answer))] for run in rounds.runs]
    return tuple(len(each) / sum(each) for each in taken) if all(taken) else rounds.rates


def _over_target(rounds: Rounds, base: Rounds | None, flow: Flow) -> Figure[Mapping[str, Mapping[str, float | None]]]:
    """Latencies of this arm over those of the target under the same load, by percentile; below 1 is faster."""
    if not flow.is_open or base is None:
        return Figure(None, NO_MOMENTS if not flow.is_open else IS_BASELINE)
    ours, theirs = speed.latency_part(rounds), speed.latency_part(base)
    pairs = {f"{name}_s": [getattr(each, f"{name}_s") for each in (ours, theirs)] for name in speed.LATENCY_OF}
    return Figure(
        {
            name: {at: mine.at(at) / its.at(at) if mine.n and its.at(at) else None for at in ("p50", "p99")}
            for name, (mine, its) in pairs.items()
        }
    )
