"""Tell every few seconds how far the set-up of the engines is, in lines that a log of CI shows as they come.

uv prints a line when a larger download starts and when it has ended, and nothing meanwhile. So what it printed is kept
here, and a ticker tells it again and again, with the seconds gone by and the packages that are in place.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

TICK_SECONDS = 4.0
CHOOSES = re.compile(r"Using Python ")
CHOSE = re.compile(r"Resolved (\d+) package")
STARTED = re.compile(r"Downloading (\S+) \(([\d.]+)(\wiB)\)")
ENDED = re.compile(r" Downloaded (\S+)")
NO_NEWS = re.compile(r"Prepared |Installed |Uninstalled |Checked | [+~-] \S+==")
IN_MIB = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


def say(line: str) -> None:
    """Print `line` at once."""
    print(line, flush=True)


@dataclass
class Progress:
    """How far the set-up in `folder` is; `tools` are the packages there that do the work and do not count."""

    folder: Path
    tools: tuple[str, ...] = ()
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = say
    step: str = "waits until another tox has set up the same environment"
    state: str = ""
    packages: int = 0
    waiting: dict[str, float] = field(default_factory=dict)
    there: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._start = self.clock()

    def begin(self, step: str) -> None:
        """Tell that `step` begins."""
        self.step, self.state, self.packages = step, "", 0
        self.waiting, self.there = {}, {}
        self.tell()

    def tell(self) -> None:
        """Tell in one line how long the set-up has run and what it does."""
        self.say(f"set-up {self.clock() - self._start:4.0f} s  {self.step}{self._details()}")

    def hear(self, line: str) -> None:
        """Keep what a line of uv tells, and pass on every line that is not of its usual course."""
        if CHOOSES.match(line):
            self.state = "chooses versions"
        elif chose := CHOSE.match(line):
            self.state, self.packages = "", int(chose[1])
        elif started := STARTED.match(line):
            self.waiting[started[1]] = float(started[2]) * IN_MIB[started[3]]
        elif (ended := ENDED.match(line)) and ended[1] in self.waiting:
            self.there[ended[1]] = self.waiting.pop(ended[1])
        elif line.strip() and not NO_NEWS.match(line):
            self.say(line.rstrip())

    def _details(self) -> str:
        if self.state:
            return f": {self.state}"
        if self.waiting:
            return f": {self._downloads()}"
        return f": {self._in_place()} of {self.packages} packages in place" if self.packages else ""

    def _downloads(self) -> str:
        waiting, there = sorted(self.waiting.items(), key=lambda one: -one[1]), list(self.there.values())
        sizes = f"{sum(there):.0f} of {sum(there) + sum(size for _, size in waiting):.0f} MiB"
        largest = ", ".join(f"{name} {size:.0f} MiB" for name, size in waiting[:3])
        return f"{len(there)} of {len(there) + len(waiting)} larger downloads done, {sizes}; under way: {largest}"

    def _in_place(self) -> int:
        found = self.folder.glob("lib/python*/site-packages/*.dist-info")
        return sum(one.name.partition("-")[0] not in self.tools for one in found)


@contextmanager
def ticking(tell: Callable[[], None], seconds: float = TICK_SECONDS) -> Iterator[None]:
    """Call `tell` every `seconds` for as long as the block runs."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(seconds):
            tell()

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()
