"""What is being done is said again while it lasts, and by nobody when it is over."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_specdec import progress as module
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.progress import PlannedGate, Progress, describe_plan, earlier_seconds


class Terminal:
    """Lines with the time at which each was said; the clock and the ticker are moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines: list[tuple[float, str]] = []
        self.ticking: list[bool] = []

    def say(self, text: str) -> None:
        self.lines.append((self.now, text))

    def draw(self, text: str) -> None:
        """The line that lives, as it is now."""
        self.drawn = text

    def ticker(self, interval: float, action: Callable[[], None]) -> Terminal:
        """This is the ticker too."""
        self.interval, self.action = interval, action
        return self

    def start(self) -> None:
        self.ticking.append(True)

    def stop(self) -> None:
        self.ticking.append(False)

    def wait(self, seconds: float) -> None:
        """Let time pass, tick by tick."""
        for _ in range(round(seconds / self.interval)):
            self.now += self.interval
            self.action()

    @property
    def said(self) -> list[str]:
        """The lines alone."""
        return [text for _, text in self.lines]


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@pytest.fixture
def progress(terminal: Terminal) -> Progress:
    return Progress(terminal.say, lambda: terminal.now, terminal.ticker)


def test_what_lasts_is_said_at_least_every_five_seconds(terminal: Terminal, progress: Progress) -> None:
    """With the time it has taken by now."""
    with progress.doing("loading t"):
        terminal.wait(60)
    assert terminal.said[:3] == ["loading t", "loading t, 4 s", "loading t, 8 s"]
    moments = [moment for moment, _ in terminal.lines] + [terminal.now]
    assert max(later - earlier for earlier, later in pairwise(moments)) < 5


def test_what_is_soon_over_is_said_once(terminal: Terminal, progress: Progress) -> None:
    """Or never, where it is told only if it lasts."""
    with progress.doing("loading t"):
        terminal.wait(3)
    with progress.during("t decodes short"):
        terminal.wait(0.5)
    assert terminal.said == ["loading t"]


def test_a_line_of_another_kind_is_no_silence(terminal: Terminal, progress: Progress) -> None:
    """Nothing is said just because four seconds have gone since the beginning."""
    with progress.during("t decodes short"):
        terminal.wait(3)
        progress.announce("short: one row was left out")
        terminal.wait(3)
    assert terminal.said == ["short: one row was left out"]


def test_how_far_it_has_come_is_asked_each_time(terminal: Terminal, progress: Progress) -> None:
    """The round and the rate by now."""
    rounds = iter(["round 1", "round 3, 97.4 tokens/s"])
    with progress.during("t decodes short", lambda: next(rounds)):
        terminal.wait(8)
    assert terminal.said == ["t decodes short, round 1, 4 s", "t decodes short, round 3, 97.4 tokens/s, 8 s"]


def test_the_innermost_has_the_word(terminal: Terminal, progress: Progress) -> None:
    """A model is made while an engine loads; each with its own time, on one ticker."""
    with progress.doing("loading t"):
        with progress.doing("making the model m"):
            terminal.wait(4)
        terminal.wait(4)
    assert terminal.said == ["loading t", "making the model m", "making the model m, 4 s", "loading t, 8 s"]
    assert terminal.ticking == [True, False]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_ticker_ends_with_what_is_done(terminal: Terminal, progress: Progress, error: type[BaseException]) -> None:
    """However that ends; a look that comes late finds nothing to say, and the next activity is told as ever."""
    with pytest.raises(error), progress.during("the gate"), progress.doing("loading t"):
        raise error
    assert terminal.ticking == [True, False]
    terminal.wait(60)
    assert terminal.said == ["loading t"]
    with progress.during("u decodes short"):
        terminal.wait(4)
    assert terminal.said[1:] == ["u decodes short, 4 s"]


