"""Throughput: delivered tokens over measured seconds, and the rounds one by one, as compactly as they can be kept.

Without its rounds no later run can tell a change from noise; pytest-benchmark's storage leaves them out unless
`--benchmark-save-data` is given, so the record has its own.

A closed load's round of as many requests as places is not "128 at once" for long: each answer that ends leaves its
place empty, and with speculation they end at different times. So the rate while all places are taken, from the first
full batch to the first free place, stands beside that of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pytest_specdec.generation import Generation, Run
from pytest_specdec.metrics.interval import ratio_interval
from pytest_specdec.metrics.latency import e2e_s, tpot_s, ttft_s
from pytest_specdec.metrics.rounds import NOT_TIMED, Rounds
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import PerRoundPart, SpeedupPart, ThroughputPart

LATENCY_OF = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}
MICROSECOND = 1e-6
FEW_ROUNDS = "fewer than two timed rounds"
NO_HITS_TOLD = "the engine does not tell what its prefix cache held"
OPEN = "an open load has no number of places"
NO_WINDOW = "in no part of some round was every place known to be taken"
FEW_BESIDE = "fewer than two timed rounds beside the target's"


def throughput_part(rounds: Rounds) -> ThroughputPart:
    """The record's throughput."""
    known = rounds.interval
    few = NOT_TIMED if not rounds.measured else FEW_ROUNDS
    return ThroughputPart(
        rounds=len(rounds.runs),
        rounds_ended_by=rounds.ended_by,
        warmup_rounds=rounds.warmup.rounds,
        warmup_steady=rounds.warmup.steady,
        tokens=rounds.tokens,
        seconds=Figure(sum(rounds.seconds) if rounds.measured else None, NOT_TIMED),
        tokens_per_second=Figure(rounds.tokens_per_second, NOT_TIMED),
        tokens_per_second_interval=Figure((known.low, known.high) if known else None, few),
        tokens_per_second_interval_share=Figure(known.share if known else None, few),
        prefix_cache_hits=Figure(rounds.prefix_cache_hits, NO_HITS_TOLD),
        per_round=per_round_part(rounds),
    )


def per_round_part(rounds: Rounds) -> PerRoundPart:
    """The record's rounds one by one.

    `ttft_us`, `tpot_us`, `e2e_us`: whole microseconds of each request that has the figure, in the workload's order, in
    one line of text a round.
    """
    counted = [run.speculation for run in rounds.runs if run.speculation is not None]
    speculates = len(counted) == len(rounds.runs)
    lines = {f"{name}_us": _lines(rounds.runs, figure) for name, figure in LATENCY_OF.items()}
    return PerRoundPart(
        tokens=tuple(run.tokens for run in rounds.runs),
        seconds=tuple(rounds.seconds) if rounds.measured else None,
        drafts=tuple(each.drafts for each in counted) if speculates else None,
        draft_tokens=tuple(each.draft_tokens for each in counted) if speculates else None,
        accepted_tokens=tuple(each.accepted_tokens for each in counted) if speculates else None,
        **lines,
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


def with_steady_rate(part: ThroughputPart, rounds: Rounds, places: int | None) -> ThroughputPart:
    """The throughput with its rate while every place was taken. `places`: None for an open load."""
    windows = steady_windows(rounds, places) if places else []
    seconds = sum(each.seconds for each in windows)
    why = NO_WINDOW if places else OPEN
    return replace(
        part,
        steady_tokens_per_second=Figure(_rate(windows) or None, why),
        steady_share=Figure(seconds / sum(rounds.seconds) if windows else None, why),
    )


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
        steady_interval=Figure((known.low, known.high) if known else None, FEW_BESIDE if mine and its else NO_WINDOW),
    )


def _rate(windows: list[Window]) -> float:
    return sum(each.tokens for each in windows) / sum(each.seconds for each in windows) if windows else 0.0
