"""What each round gave, as compactly as it can be kept: without it no later run can tell a change from noise.

pytest-benchmark's storage leaves the rounds out unless `--benchmark-save-data` is given, so the record has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_specdec.generation import Generation, Run
from pytest_specdec.measure.latency import e2e_s, tpot_s, ttft_s
from pytest_specdec.measure.rounds import Rounds

LATENCY_OF = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}
MICROSECOND = 1e-6


def per_round_part(rounds: Rounds, passes: bool) -> dict[str, Any]:
    """The record's `per_round`: one entry a round for each key, null where it was not counted.

    `tokens`, `drafts`, `draft_tokens`, `accepted_tokens`: counts. `seconds`: s. `ttft_us`, `tpot_us`, `e2e_us`: whole
    microseconds of each request that has the figure, in the workload's order, in one line of text a round; without a
    passing verdict null.
    """
    counted = [run.speculation for run in rounds.runs if run.speculation is not None]
    speculates = len(counted) == len(rounds.runs)
    return {
        "per_round": {
            "tokens": [run.tokens for run in rounds.runs],
            "seconds": list(rounds.seconds) if rounds.measured else None,
            "drafts": [each.drafts for each in counted] if speculates else None,
            "draft_tokens": [each.draft_tokens for each in counted] if speculates else None,
            "accepted_tokens": [each.accepted_tokens for each in counted] if speculates else None,
            **{f"{name}_us": _lines(rounds.runs, figure) if passes else None for name, figure in LATENCY_OF.items()},
        }
    }


def _lines(runs: Sequence[Run], figure: Callable[[Generation], float | None]) -> list[str] | None:
    lines = [
        " ".join(str(round(value / MICROSECOND)) for answer in run.generations if (value := figure(answer)) is not None)
        for run in runs
    ]
    return lines if all(lines) else None


def seconds_of_line(line: str) -> list[float]:
    """The latencies of one round, in seconds."""
    return [int(value) * MICROSECOND for value in line.split()]
