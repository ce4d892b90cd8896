"""How fast tokens came, from the arrival times of the very generations that were judged. All times in seconds.

Under speculation a chunk carries several tokens, so the chunk gap, which a reader waits for, stands beside the
inter-token latency (ITL), which throughput follows from. A request that was due at a moment is timed from that moment
on. A figure that a request does not have is missing, never zero. Before any is given, arrival times are held against
the throughput of the same rounds. Definitions are in docs/measurements.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from statistics import median
from typing import Any

from pytest_specdec.generation import Generation, Run
from pytest_specdec.metrics.rounds import FEW_BESIDE, NOT_TIMED, Contradiction, Rounds, bounds_of, ratio_interval
from pytest_specdec.record import Figure, Spread
from pytest_specdec.record.parts import LatencyPart, PerRoundPart, SpeedupPart, ThroughputPart
from pytest_specdec.thresholds import PERCENTILES

WITHHELD = "the output is not the target's: a wrong answer has no speed"
NO_TOKEN = "no request delivered a token"
NO_TIMES = "the engine does not tell when tokens arrived"
NO_START = "the engine does not tell when a request was submitted"
ONE_CHUNK = "no answer came in more than one chunk"
CLOCK_SLACK_S = 0.001
CLOCK_SLACK_SHARE = 0.01
LONGEST_TAIL_SHARE = 0.5
LONGEST_STALL_S = 1.0


def _waited_s(answer: Generation, chunk: int) -> float | None:
    asked = answer.started_s if answer.scheduled_s is None else answer.scheduled_s
    return answer.chunks[chunk].at_s - asked if answer.chunks and asked is not None else None


def ttft_s(answer: Generation) -> float | None:
    """From the moment it was asked to the first token of any kind; None without a token or a known moment."""
    return _waited_s(answer, 0)


def e2e_s(answer: Generation) -> float | None:
    """From the moment it was asked to the last token; None without a token or a known moment."""
    return _waited_s(answer, -1)


def queue_s(answer: Generation) -> float | None:
    """From the moment it was due, or else the run's start, to its submission; None if that is not known."""
    return None if answer.started_s is None else answer.started_s - (answer.scheduled_s or 0.0)


def held_up_s(run: Run) -> float:
    """How far the machine put the run behind its schedule, at most, by not sending what was due.

    Where requests are sent apart that is the longest lag. An engine that sends itself is held up while it has nothing
    under way; such times add up until it has caught up, which is when it waits for a request to fall due.
    """
    moments = sorted(
        (sent, due, answer.chunks[-1].at_s if answer.chunks else sent)
        for answer in run.generations
        if (sent := answer.started_s) is not None and (due := answer.scheduled_s) is not None
    )
    if run.sent_apart:
        return max((sent - due for sent, due, _ in moments), default=0.0)
    longest = behind = idle_since = 0.0
    for sent, due, end in moments:
        if sent > idle_since:
            behind = sent - due if due >= idle_since else behind + sent - idle_since
        longest, idle_since = max(longest, behind), max(idle_since, end)
    return longest


def tpot_s(answer: Generation) -> float | None:
    """Mean time of a token after the first chunk; None where there is no such token."""
    later = sum(chunk.tokens for chunk in answer.chunks[1:])
    return (answer.chunks[-1].at_s - answer.chunks[0].at_s) / later if later else None


def chunk_gaps_s(answer: Generation) -> list[float]:
    """Times between one chunk and the next, one fewer than there are chunks."""
    return [later.at_s - earlier.at_s for earlier, later in pairwise(answer.chunks)]


def itl_s(answer: Generation) -> list[float]:
    """One time for each token after the first chunk: its chunk's gap, shared evenly by the chunk's tokens."""
    chunks = zip(answer.chunks[1:], chunk_gaps_s(answer), strict=True)
    return [gap / chunk.tokens for chunk, gap in chunks for _ in range(chunk.tokens)]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """By linear interpolation between the two nearest of one or more sorted values."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def latency_part(rounds: Rounds) -> LatencyPart:
    """The record's latencies, pooled over all requests of all rounds."""
    answers = [answer for run in rounds.runs for answer in completed_answers(run)]
    no_token = not any(answer.token_ids for answer in answers)
    reason = NO_TOKEN if no_token else None if any(answer.chunks for answer in answers) else NO_TIMES
    sizes = Counter(chunk.tokens for answer in answers for chunk in answer.chunks)
    return LatencyPart(
        ttft_s=_pool(answers, ttft_s, reason or NO_START),
        tpot_s=_pool(answers, tpot_s, reason or ONE_CHUNK),
        itl_s=_pool(answers, itl_s, reason or ONE_CHUNK),
        chunk_gap_s=_pool(answers, chunk_gaps_s, reason or ONE_CHUNK),
        e2e_s=_pool(answers, e2e_s, reason or NO_START),
        queue_s=_pool(answers, queue_s, NO_START),
        tokens_per_chunk={str(tokens): sizes[tokens] for tokens in sorted(sizes)},
    )


