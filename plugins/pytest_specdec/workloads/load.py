"""How requests arrive: all at once, one as another is done, or each at its own moment whatever became of the others.

Each kind is a model here, chosen by `load.kind`. Moments are in seconds after the run began: one schedule, drawn before
anything is sent. The gaps have a mean of exactly 1/rate, as vLLM's serving benchmark scales them too
(vllm/benchmarks/serve.py), and come from NumPy's legacy generator, whose streams are frozen (NEP 19); moments are
rounded to microseconds, so that the last digit of a logarithm does not tell two machines apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, ValidationInfo

from pytest_specdec.workloads.mistakes import Table, key, refuse_by

Above0 = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Objectives(Table):
    """Longest times that a request may take; those that are None are not asked. See docs/measurements.md for each."""

    ttft_ms: Above0 | None = key("a number of milliseconds above 0", "ttft_ms = 200", None)
    tpot_ms: Above0 | None = key("a number of milliseconds above 0", "tpot_ms = 30", None)
    e2e_ms: Above0 | None = key("a number of milliseconds above 0", "e2e_ms = 2000", None)

    @property
    def asked(self) -> dict[str, float]:
        """Those that are asked, by key."""
        return self.model_dump(exclude_none=True)


Times = Sequence[float] | None


class _Load(Table):
    @property
    def sweep(self) -> tuple[float, ...]:
        """The rates to measure from low to high; none where there is nothing to sweep."""
        return ()

    @property
    def needs_times(self) -> bool:
        """Whether the source must say when its prompts are due."""
        return False

    def due_s(self, count: int, seed: int, times: Times) -> tuple[float, ...]:
        """When the first requests are due, at most `count`; none where each is due as soon as a place is free."""
        return ()


class OfflineLoad(_Load):
    """Everything at once: all requests are there from the beginning, and the engine is left to batch them."""

    kind: Literal["offline"] = key('"offline"', 'load = { kind = "offline" }')


class ClosedLoad(_Load):
    """A closed loop: the next request is sent when one is done, so that `concurrency` of them are always under way."""

    kind: Literal["closed"] = key('"closed"', 'load = { kind = "closed" }')


def _rising(rates: tuple[float, ...] | None, info: ValidationInfo) -> Iterator[str]:
    if rates is not None and info.data.get("arrivals") == "trace":
        yield 'a trace has times of its own: remove `rates`, or write arrivals = "poisson"'
    if rates is not None and (len(rates) < 2 or any(higher <= lower for lower, higher in pairwise(rates))):
        yield "a sweep goes up: write two rates or more, each higher than the one before"


def _one_way_to_say_it(rate: float | None, info: ValidationInfo) -> Iterator[str]:
    if {"rates", "arrivals"} <= info.data.keys():
        is_trace, rates = info.data["arrivals"] == "trace", info.data["rates"]
        if rate is not None and is_trace:
            yield "a trace has times of its own: remove `rate`, and use time_scale to play it faster"
        if rate is not None and rates is not None:
            yield "one rate beside a sweep of `rates`: remove one of them"
        if rate is None and rates is None and not is_trace:
            yield "missing: an open load needs requests a second, for example rate = 8.0"


def _of_gamma(burstiness: float, info: ValidationInfo) -> Iterator[str]:
    arrivals = info.data.get("arrivals", "gamma")
    if burstiness != 1 and arrivals != "gamma":
        yield f'shapes gamma arrivals only: remove it, or write arrivals = "gamma", not "{arrivals}"'


def _of_a_trace(time_scale: float, info: ValidationInfo) -> Iterator[str]:
    arrivals = info.data.get("arrivals", "trace")
    if time_scale != 1 and arrivals != "trace":
        yield f'stretches a trace only: remove it and change `rate`; arrivals are "{arrivals}" here'


class OpenLoad(_Load):
    """An open loop: each request is sent at its own moment. `rate`, `rates` are in requests a second."""

    kind: Literal["open"] = key('"open"', 'load = { kind = "open", rate = 8.0 }')
    arrivals: Literal["constant", "poisson", "gamma", "trace"] = key(
        '"constant", "poisson", "gamma" or "trace"', 'arrivals = "poisson"', "poisson"
    )
    rates: tuple[Above0, ...] | None = key(
        "a list of requests a second, each above 0", "rates = [2.0, 4.0, 8.0, 16.0]", None
    )
    rate: Above0 | None = key("a number of requests a second, above 0 (several are `rates`)", "rate = 8.0", None)
    burstiness: Annotated[float, Field(strict=True, ge=0.05, allow_inf_nan=False)] = key(
        "the gamma distribution's shape, 0.05 or more (below, all requests would come at once)", "burstiness = 0.5", 1.0
    )
    time_scale: Above0 = key("a factor above 0 on the times of a trace", "time_scale = 0.5", 1.0)
    max_seconds: Above0 | None = key("a number of seconds above 0", "max_seconds = 60.0", None)

    _checks = refuse_by(rates=_rising, rate=_one_way_to_say_it, burstiness=_of_gamma, time_scale=_of_a_trace)

    @property
    def sweep(self) -> tuple[float, ...]:
        return self.rates or ()

    @property
    def needs_times(self) -> bool:
        return self.arrivals == "trace"

    def due_s(self, count: int, seed: int, times: Times) -> tuple[float, ...]:
        """Moments up to `max_seconds`; of a sweep, those at its lowest rate. `times`: the source's own, in seconds."""
        if self.needs_times:
            due = replay(times or (), self.time_scale)
        elif self.arrivals == "constant":
            due = evenly(count, self.rate or self.sweep[0])
        else:
            due = at_random(count, self.rate or self.sweep[0], self.burstiness, seed)
        return due if self.max_seconds is None else tuple(moment for moment in due if moment <= self.max_seconds)


Load: TypeAlias = OfflineLoad | ClosedLoad | OpenLoad

DIGITS = 6


def evenly(count: int, rate: float) -> tuple[float, ...]:
    """`count` moments, each 1/rate seconds after the one before; `rate` in requests a second."""
    return _round(index / rate for index in range(count))


def at_random(count: int, rate: float, burstiness: float, seed: int) -> tuple[float, ...]:
    """`count` moments with gamma distributed gaps of mean 1/rate and shape `burstiness`.

    1 is a Poisson process, with exponential gaps; below 1 requests come in bursts, above 1 more evenly.
    """
    from numpy.random import MT19937, RandomState, SeedSequence

    dice = RandomState(MT19937(SeedSequence(seed)))
    gaps = [float(gap) for gap in dice.standard_gamma(burstiness, count - 1)]
    second = len(gaps) / rate / sum(gaps) if gaps else 0.0
    return _round(accumulate((gap * second for gap in gaps), initial=0.0))


def replay(times: Sequence[float], time_scale: float) -> tuple[float, ...]:
    """A trace's own times in seconds, from its first one on, each `time_scale` times as late."""
    return _round((time - times[0]) * time_scale for time in times)


def _round(moments: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(moment, DIGITS) for moment in moments)
