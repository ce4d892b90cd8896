"""Energy of prefill and of decode apart, where the requests of a round are prefilled together.

A round falls into waves: requests that are under way at once, all ended before the next is sent. A wave is prefilled
from the first request's submission to the last one's first token, and decodes from there to its last token. Tokens that
others decode meanwhile are mixed in; where decoding them takes more than a little of that time, both figures are null.

The step of a source in which prefill ends is shared by time. That errs, the same way in each round, by no more than a
quarter of a step at the difference of the two powers: a phase of LEAST_STEPS is known to a twentieth of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import TypeAlias

from pytest_specdec.generation import Generation, Run
from pytest_specdec.metrics.speed import NO_START, NO_TIMES
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import EnergyPart

Trace: TypeAlias = Sequence[Sequence[tuple[float, float]]]  # for each device: seconds and joules since a round began
LEAST_STEPS = 5
MOST_MIXED = 0.05
OVERLAP = "prefill and decode of different requests overlap: ask all at once, or one after another"
NO_TRACE = "the meter does not tell how energy grew within each round"
NO_LATER_TOKEN = "no token came after a first one"
ALL_CACHED = "the prefix cache held all prompts"


@dataclass(frozen=True)
class Wave:
    """When it was sent, had all first tokens, and the last one, in seconds after the round began.

    `meanwhile`, `later`: further tokens, until all had their first one and after that.
    """

    sent: float
    prefilled: float
    ended: float
    prompt_tokens: int
    meanwhile: int
    later: int

    @classmethod
    def of(cls, answers: Sequence[Generation]) -> Wave:
        """Of requests under way at once, of which each has a first token."""
        prefilled = max(answer.chunks[0].at_s for answer in answers)
        chunks = [chunk for answer in answers for chunk in answer.chunks[1:]]
        return cls(
            sent=min(answer.started_s or 0.0 for answer in answers),
            prefilled=prefilled,
            ended=max(answer.chunks[-1].at_s for answer in answers),
            prompt_tokens=sum(len(answer.prompt_ids) - (answer.cached_tokens or 0) for answer in answers),
            meanwhile=sum(chunk.tokens for chunk in chunks if chunk.at_s <= prefilled),
            later=sum(chunk.tokens for chunk in chunks if chunk.at_s > prefilled),
        )


def waves(run: Run) -> list[Wave]:
    """Of one round, whose requests all have a first token."""
    groups: list[list[Generation]] = []
    ended = 0.0
    for answer in sorted(run.generations, key=lambda answer: answer.started_s or 0.0):
        if not groups or (answer.started_s or 0.0) >= ended:
            groups.append([])
        groups[-1].append(answer)
        ended = max(ended, answer.chunks[-1].at_s)
    return list(map(Wave.of, groups))


def with_phases(energy: EnergyPart, runs: Sequence[Run], traces: Sequence[Trace]) -> EnergyPart:
    """The energy of these rounds with that of either phase, or why it is not known. `traces`: one for each round."""
    if energy.joules.value is None:
        return energy
    why = _untold(runs, traces)
    each = [] if why else [(wave, trace) for run, trace in zip(runs, traces, strict=True) for wave in waves(run)]
    told = [wave for wave, _ in each]
    why = why or (OVERLAP if _mixed(told) else None)
    step_s = max([energy.step_seconds.value or 0.0, *(_longest_step(trace) for _, trace in each)])
    prefill = [(trace, wave.sent, wave.prefilled) for wave, trace in each]
    decode = [(trace, wave.prefilled, wave.ended) for wave, trace in each]
    prompt_tokens, later = sum(wave.prompt_tokens for wave in told), sum(wave.later for wave in told)
    return replace(
        energy,
        prefill_joules_per_prompt_token=_per_token(prefill, prompt_tokens, why, step_s, ALL_CACHED),
        decode_joules_per_output_token=_per_token(decode, later, why, step_s, NO_LATER_TOKEN),
    )


def _untold(runs: Sequence[Run], traces: Sequence[Trace]) -> str | None:
    answers = [answer for run in runs for answer in run.generations]
    if len(traces) != len(runs) or not all(traces):
        return NO_TRACE
    if not all(answer.chunks for answer in answers):
        return NO_TIMES
    return None if all(answer.started_s is not None for answer in answers) else NO_START


def _mixed(told: Sequence[Wave]) -> bool:
    """Whether decoding took more than MOST_MIXED of the time of prefill, at the pace that it has afterwards."""
    meanwhile, later = sum(wave.meanwhile for wave in told), sum(wave.later for wave in told)
    prefill_s, decode_s = (sum(w.prefilled - w.sent for w in told), sum(w.ended - w.prefilled for w in told))
    return meanwhile > 0 and (not later or meanwhile * decode_s / later > MOST_MIXED * prefill_s)


def _longest_step(trace: Trace) -> float:
    """Seconds between two points, as a mean over the round, of the device that tells the fewest."""
    return max(points[-1][0] / (len(points) - 1) for points in trace)


def _per_token(
    windows: Sequence[tuple[Trace, float, float]], tokens: int, why: str | None, step_s: float, none: str
) -> Figure[float]:
    """`none`: what it means if there are no tokens."""
    if why or not tokens:
        return Figure(None, why or none)
    mean_s = sum(end - start for _, start, end in windows) / len(windows)
    if mean_s < LEAST_STEPS * step_s:
        short = f"too short to measure: this phase takes {mean_s:.3g} s at a time, less than {LEAST_STEPS} steps"
        return Figure(None, f"{short} of {step_s:.3g} s; give longer prompts or answers, or more at once")
    return Figure(sum(starmap(_joules, windows)) / tokens)


def _joules(trace: Trace, start: float, end: float) -> float:
    """Between two moments, by straight lines between points; none before the first and behind the last one."""
    import numpy

    return float(sum(numpy.diff(numpy.interp((start, end), *numpy.transpose(points)))[0] for points in trace))