def completed_answers(run: Run) -> list[Generation]:
    """The answers of the requests that did not fail."""
    return [answer for answer in run.generations if answer.error is None]


def median_chunk_gap_s(runs: Iterable[Run]) -> float | None:
    """The median time from chunk to chunk, which is the engine's step as a request sees it; None without a gap."""
    gaps = [gap for run in runs for answer in run.generations for gap in chunk_gaps_s(answer)]
    return median(gaps) if gaps else None


def _pool(
    answers: Sequence[Generation], figure: Callable[[Generation], float | list[float] | None], why: str
) -> Spread:
    told = map(figure, answers)
    values = [each if isinstance(each, list) else [] if each is None else [each] for each in told]
    pooled = sorted(chain.from_iterable(values))
    shown = {f"p{percent}": percentile(pooled, percent) for percent in PERCENTILES} if pooled else {}
    return Spread(**shown, n=len(pooled), missing=values.count([]), reason=why)


def refuse_contradictions(rounds: Rounds, concurrency: int) -> None:
    """Hold arrivals against token ids, the engine's seconds and the measured ones. Raises Contradiction."""
    for number, run in enumerate(rounds.runs, start=1):
        for index, answer in enumerate(run.generations):
            if answer.error is None:
                _refuse_order(f"round {number}, request {index}", answer)
        _refuse_times(f"round {number}", run, concurrency)
    _refuse_tails(rounds.runs)
    for number, (run, seconds) in enumerate(zip(rounds.runs, rounds.seconds, strict=False), start=1):
        if run.engine_seconds > _at_most(seconds):
            raise Contradiction(
                f"round {number}: the engine decoded for {run.engine_seconds:.6g} s by its own clock, but "
                f"{seconds:.6g} s were measured: --benchmark-timer must be a clock of real time, such as "
                "time.perf_counter"
            )


def _refuse_order(where: str, answer: Generation) -> None:
    arrived = sum(chunk.tokens for chunk in answer.chunks)
    if answer.chunks and arrived != len(answer.token_ids):
        raise Contradiction(f"{where}: {arrived} tokens arrived in chunks, but {len(answer.token_ids)} were delivered")
    if any(chunk.tokens < 1 for chunk in answer.chunks):
        raise Contradiction(f"{where}: a chunk without tokens has an arrival time")
    if answer.started_s is not None and answer.started_s < (answer.scheduled_s or 0.0) - CLOCK_SLACK_S:
        raise Contradiction(f"{where}: sent at {answer.started_s:.6g} s, but due at {answer.scheduled_s:.6g} s only")
    times = [answer.started_s or answer.scheduled_s or 0.0, *(chunk.at_s for chunk in answer.chunks)]
    if not all(map(math.isfinite, times)) or times[0] < 0 or any(later < earlier for earlier, later in pairwise(times)):
        raise Contradiction(f"{where}: start and arrivals do not follow one another: {times} s")


def _refuse_times(where: str, run: Run, concurrency: int) -> None:
    """By Little's law, the requests' seconds over the run's are those under way at once."""
    last = _last_arrival_s(run)
    if last is None:
        return
    if last > _at_most(run.engine_seconds):
        raise Contradiction(f"{where}: a token arrived after {last:.6g} s of a run of {run.engine_seconds:.6g} s")
    spent = sum(seconds for answer in completed_answers(run) if (seconds := e2e_s(answer)) is not None)
    if spent > _at_most(run.engine_seconds * concurrency):
        under_way = spent / run.engine_seconds
        raise Contradiction(
            f"{where}: latencies need a concurrency of {under_way:.3g} for this throughput, "
            f"but at most {concurrency} were under way"
        )


def _refuse_tails(runs: Sequence[Run]) -> None:
    """A stall may hold up the end of a run when all tokens are there, but not for most of it, and in every round.

    A request that failed, or was not answered in chunks, may have kept the run waiting for nothing.
    """
    for run in runs:
        last = _last_arrival_s(run)
        if last is None or not all(answer.chunks and answer.error is None for answer in run.generations):
            return
        if run.engine_seconds - last <= LONGEST_TAIL_SHARE * run.engine_seconds + LONGEST_STALL_S:
            return
    if runs:
        took = f"{_last_arrival_s(runs[0]):.6g} s, by throughput {runs[0].engine_seconds:.6g} s"
        raise Contradiction(f"round 1: by arrivals all {runs[0].tokens} tokens took {took}, and so in every round")


def _last_arrival_s(run: Run) -> float | None:
    return max((answer.chunks[-1].at_s for answer in completed_answers(run) if answer.chunks), default=None)


def _at_most(seconds: float) -> float:
    return seconds * (1 + CLOCK_SLACK_SHARE) + CLOCK_SLACK_S


