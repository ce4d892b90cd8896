"""The gate against a baseline, on a real engine: silent when nothing changed, and what it finds of a slowdown.

Every run is a pytest session of its own with an engine of its own, as in a CI, so that what differs between processes
is in the figures. Some runs are saved; repeats are held against them, then runs whose engine has another setting and
delivers 5, 10 or 15 % fewer tokens a second. What was seen is written to docs/evidence/regression-gate.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest_specdec
from pytest_specdec.hardware import cores, processor
from pytest_specdec.history.compare import interval_in_words
from pytest_specdec.record import from_json
from pytest_specdec.record.parts import ChangePart

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "regression-gate.md"
SAVED = 8
REPEATS = 12
SLOWED = 3
ROUNDS = 16
SLOWDOWNS = (0.05, 0.10, 0.15)
THRESHOLD = "tokens_per_second:5%"
PLUGINS = ("-p", "benchmark", "-p", "xdist", "-p", "pytest_specdec.plugin", "-p", "no:cacheprovider")
TEST = """
import pytest

@pytest.mark.specdec(target="constructed:tiny", scenario="it.toml")
def test_it(specdec, transformers_ar, scenario):
    specdec(transformers_ar, scenario)
"""
SCENARIO = """
source = { format = "random", length = 16 }
count = 8
seed = 1
max_tokens = 32
ignore_eos = true
concurrency = 4
warmup_rounds = 2
"""
CONFTEST = """
import os
import time

import pytest

@pytest.hookimpl(wrapper=True)
def pytest_specdec_start_engine(spec):
    engine = yield
    run = engine.run

    def slowed():
        began = time.perf_counter()
        run()
        time.sleep((time.perf_counter() - began) * slowdown / (1 - slowdown))

    slowdown = float(os.environ.get("PLANTED", "0"))
    if slowdown:
        engine.run = slowed
    return engine
"""


def test_no_repeat_alarms_and_the_page_tells_which_slowdowns_are_found(tmp_path: Path) -> None:
    """Not one alarm among the repeats. What is found depends on how far sessions differ on the machine."""
    project(tmp_path)
    assert [run_session(tmp_path, "--benchmark-save=base") for _ in range(SAVED)] == [0] * SAVED
    repeats = [change(tmp_path) for _ in range(REPEATS)]
    slowed = {share: [change(tmp_path, share) for _ in range(SLOWED)] for share in SLOWDOWNS}
    earlier = PAGE.read_text("utf-8").partition(HEADING)[0]
    PAGE.write_text(earlier + section(repeats, slowed), "utf-8")
    assert [each.outcome for each in repeats].count("worse") == 0


def project(path: Path) -> None:
    """A project with one test of one engine."""
    (path / "pytest.ini").write_text("[pytest]\n")
    (path / "test_it.py").write_text(TEST)
    (path / "it.toml").write_text(SCENARIO)
    (path / "conftest.py").write_text(CONFTEST)


def run_session(path: Path, *options: str, planted: float = 0.0) -> int:
    """One pytest session in a process of its own; its exit code."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPECDEC_", "PYTEST_"))}
    environment |= {"PYTHONPATH": str(Path(pytest_specdec.__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment |= {"PLANTED": str(planted)}
    command = [sys.executable, "-m", "pytest", "-q", *PLUGINS, f"--specdec-rounds={ROUNDS}", *options]
    done = subprocess.run(command, cwd=path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode


def change(path: Path, planted: float = 0.0) -> ChangePart:
    """The change of tokens/s against the saved run; the exit code follows the outcome."""
    setting = ["--specdec-max-model-len=512"] if planted else []
    options = ["--specdec-compare", f"--specdec-fail={THRESHOLD}", "--junit-xml=out.xml", *setting]
    code = run_session(path, *options, planted=planted)
    (kept,) = ElementTree.parse(path / "out.xml").iterfind(".//property[@name='specdec']")
    baseline = from_json(json.loads(str(kept.get("value")))).baseline
    assert baseline is not None
    (found,) = baseline.changes
    assert code == (1 if found.outcome == "worse" or found.wanted is not None else 0)
    assert bool(planted) == any("engine configuration" in each for each in baseline.circumstances)
    return found


def section(repeats: list[ChangePart], slowed: dict[float, list[ChangePart]]) -> str:
    """The end of the page, with every run in a row."""
    named = {"repeat": repeats, **{f"slowed by {share:.0%}": changes for share, changes in slowed.items()}}
    return TEXT.format(
        counts="; ".join(f"{kind}: {outcomes(changes)}" for kind, changes in named.items()),
        spread=max(abs(each.change) for each in repeats),
        rows="\n".join(
            f"| {kind} {number} | {each.now:.1f} | {interval_in_words(each)} | {each.outcome} |"
            for kind, changes in named.items()
            for number, each in enumerate(changes, 1)
        ),
        base=repeats[0].then,
        differ=repeats[0].sessions_differ,
        machine=f"{processor()}, {cores()} cores",
    )


def outcomes(changes: list[ChangePart]) -> str:
    """How many of each, e.g. "11 better or same, 1 inconclusive"."""
    return ", ".join(f"{count} {outcome}" for outcome, count in Counter(each.outcome for each in changes).items())


HEADING = "## By today's rules"
TEXT = f"""{HEADING}

Each run is a pytest session of its own: constructed:tiny in bfloat16 by Transformers, target only, 8 requests of 32
tokens, four at a time, {ROUNDS} rounds; threshold {THRESHOLD}. {SAVED} runs were saved; {REPEATS} repeats, and runs
with another setting (`max_model_len`) and a planted slowdown, were held against them: 99 of 100 sessions of the same
code differ from their mean by no more than {{differ:.1%}}.
Written by `tox -e evidence -- -k regression_gate`.

{{counts}}. The largest change of a repeat was {{spread:.1%}}.

| run | tokens/s | change, by the rounds | outcome |
|---|---|---|---|
| saved, their mean | {{base:.1f}} | | |
{{rows}}

{{machine}}.
"""
