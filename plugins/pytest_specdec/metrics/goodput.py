"""Goodput: the share of requests, and how many a second, that met every objective that the scenario gives them.

A request that failed or gave no token met none. One whose tokens all came at once has no time per token, so it kept
nobody waiting for one. Failed requests are counted by what was said of them, and are part of no latency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pytest_specdec.generation import Generation, Run
from pytest_specdec.metrics.latency import NO_START, NO_TIMES, WITHHELD, e2e_s, held_up_s, tpot_s, ttft_s
from pytest_specdec.metrics.rounds import NOT_TIMED, Rounds
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import FailedPart, GoodputPart

FIGURES: dict[str, Callable[[Generation], float | None]] = {"ttft_ms": ttft_s, "tpot_ms": tpot_s, "e2e_ms": e2e_s}
NO_OBJECTIVES = "the scenario gives no objectives (slo)"
FAILED = "failed"
LONGEST_ERROR = 200


def missed_objectives(answer: Generation, objectives: Mapping[str, float]) -> list[str]:
    """Which objectives (longest times in ms) the request misses; FAILED alone where there is no whole answer."""
    if answer.error is not None or not answer.token_ids:
        return [FAILED]
    times = {key: FIGURES[key](answer) for key in objectives}
    return [key for key, time in times.items() if time is not None and 1000 * time > objectives[key]]


def goodput_part(objectives: Mapping[str, float], rounds: Rounds) -> GoodputPart:
    """The record's goodput over all requests of all rounds: a share, requests a second, and what was missed how often.

    `at_best` is the share if each had come sooner by as much as the machine was late in sending. Null with a reason
    where nothing was asked or timed, or the engine tells no times.
    """
    answers = [answer for run in rounds.runs for answer in run.generations]
    reason = _why_none(objectives, rounds, answers)
    if reason is not None:
        return replace(missing(GoodputPart, reason), slo=dict(objectives))
    outcomes = [missed_objectives(answer, objectives) for answer in answers]
    at_best = [missed_objectives(answer, _later(objectives, run)) for run in rounds.runs for answer in run.generations]
    counts = Counter(key for each in outcomes for key in each)
    return GoodputPart(
        share=Figure(outcomes.count([]) / len(outcomes)),
        requests_per_second=Figure(outcomes.count([]) / sum(rounds.seconds)),
        at_best=Figure(at_best.count([]) / len(at_best)),
        missed=Figure({key: counts[key] for key in (*objectives, FAILED)}),
        slo=dict(objectives),
    )


def _later(objectives: Mapping[str, float], run: Run) -> dict[str, float]:
    """Objectives from the moment that counts where the machine put the run behind; the time of a token is its own."""
    late_ms = 1000 * held_up_s(run)
    return {key: ms + (0.0 if key == "tpot_ms" else late_ms) for key, ms in objectives.items()}


def _why_none(objectives: Mapping[str, float], rounds: Rounds, answers: list[Generation]) -> str | None:
    if not objectives:
        return NO_OBJECTIVES
    if not rounds.measured or sum(rounds.seconds) <= 0:
        return NOT_TIMED
    whole = [answer for answer in answers if answer.error is None and answer.token_ids]
    if not all(answer.chunks for answer in whole):
        return NO_TIMES
    unknown = any(ttft_s(answer) is None for answer in whole)
    return NO_START if unknown and set(objectives) - {"tpot_ms"} else None


def too_little_goodput(goodput: GoodputPart, asked: float | None, path: Path) -> list[str]:
    """The failure that fewer requests than `asked`, a share, met the objectives, or that nobody can tell."""
    share, reason = goodput.share.value, goodput.share.reason
    at_best = goodput.at_best.value or 0.0
    if asked is None or reason in (WITHHELD, NOT_TIMED) or (share is not None and max(share, at_best) >= asked):
        return []
    limit = f"min_goodput = {asked:g} of {path}"
    if share is None:
        return [f"goodput is not known, so {limit} cannot be asked: {reason}"]
    limits = {**{key: f"{key} = {ms:g}" for key, ms in goodput.slo.items()}, FAILED: FAILED}
    told = ", ".join(f"{limits[key]}: {count}" for key, count in (goodput.missed.value or {}).items() if count)
    return [f"goodput {share:.3g} is below {limit}; requests that missed each objective: {told}"]


def doubtful_goodput(goodput: GoodputPart, asked: float | None, path: Path) -> list[str]:
    """The warning that too few met the objectives, and that the machine, which sent requests late, may be why."""
    share, at_best = goodput.share.value, goodput.at_best.value or 0.0
    if asked is None or share is None or not share < asked <= at_best:
        return []
    told = f"goodput {share:.3g} is below min_goodput = {asked:g} of {path}"
    return [f"inconclusive: {told}, and up to {at_best:.3g} had this machine sent requests when they were due"]


def failed_part(rounds: Rounds) -> FailedPart:
    """How many requests failed, of how many, and what was said of them."""
    answers = [answer for run in rounds.runs for answer in run.generations]
    told = Counter(_first_line(answer.error) for answer in answers if answer.error is not None)
    return FailedPart(count=told.total(), of=len(answers), by_error=dict(told.most_common()))


def _first_line(error: str) -> str:
    lines = error.strip().splitlines()
    return lines[0][:LONGEST_ERROR] if lines else "no words"
