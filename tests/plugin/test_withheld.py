"""A test that fails leaves no timing behind: not in pytest-benchmark's JSON, not in its storage, not in its table."""

from __future__ import annotations

import json

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import gate, own_engine

GREEN = gate("test_green", gamma=2)
KEPT = ["test_green[t-draft_model-g2-short]"]
DIES_IN_THE_SECOND_ROUND = own_engine(
    """
    passes = 0

    def run(self):
        self.passes += 1
        if self.passes == 3 and self.spec.gamma == 4:
            raise EngineDied("gone in its second timed round")
        super().run()
    """
)


def list_left(project: Project, *options: str) -> tuple[list[str], list[str], list[str]]:
    """The names of the tests in the JSON, in the storage, and in the table of pytest-benchmark."""
    result = project.run("--benchmark-json=out.json", "--benchmark-autosave", "--specdec-table=both", *options)
    stored = next((project.path / ".benchmarks").rglob("*.json"))
    return names(project, "out.json"), names(project, str(stored)), read_ranking(result)


def names(project: Project, file: str) -> list[str]:
    """The tests in a file of pytest-benchmark's."""
    return [bench["name"] for bench in json.loads((project.path / file).read_text())["benchmarks"]]


def read_ranking(result: pytest.RunResult) -> list[str]:
    """The first column of pytest-benchmark's table."""
    lines = result.outlines
    start = next((at for at, line in enumerate(lines) if line.startswith("Name (time in ")), len(lines))
    rows = [line for line in lines[start:] if line.startswith("test_") and "::" not in line]
    return [row.split()[0] for row in rows if len(row.split()) > 2]


@pytest.mark.parametrize("fault", ["wrong token", "stops early", "dead drafter"])
def test_a_red_gate_is_withheld_and_the_others_stay(project: Project, fault: str) -> None:
    """Whatever made it red; the green test of the same run keeps its timing in all three places."""
    project.tests(GREEN + gate("test_red", gamma=4, speculative_options={"fault": fault}))
    assert list_left(project) == (KEPT, KEPT, KEPT)


@pytest.mark.parametrize("limit", ["speedup = 1000.0", "acceptance_rate = 0.99", "mean_accepted_length = 9.0"])
def test_a_missed_limit_is_withheld(project: Project, limit: str) -> None:
    """A scenario's own limits are part of the gate."""
    project.scenario((project.path / "scenarios/short.toml").read_text() + f"min_{limit}", name="strict")
    project.tests(GREEN + gate("test_red", gamma=4, scenario="scenarios/strict.toml"))
    assert list_left(project) == (KEPT, KEPT, KEPT)


@pytest.mark.parametrize(
    ("mark", "after"),
    [
        ("", "assert False"),
        ("@pytest.mark.xfail", "assert False"),
        ("@pytest.mark.xfail(strict=True)", "assert False"),
        ("", "pytest.skip('after measuring')"),
    ],
)
def test_a_test_that_fails_or_skips_after_a_green_gate_is_withheld(project: Project, mark: str, after: str) -> None:
    """A test's own assert counts like the gate's, also where the failure was expected; a skipped one says nothing."""
    project.tests(f"{GREEN}{mark}\n{gate('test_own', gamma=4).rstrip()}\n    {after}\n")
    assert list_left(project) == (KEPT, KEPT, KEPT)


def test_an_engine_that_dies_between_rounds_is_withheld(project: Project) -> None:
    """The rounds before its death were timed, and are no result."""
    project.conftest(DIES_IN_THE_SECOND_ROUND)
    project.tests(GREEN + gate("test_dies", gamma=4))
    assert list_left(project) == (KEPT, KEPT, KEPT)


@pytest.mark.parametrize("timed", [0, 1])
@pytest.mark.parametrize(
    ("broken_off_by", "words"), [("KeyboardInterrupt", "ended by Ctrl-C"), ("pytest.exit.Exception", "ended (stop)")]
)
def test_what_was_measured_before_an_interruption_is_saved(
    project: Project, timed: int, broken_off_by: str, words: str
) -> None:
    """Before its first timed round or after it: the test that was running is left out, and all before it is kept.

    The saved run says what ended it.
    """
    died, passes = 'EngineDied("gone in its second timed round")', f"self.passes == {timed + 2}"
    project.conftest(
        DIES_IN_THE_SECOND_ROUND.replace(died, f'{broken_off_by}("stop")').replace("self.passes == 3", passes)
    )
    project.tests(GREEN + gate("test_broken_off", gamma=4))
    result = project.run_apart("--benchmark-json=out.json", "--benchmark-autosave")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    stored = next((project.path / ".benchmarks").rglob("*.json"))
    assert (names(project, "out.json"), names(project, str(stored))) == (KEPT, KEPT)
    said = {"partial": True, "reason": f"{words} after 1 of 2 gates"}
    assert [json.loads(file.read_text())["specdec"] for file in (project.path / "out.json", stored)] == [said, said]


def test_a_test_that_expects_its_gate_to_be_red_is_withheld(project: Project) -> None:
    """It passes, and its timing is still that of wrong output."""
    project.tests(
        GREEN
        + """
@pytest.mark.specdec(gamma=4, speculative_options={"fault": "wrong token"})
def test_expects(specdec, spec_engine, scenario):
    with pytest.raises(pytest.fail.Exception, match="divergent"):
        specdec(spec_engine, scenario)
"""
    )
    assert list_left(project) == (KEPT, KEPT, KEPT)


def test_benchmarks_of_others_are_left_alone(project: Project) -> None:
    """A failing benchmark that does not use this plugin stays in pytest-benchmark's hands."""
    project.tests(
        """
        def test_other(benchmark):
            benchmark.pedantic(lambda: None)
            assert False
        """
    )
    assert list_left(project, "--benchmark-timer=time.perf_counter") == (["test_other"],) * 3
