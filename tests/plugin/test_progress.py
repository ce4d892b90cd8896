"""What is said while engines load and decode, and the table at the end."""

from __future__ import annotations

import re

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import WRONG_TOKEN, both_arms, gate

ON_EVERY_TICK = """
import threading

from pytest_specdec import progress
from pytest_specdec.engines.fake import FakeEngine
from pytest_specdec.errors import EngineDied

progress.LOOKS_S, progress.SILENCE_S = 0.001, 0.0
announce, said, more = progress.Progress.announce, [], threading.Condition()

def noted(self, text):
    announce(self, text)
    with more:
        said.append(text)
        more.notify_all()

progress.Progress.announce = noted

def until_said(text, times=1):
    with more:
        assert more.wait_for(lambda: sum(line.startswith(text) for line in said) >= times, 60), text

def note_threads(name):
    names = [thread.name for thread in threading.enumerate()]
    Path(__file__).with_name(name).write_text(str(names.count("specdec ticker")))
"""
SLOW = """
class Slow(FakeEngine):
    rounds = iter(["warm-up round 1, ", "warm-up round 2, ", "round 1, ", "round 2, 1.0 tokens/s, "])
    scores = iter(["calibrates on short, ", "rescores 32 tokens, "])

    def __init__(self, spec):
        super().__init__(spec)
        until_said(f"loading {spec.label} (fake, bfloat16), ", 2)

    def run(self):
        if not self.spec.speculates and (told := next(self.rounds, "")):
            until_said(f"t-target decodes short, {told}")
        super().run()

    def score(self, requests, outputs):
        until_said(f"t-target {next(self.scores)}")
        return super().score(requests, outputs)

@pytest.hookimpl(specname="pytest_specdec_start_engine")
def pytest_start_slow(spec):
    return Slow(spec)
"""
BROKEN = """
class Broken(FakeEngine):
    def __init__(self, spec):
        super().__init__(spec)
        note_threads("while_loading.txt")

    def run(self):
        {ends}
        super().run()

@pytest.hookimpl(specname="pytest_specdec_start_engine")
def pytest_start_broken(spec):
    return Broken(spec)

@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    note_threads("at_the_end.txt")
"""
MAKES_NONE = """
from pytest_specdec.models import ModelError, cache

def fail(reference, root):
    until_said(f"making the model {reference}, ")
    raise ModelError("not today")

cache._make = fail
"""
TOLD_AGAIN = [
    "specdec: loading t-target (fake, bfloat16), N s",
    "specdec: t-target decodes short, warm-up round 1, N s",
    "specdec: t-target decodes short, warm-up round 2, N s",
    "specdec: t-target decodes short, round 1, N s",
    "specdec: t-target decodes short, round 2, 1.0 tokens/s, N s",
    "specdec: t-target calibrates on short, N s",
    "specdec: t-target rescores 32 tokens, N s",
]
TITLE = "speculative decoding: is it exact, is it faster"


def progress(result: pytest.RunResult) -> list[str]:
    """The lines of progress, in order."""
    return [line.strip() for line in result.outlines if line.strip().startswith("specdec: ")]


def table(result: pytest.RunResult) -> list[list[str]]:
    """The rows of the closing table, cell by cell."""
    lines = result.outlines
    start = next(at for at, line in enumerate(lines) if TITLE in line)
    return [line.split() for line in lines[start:] if line.strip().startswith("short")]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, nothing here lasts long enough to be told twice."""
    monkeypatch.setattr("pytest_specdec.progress.SILENCE_S", float("inf"))


@pytest.mark.usefixtures("fast")
def test_loading_and_decoding_are_told_as_they_happen(project: Project) -> None:
    """Which engine loads, when it is ready, and what it decodes; past pytest's capturing."""
    project.tests(both_arms())
    said = progress(project.run())
    assert said[0] == "specdec: loading t-target (fake, bfloat16)"
    assert said[1].startswith("specdec: t-target is ready after ")
    assert said[2] == "specdec: t-target decodes short, 2 rounds of 2 requests"
    assert said[3] == "specdec: t-target calibrates on short"
    assert said[4] == "specdec: loading t-draft_model-g3 (fake, bfloat16)"
    assert said[-1] == "specdec: t-target verifies its own output, γ = 3"
    assert len(said) == 8


@pytest.mark.usefixtures("fast")
def test_rescoring_is_told(project: Project) -> None:
    """It may take long on a real engine."""
    project.tests(both_arms(**WRONG_TOKEN))
    assert progress(project.run())[-1] == "specdec: t-target rescores 32 tokens"


@pytest.mark.parametrize("capture", ["fd", "sys", "no"])
def test_what_lasts_is_told_again_while_it_lasts(project: Project, capture: str) -> None:
    """Each step here goes on until its line was printed; every line is whole, also after pytest began one."""
    project.conftest(ON_EVERY_TICK + SLOW)
    project.tests(both_arms(**WRONG_TOKEN))
    result = project.run_apart("-v", f"--capture={capture}")
    result.assert_outcomes(passed=1, failed=1)
    lines = [line for line in result.outlines if "specdec: " in line]
    assert [line for line in lines if not line.startswith("  specdec: ")] == []
    said = dict.fromkeys(re.sub(r"\d+ s$", "N s", line.strip()) for line in lines)
    assert [line for line in said if line in TOLD_AGAIN] == TOLD_AGAIN


