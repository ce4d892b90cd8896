"""Goodput on hand-made requests: who met every objective, who did not, and that a failure never counts as a success."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.generation import Chunk, Generation, Run
from pytest_specdec.metrics.load import (
    NO_OBJECTIVES,
    failed_part,
    goodput_part,
    hold_goodput,
    missed_objectives,
)
from pytest_specdec.metrics.rounds import NOT_TIMED, Rounds
from pytest_specdec.metrics.speed import NO_START, NO_TIMES, WITHHELD
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import FailedPart, GoodputPart

ALL = {"ttft_ms": 200.0, "tpot_ms": 30.0, "e2e_ms": 500.0}
FILE = Path("x.toml")


def answer(
    *chunks: tuple[float, int], due: float = 0.0, error: str | None = None, started: float | None = 0.0
) -> Generation:
    tokens = tuple(range(sum(tokens for _, tokens in chunks)))
    told = tuple(Chunk(*each) for each in chunks)
    return Generation((7,), tokens, "length", told, None, started, due or None, error)


def rounds(*answers: Generation, seconds: float = 2.0) -> Rounds:
    return Rounds((Run(answers, None, seconds),), (seconds,))


GOOD = answer((0.2, 1), (0.23, 1))
SLOW_START = answer((0.21, 1), (0.23, 1))
SLOW_TOKENS = answer((0.1, 1), (0.2, 1))
SLOW_END = answer((0.1, 1), (0.501, 30))
FAILED = answer((0.1, 1), error="503 Service Unavailable\nretry later")


@pytest.mark.parametrize(
    ("seen", "misses"),
    [
        (GOOD, []),
        (SLOW_START, ["ttft_ms"]),
        (SLOW_TOKENS, ["tpot_ms"]),
        (SLOW_END, ["e2e_ms"]),
        (answer((0.3, 1), (0.9, 1)), ["ttft_ms", "tpot_ms", "e2e_ms"]),
        (answer((0.2, 4)), []),
        (FAILED, ["failed"]),
        (answer(), ["failed"]),
    ],
    ids=["good", "late", "slow", "long", "all", "all tokens at once", "failed", "empty"],
)
def test_a_request_meets_all_objectives_or_none_counts(seen: Generation, misses: list[str]) -> None:
    """An objective that is just reached is met."""
    assert missed_objectives(seen, ALL) == misses


def test_time_counts_from_the_moment_a_request_was_due() -> None:
    """Sent late, it may miss what it would have met."""
    assert missed_objectives(answer((0.4, 1), due=0.1, started=0.3), {"ttft_ms": 200}) == ["ttft_ms"]


def test_the_share_and_the_requests_a_second() -> None:
    """Two of five in 2 s; each miss is counted under its objective."""
    part = goodput_part(ALL, rounds(GOOD, GOOD, SLOW_START, answer((0.3, 1), (0.9, 1)), FAILED))
    assert (part.share, part.requests_per_second) == (Figure(0.4), Figure(1.0))
    assert part.missed.value == {"ttft_ms": 2, "tpot_ms": 1, "e2e_ms": 1, "failed": 1}
    assert part.slo == ALL


@pytest.mark.parametrize(
    ("objectives", "seen", "reason"),
    [
        ({}, rounds(GOOD), NO_OBJECTIVES),
        (ALL, Rounds((Run((GOOD,), None, 1.0),), ()), NOT_TIMED),
        (ALL, rounds(Generation((7,), (1, 2), "length")), NO_TIMES),
        (ALL, rounds(answer((0.1, 1), started=None)), NO_START),
    ],
)
def test_what_is_not_known_is_null_with_a_reason(objectives: dict[str, float], seen: Rounds, reason: str) -> None:
    part = goodput_part(objectives, seen)
    assert part.share == part.requests_per_second == Figure(None, reason)


def test_time_per_token_needs_no_start() -> None:
    seen = rounds(answer((0.1, 1), (0.12, 1), started=None))
    assert goodput_part({"tpot_ms": 30.0}, seen).share.value == 1.0


def failure(asked: float | None, *answers: Generation) -> list[str]:
    return hold_goodput(goodput_part(ALL, rounds(*answers)), asked, FILE)[0]


def test_too_little_is_told_with_what_was_missed() -> None:
    assert failure(0.9, GOOD, SLOW_START, SLOW_END, FAILED) == [
        "goodput 0.25 is below min_goodput = 0.9 of x.toml;"
        " requests that missed each objective: ttft_ms = 200: 1, e2e_ms = 500: 1, failed: 1"
    ]


def test_enough_is_enough() -> None:
    """The limit itself is; and without one nothing is asked."""
    assert failure(0.5, GOOD, SLOW_END) == failure(None, SLOW_END) == []


def send_late(apart: bool) -> Rounds:
    """The first is under way until 0.3 s, so that the second, due at 0.1 s, is sent then and answered at once."""
    first, second = answer((0.1, 1), (0.3, 8)), answer((0.35, 1), due=0.1, started=0.3)
    first = replace(first, scheduled_s=0.0)
    return Rounds((Run((first, second), None, 2.0, sent_apart=apart),), (2.0,))


def test_what_the_machine_sent_late_makes_no_gate_red() -> None:
    """A client that sends 200 ms late is told as inconclusive; an engine that sends from its own loop is slow."""
    objectives = {"ttft_ms": 200.0}
    late, slow = (goodput_part(objectives, send_late(apart)) for apart in (True, False))
    assert [(part.share.value, part.at_best.value) for part in (late, slow)] == [(0.5, 1.0), (0.5, 0.5)]
    doubt = (
        "inconclusive: goodput 0.5 is below min_goodput = 0.9 of x.toml, "
        "and up to 1 had this machine sent requests when they were due"
    )
    assert hold_goodput(late, 0.9, FILE) == ([], [doubt])
    assert list(map(len, hold_goodput(slow, 0.9, FILE))) == [1, 0]


def test_a_limit_on_what_cannot_be_known_is_no_green_gate() -> None:
    """Or it could never fail; a red verdict has words of its own."""
    silent = Generation((7,), (1, 2), "length")
    assert failure(0.9, silent) == [f"goodput is not known, so min_goodput = 0.9 of x.toml cannot be asked: {NO_TIMES}"]
    assert hold_goodput(missing(GoodputPart, WITHHELD), 0.9, FILE) == ([], [])


def test_failures_are_counted_by_what_was_said() -> None:
    """By the first line, the most frequent first."""
    others = [answer(error=error) for error in ("timeout", "503 Service Unavailable", "  ")]
    assert failed_part(rounds(GOOD, FAILED, *others)) == FailedPart(
        count=4, of=5, by_error={"503 Service Unavailable": 2, "timeout": 1, "no words": 1}
    )
    assert failed_part(rounds(GOOD)) == FailedPart(of=1)
