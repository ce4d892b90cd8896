"""What a session is about to do, and what is being done, in plain lines, so that slow machines are not silent.

Before the first engine is loaded: gates, engines, and how long they took in the latest saved runs on this machine.
What is being done is said when it begins, and again while it lasts: a thread looks twice a second whether the last line
has grown old. Nothing else is printed while the clock runs, and the words are made outside of it.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pytest_specdec.engines.spec import EngineSpec, distinct_labels
from pytest_specdec.history.saved import UnreadableRun, content_of, read_text, saved_paths
from pytest_specdec.telemetry.meter import MakeTicker, Ticker

SECONDS = "specdec_seconds"
LATEST = 10
Doing = Callable[[str], AbstractContextManager[object]]
LOOKS_S = 0.5
SILENCE_S = 4.0  # 5 s are promised, and a busy machine wakes a thread late


@dataclass(frozen=True)
class PlannedGate:
    """One gate: its test, the engine that it judges, its scenario by name, and how long it took when it last ran."""

    test: str
    engine: EngineSpec
    scenario: str
    seconds: float | None


def earlier_seconds(storage: Path) -> dict[str, float]:
    """How long each test's gate took when it was last saved on this machine; a file that is not whole says nothing."""
    found: dict[str, float] = {}
    for path in saved_paths(storage)[-LATEST:]:
        try:
            content = content_of(path, read_text(path))
        except UnreadableRun:
            continue
        if (content.get("machine_info") or {}).get("node") == platform.node():
            told = {
                bench.get("fullname"): (bench.get("extra_info") or {}).get(SECONDS) for bench in content["benchmarks"]
            }
            found |= {test: seconds for test, seconds in told.items() if seconds is not None}
    return found


def describe_plan(gates: Sequence[PlannedGate]) -> list[str]:
    """A line for all gates, and one for each engine in the order in which they are loaded."""
    engines: dict[EngineSpec, dict[str, None]] = {}
    for gate in gates:
        engines.setdefault(gate.engine, {})[gate.scenario] = None
    known = [gate.seconds for gate in gates if gate.seconds is not None]
    whole = "" if len(known) == len(gates) else f" for the {len(known)} that ran here before"
    how_long = f"about {sum(known):.0f} s{whole}" if known else "no saved run on this machine tells how long they take"
    head = f"plan: {count(len(gates), 'gate')} of {count(len(engines), 'engine')}, {how_long}"
    labels = distinct_labels([*engines])
    told = zip(labels, engines.items(), strict=True)
    return [head, *(f"  {_with_place(label, spec)}: {', '.join(names)}" for label, (spec, names) in told)]


def _with_place(label: str, spec: EngineSpec) -> str:
    """The engine, where a server of others runs, and what it is compared with where that is named."""
    at = urlsplit(str(spec.server.get("url") or ""))
    where = (
        f" at {at._replace(netloc=at.netloc.rpartition('@')[2]).geturl()}" if at.netloc else ""
    )  # without a password
    against = f", against {_with_place(spec.reference.label, spec.reference)}" if spec.reference is not None else ""
    return f"{label} ({spec.backend}{where}, {spec.dtype}){against}"


def count(number: int, what: str) -> str:
    """E.g. "1 gate", "2 gates"."""
    return f"{number} {what}" + "s" * (number != 1)


class Progress:
    """Says what is being done, at least every five seconds."""

    def __init__(
        self,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        ticker: MakeTicker = Ticker,
        draw: Callable[[str], None] | None = None,
    ) -> None:
        """`say` prints one line, on any thread; without it nothing is said, and no thread runs.

        `draw` writes over the line that it wrote before, on a terminal; there what lasts has one line that lives.
        """
        self._say, self._clock, self._draw = say, clock, draw
        self.gates: Mapping[str, float | None] = {}
        self._gate = ""
        self._due: float | None = None
        self._ticker = ticker(LOOKS_S, self._look)
        self._lock = threading.Lock()
        self._said = clock()
        self._now: Callable[[float], str] | None = None

    def begin_gate(self, test: str) -> None:
        """From now on this is the gate, of `gates`: for each test the seconds that it took before, None: not known."""
        names = list(self.gates)
        if test not in names:
            return
        at = names.index(test)
        ahead = [self.gates[name] for name in names[at:]]
        known = [seconds for seconds in ahead if seconds is not None]
        self._gate = f"gate {at + 1} of {len(names)}, "
        self._due = self._clock() + sum(known) if len(known) == len(ahead) else None

    def announce(self, text: str) -> None:
        """Say this now."""
        with self._lock:
            self._said = self._clock()
            if self._say is not None:
                self._say(text)

    @contextmanager
    def doing(self, what: str, so_far: Callable[[], str] = str) -> Iterator[None]:
        """Say now that this is being done, and again while the block lasts."""
        self.announce(what)
        with self.during(what, so_far):
            yield

    @contextmanager
    def during(self, what: str, so_far: Callable[[], str] = str) -> Iterator[None]:
        """Say that this is being done only if the block lasts; a block within it has the word while it lasts itself."""
        outer, began = self._now, self._clock()
        ticks = outer is None and self._say is not None  # else the thread runs already, or nobody would hear it

        def describe(now: float) -> str:
            return ", ".join(filter(None, (what, so_far(), f"{now - began:.0f} s")))

        self._now = describe
        try:
            if ticks:
                self._said = began  # silence counts from here
                self._ticker.start()
            yield
        finally:
            self._now = outer
            if ticks:
                self._ticker.stop()
                self._draw_line("")

    def _look(self) -> None:
        describe, now = self._now, self._clock()
        if describe is not None and self._draw is not None:
            left = "" if self._due is None else f", about {max(0.0, self._due - now):.0f} s left"
            self._draw_line(f"{self._gate}{describe(now)}{left}")
        elif describe is not None and now - self._said >= SILENCE_S:
            self.announce(describe(now))

    def _draw_line(self, text: str) -> None:
        with self._lock:
            if self._draw is not None:
                self._draw(text)