def test_a_model_that_is_made_is_told(project: Project) -> None:
    """Also while it lasts; it is made before the engine that asked for it loads."""
    project.conftest(ON_EVERY_TICK + MAKES_NONE)
    server = '{"command": ["none", "--drafts"], "speculation": ["--drafts"]}'
    mark = f'@pytest.mark.specdec(target="constructed:tiny", server={server})'
    project.tests(f"{mark}\ndef test_it(specdec, openai_server, scenario):\n    specdec(openai_server, scenario)\n")
    result = project.run_apart("--specdec-cache=models")
    result.assert_outcomes(failed=1)
    said = progress(result)
    assert "specdec: making the model constructed:tiny" in said
    assert [line for line in said if re.fullmatch(r"specdec: making the model constructed:tiny, \d+ s", line)] != []


def test_an_engine_from_outside_can_tell_what_it_does(project: Project) -> None:
    """By the hook's `doing`, while it loads."""
    project.conftest(
        """
        from pytest_specdec.engines.fake import FakeEngine

        @pytest.hookimpl(specname="pytest_specdec_start_engine")
        def pytest_start_mine(spec, doing):
            with doing("fetching its weights"):
                return FakeEngine(spec)
        """
    )
    project.tests(both_arms())
    assert progress(project.run()).count("specdec: fetching its weights") == 2


@pytest.mark.parametrize("ends", ["pass", "raise EngineDied('gone')", "raise KeyboardInterrupt", "pytest.exit('bye')"])
def test_no_thread_is_left_however_it_ends(project: Project, ends: str) -> None:
    """One ran while the engine loaded."""
    project.conftest(ON_EVERY_TICK + BROKEN.format(ends=ends))
    project.tests(both_arms())
    project.run_apart("-p", "no:xdist")
    assert (project.path / "while_loading.txt").read_text() == "1"
    assert (project.path / "at_the_end.txt").read_text() == "0"


@pytest.mark.parametrize("option", ["-q", "-n1"])
def test_where_nothing_is_said_no_thread_runs(project: Project, option: str) -> None:
    """With -q, and on a worker of pytest-xdist."""
    project.conftest(ON_EVERY_TICK + BROKEN.format(ends="pass"))
    project.tests(both_arms())
    result = project.run_apart(option)
    assert progress(result) == []
    assert (project.path / "while_loading.txt").read_text() == "0"


def test_the_table_has_the_verdict_before_the_speed(project: Project) -> None:
    """Target-only first, then what it is compared with: 16 tokens in 16 s, and in 7 s with every draft accepted."""
    project.tests(both_arms())
    result = project.run()
    result.stdout.fnmatch_lines(
        [
            "*scenario*target*engine*method*γ*verdict*tokens/s*target tok/s*speed-up*acceptance*",
            "left out for want of width: tok/step, p95 ITL ms, p95 TTFT ms",
            "2 exact, 1 faster",
            "decision: short · fake · t bf16 · fake",
            "  use γ = 3 (draft_model d): 2.29× [[]2.29, 2.29]; p95 ITL 438 ms against 1,000 ms, *",
        ]
    )
    assert [row[:10] for row in table(result)] == [
        ["short", "t", "bf16", "fake", "none", "–", "identical", "1.0", "–", "–"],
        ["short", "t", "bf16", "fake", "draft_model", "3", "identical", "2.3", "1.0", "2.29"],
    ]
    assert table(result)[1][10:] == ["[2.29,", "2.29]", "100.0%"]
    assert "Name (time in" not in result.stdout.str()


def test_the_notes_say_what_the_columns_mean(project: Project) -> None:
    """And why one of them is empty."""
    project.tests(both_arms())
    lines = project.run().outlines
    assert [
        line
        for line in lines
        if line.startswith("speed-up: tokens/s over target tok/s, those of target-only in rounds beside these")
    ] != []
    assert [line for line in lines if line.startswith("J/token: ")] != []


def test_at_a_temperature_a_gate_is_consistent_and_says_what_it_would_have_found(project: Project) -> None:
    """Exact is claimed of no sample."""
    source = 'source = { format = "random", length = 4 }\ncount = 2\nmax_tokens = 8\n'
    project.scenario(f"{source}sampling = {{ temperature = 0.8 }}\n")
    project.tests(gate(gamma=3))
    lines = project.run().outlines
    assert [line for line in lines if line.startswith("1 consistent")] != []
    gate_told = "sampled: short, 1 at once, t bfloat16 fake draft_model d γ=3: "
    (told,) = [line.removeprefix(gate_told) for line in lines if line.startswith(gate_told)]
    assert told.startswith("would have found, with 95%, in 96 measured tokens: a total variation of 0.1")


def test_a_red_gate_has_its_row(project: Project) -> None:
    """With its verdict, and without a speed-up."""
    project.tests(both_arms(**WRONG_TOKEN))
    row = table(project.run())[1]
    assert row[6:] == ["divergent", "–", "42.9%", "2.29", "–", "–"]


def test_a_dead_drafter_is_marked_red_in_its_row(project: Project) -> None:
    """Its output is identical, and that proves nothing."""
    project.tests(both_arms(speculative_options={"fault": "dead drafter"}))
    assert table(project.run())[1][6:8] == ["identical,", "red"]


def test_without_a_gate_there_is_no_table(project: Project) -> None:
    """Other people's test runs stay as they were."""
    project.tests("def test_other():\n    pass\n")
    assert TITLE not in project.run().stdout.str()