LATENCY_OF: dict[str, Callable[[Generation], float | None]] = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}
MICROSECOND = 1e-6
FEW_ROUNDS = "fewer than two timed rounds"
NO_HITS_TOLD = "the engine does not tell what its prefix cache held"
OPEN = "an open load has no number of places"
NO_WINDOW = "in no part of some round was every place known to be taken"


def throughput_part(rounds: Rounds, places: int | None = None) -> ThroughputPart:
    """The record's throughput. `places`: how many requests may be under way at once; None for an open load."""
    known, windows = rounds.interval, steady_windows(rounds, places) if places else []
    few, no_window = FEW_ROUNDS if rounds.measured else NOT_TIMED, NO_WINDOW if places else OPEN
    steady_s = sum(each.seconds for each in windows)
    return ThroughputPart(
        rounds=len(rounds.runs),
        rounds_ended_by=rounds.ended_by,
        warmup_rounds=rounds.warmup.rounds,
        warmup_steady=rounds.warmup.steady,
        tokens=rounds.tokens,
        seconds=Figure(sum(rounds.seconds) if rounds.measured else None, NOT_TIMED),
        tokens_per_second=Figure(rounds.tokens_per_second, NOT_TIMED),
        tokens_per_second_interval=bounds_of(known, few),
        tokens_per_second_interval_share=Figure(known.share if known else None, few),
        steady_tokens_per_second=Figure(_rate(windows) or None, no_window),
        steady_share=Figure(steady_s / sum(rounds.seconds) if windows else None, no_window),
        prefix_cache_hits=Figure(rounds.prefix_cache_hits, NO_HITS_TOLD),
        per_round=per_round_part(rounds),
    )


def per_round_part(rounds: Rounds) -> PerRoundPart:
    """The record's rounds one by one; latencies of each request that has one, in the workload's order."""
    counted = [run.speculation for run in rounds.runs if run.speculation is not None]
    names = ("drafts", "draft_tokens", "accepted_tokens") if len(counted) == len(rounds.runs) else ()
    told: dict[str, Any] = {name: tuple(getattr(each, name) for each in counted) for name in names}
    told |= {f"{name}_us": _lines(rounds.runs, figure) for name, figure in LATENCY_OF.items()}
    return PerRoundPart(
        tokens=tuple(run.tokens for run in rounds.runs),
        seconds=tuple(rounds.seconds) if rounds.measured else None,
        **told,
    )


def _lines(runs: Sequence[Run], figure: Callable[[Generation], float | None]) -> tuple[str, ...] | None:
    lines = tuple(
        " ".join(str(round(value / MICROSECOND)) for answer in run.generations if (value := figure(answer)) is not None)
        for run in runs
    )
    return lines if all(lines) else None


def seconds_of_line(line: str) -> list[float]:
    """The latencies of one round, in seconds."""
    return [int(value) * MICROSECOND for value in line.split()]


@dataclass(frozen=True)
class Window:
    """Tokens that came while every place was taken, and how many seconds that was."""

    tokens: int
    seconds: float

    @classmethod
    def of(cls, run: Run, places: int) -> Window | None:
        """None where it is empty, or the engine tells no times."""
        answers, places = run.generations, min(places, len(run.generations))
        starts = sorted(each.started_s for each in answers if each.started_s is not None)
        ends = sorted(each.chunks[-1].at_s for each in answers if each.chunks)
        if not places or len(starts) < len(answers) or len(ends) < len(answers):
            return None
        full, free = starts[places - 1], ends[len(answers) - places]
        tokens = sum(chunk.tokens for each in answers for chunk in each.chunks if full < chunk.at_s <= free)
        return cls(tokens, free - full) if free > full and tokens else None


def steady_windows(rounds: Rounds, places: int) -> list[Window]:
    """One of each round; none at all where a round has none."""
    windows = [window for run in rounds.runs if (window := Window.of(run, places)) is not None]
    return windows if rounds.measured and len(windows) == len(rounds.runs) else []


def with_steady_ratio(part: SpeedupPart, ours: Rounds, base: Rounds, places: int | None) -> SpeedupPart:
    """The speed-up with its ratio while every place was taken; none where there is none of the whole."""
    if part.ratio.value is None or not places:
        why = part.ratio.reason or OPEN
        return replace(part, steady_ratio=Figure(None, why), steady_interval=Figure(None, why))
    windows = [steady_windows(rounds, places) for rounds in (ours, base)]
    mine, its = ([each.tokens / each.seconds for each in arm] for arm in windows)
    known, rates = ratio_interval(mine, its), [_rate(arm) for arm in windows]
    return replace(
        part,
        steady_ratio=Figure(rates[0] / rates[1] if rates[0] and rates[1] else None, NO_WINDOW),
        steady_interval=bounds_of(known, FEW_BESIDE if mine and its else NO_WINDOW),
    )


def _rate(windows: list[Window]) -> float:
    return sum(each.tokens for each in windows) / sum(each.seconds for each in windows) if windows else 0.0
