"""Throughput: delivered tokens over measured seconds, and the rounds one by one, as compactly as they can be kept.

Without its rounds no later run can tell a change from noise; pytest-benchmark's storage leaves them out unless
`--benchmark-save-data` is given, so the record has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_specdec.generation import Generation, Run
from pytest_specdec.metrics.latency import e2e_s, tpot_s, ttft_s
from pytest_specdec.metrics.rounds import NOT_TIMED, Rounds
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import PerRoundPart, ThroughputPart

LATENCY_OF = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}
MICROSECOND = 1e-6
FEW_ROUNDS = "fewer than two timed rounds"
NO_HITS_TOLD = "the engine does not tell what its prefix cache held"


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
