"""One engine put to the gate, without pytest around it: the gate, the session and the pool are the real ones.

pytest-benchmark alone is stood in for, by a stopwatch that makes the rounds and times them. So a trial is the same with
`--benchmark-disable` and under pytest-xdist, where pytest-benchmark would run one round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.record import PASSING, Record
from pytest_specdec.run.gate import Gate, GateFailed
from pytest_specdec.run.session import Session
from pytest_specdec.workloads.scenario import Scenario

SURVIVED = "survived"
RED = "red gate"


@dataclass(frozen=True)
class Trial:
    """What the gate said. `outcome`: the verdict's where it does not pass; else RED or SURVIVED. `message`: why."""

    outcome: str
    message: str
    record: Record


class Stopwatch:
    """As much of pytest-benchmark's fixture as a gate uses."""

    disabled = False
    fullname = "a trial"

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.data: list[float] = []
        self.stats = SimpleNamespace(stats=SimpleNamespace(data=self.data), update=self.data.append)

    def pedantic(
        self,
        run: Callable[[], Any],
        setup: Callable[[], Any],
        teardown: Callable[[], Any],
        rounds: int,
        iterations: int,
    ) -> None:
        """Time `run` alone."""
        assert iterations == 1, "a round is one pass"
        for _ in range(rounds):
            setup()
            began = self._clock()
            run()
            self.data.append(self._clock() - began)
            teardown()


def run_trial(
    session: Session, spec: EngineSpec, scenario: Scenario, clock: Callable[[], float] = time.perf_counter
) -> Trial:
    """Gate the engine; a gate that is not green is a result, and not an error."""
    kept: list[Record] = []
    message = ""
    try:
        Gate(session, Stopwatch(clock), kept.append)(spec, scenario)
    except (GateFailed, EngineError) as error:
        message = str(error)
    outcome = kept[-1].verdict.outcome
    if outcome in PASSING:
        outcome = RED if message else SURVIVED
    return Trial(outcome, message, kept[-1])