def test_silence_has_no_ticker(terminal: Terminal) -> None:
    """Nobody would hear it."""
    progress = Progress(None, lambda: terminal.now, terminal.ticker)
    progress.announce("t is ready")
    with progress.doing("loading t"):
        terminal.wait(60)
    assert terminal.ticking == []


def test_a_thread_ticks_and_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines come from it while the main thread waits."""
    monkeypatch.setattr(module, "LOOKS_S", 0.001)
    monkeypatch.setattr(module, "SILENCE_S", 0.0)
    lines = threading.Semaphore(0)
    with Progress(lambda _: lines.release()).during("t decodes short"):
        assert [lines.acquire(timeout=60) for _ in range(2)] == [True, True]
    assert "specdec ticker" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("gates", "drawn"),
    [
        ({"first": 5.0, "second": 10.0, "third": 20.0}, "gate 2 of 3, decodes, round 2, 6 s, about 24 s left"),
        ({"first": 5.0, "second": 10.0, "third": None}, "gate 2 of 3, decodes, round 2, 6 s"),
        ({}, "decodes, round 2, 6 s"),
    ],
)
def test_on_a_terminal_one_line_lives(terminal: Terminal, gates: dict[str, float | None], drawn: str) -> None:
    """Which gate it is, what is being done, and what is left of all gates if each has run before; then it is blank."""
    progress = Progress(terminal.say, lambda: terminal.now, terminal.ticker, terminal.draw)
    progress.gates = gates
    progress.begin_gate("second")
    with progress.during("decodes", lambda: "round 2"):
        terminal.wait(6)
        assert terminal.drawn == drawn
    assert (terminal.drawn, terminal.said) == ("", [])


@pytest.mark.parametrize("text", ["", "[]", "null", '{"benchmarks": [', '{"benchmarks": null}'])
def test_a_file_that_is_no_run_tells_no_time(tmp_path: Path, text: str) -> None:
    """And keeps no session from its plan."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "0001_cut.json").write_text(text)
    assert earlier_seconds(tmp_path) == {}


def test_a_benchmark_of_another_tool_tells_no_time(tmp_path: Path) -> None:
    """It has no name, and nothing beside it."""
    (tmp_path / "host").mkdir()
    content = {"machine_info": {"node": platform.node()}, "benchmarks": [{"extra_info": None}]}
    (tmp_path / "host" / "0001_other.json").write_text(json.dumps(content))
    assert earlier_seconds(tmp_path) == {}


def test_the_plan_says_where_servers_run_and_what_they_are_held_against() -> None:
    """Engines of one label too."""
    served = [EngineSpec(backend="server", target="t", server={"url": f"http://{host}"}) for host in "ab"]
    held = EngineSpec(backend="server", target="t", method="ngram", gamma=3, server={}, reference=served[0])
    engines, places = zip(*(line.split(" ", 3)[2:] for line in planned(*served, held)), strict=True)
    assert len(set(engines)) == 3
    assert places == (
        "(server at http://a, bfloat16): short",
        "(server at http://b, bfloat16): short",
        "(server, bfloat16), against t-target (server at http://a, bfloat16): short",
    )


def test_the_plan_tells_engines_of_one_label_apart_and_no_password() -> None:
    """By the draft, as the tests' ids do."""
    drafts = [EngineSpec(backend="vllm", target="t", method="draft_model", draft=draft, gamma=4) for draft in "ab"]
    assert planned(*drafts) == [
        "  t-draft_model-g4-a (vllm, bfloat16): short",
        "  t-draft_model-g4-b (vllm, bfloat16): short",
    ]
    (line,) = planned(EngineSpec(backend="server", target="t", server={"url": "http://me:secret@host:80"}))
    assert line == "  t-target (server at http://host:80, bfloat16): short"


def planned(*specs: EngineSpec) -> list[str]:
    """The plan's lines of engines."""
    return describe_plan([PlannedGate("test", spec, "short", None) for spec in specs])[1:]
