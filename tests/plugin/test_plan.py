"""What is to be gated is said before the first engine is loaded, with how long it took before on this machine."""

from __future__ import annotations

import json
import platform

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import gate

BOTH_ARMS = gate("test_speculative", gamma=[2, 4]) + gate("test_target_only", "ar_engine") + "def test_other(): pass\n"
GATES = (
    "test_it.py::test_speculative[t-draft_model-g2-short]",
    "test_it.py::test_speculative[t-draft_model-g4-short]",
    "test_it.py::test_target_only[t-target-short]",
)
ENGINES = ["  t-target (fake, bfloat16): short", "  t-draft_model-g2 (fake, bfloat16): short"]
UNKNOWN = "plan: 3 gates of 3 engines, no saved run on this machine tells how long they take"


def plan(result: pytest.RunResult) -> list[str]:
    """The plan's first three lines."""
    start = next(at for at, line in enumerate(result.outlines) if line.startswith("plan: "))
    return result.outlines[start : start + 3]


def save(project: Project, node: str, *tests: str) -> None:
    """A run of this machine, in which the gates of these tests took 20 s each."""
    benches = [{"fullname": test, "extra_info": {"specdec_seconds": 20.0}} for test in tests]
    folder = project.path / ".benchmarks/machine"
    folder.mkdir(parents=True)
    (folder / "0001_run.json").write_text(json.dumps({"machine_info": {"node": node}, "benchmarks": benches}))


def test_the_plan_comes_before_the_first_engine(project: Project) -> None:
    """Engines in the order in which they are loaded, each with its scenarios."""
    project.tests(BOTH_ARMS)
    result = project.run()
    result.assert_outcomes(passed=4)
    assert plan(result) == [UNKNOWN, *ENGINES]
    lines = result.outlines
    assert lines.index(UNKNOWN) < next(at for at, line in enumerate(lines) if "specdec: loading" in line)


def test_the_plan_alone_loads_nothing(project: Project) -> None:
    """Also where pytest is told to be quiet, or to use workers."""
    project.tests(BOTH_ARMS)
    for options in (), ("-q",), ("-n", "2"):
        result = project.run("--specdec-plan", *options)
        assert (int(result.ret), plan(result), project.loads()) == (0, [UNKNOWN, *ENGINES], [])


def test_a_quiet_run_tells_no_plan(project: Project) -> None:
    """And a run without gates has none."""
    project.tests(BOTH_ARMS)
    assert "plan: " not in project.run("-q").stdout.str()
    project.tests("def test_other():\n    pass\n", header="")
    assert "plan: " not in project.run().stdout.str()


@pytest.mark.parametrize(("ran", "told"), [(1, "about 20 s for the 1 that ran here before"), (3, "about 60 s")])
def test_earlier_runs_on_this_machine_tell_how_long(project: Project, ran: int, told: str) -> None:
    """By the seconds of each gate, loading included."""
    save(project, platform.node(), *GATES[:ran])
    project.tests(BOTH_ARMS)
    assert plan(project.run("--specdec-plan"))[0] == f"plan: 3 gates of 3 engines, {told}"


def test_runs_on_another_machine_tell_nothing(project: Project) -> None:
    """It may be faster."""
    save(project, platform.node() + "-2", *GATES)
    project.tests(BOTH_ARMS)
    assert plan(project.run("--specdec-plan"))[0] == UNKNOWN


def test_a_saved_run_holds_the_seconds_of_its_gates(project: Project) -> None:
    """Beside the record."""
    project.tests(BOTH_ARMS)
    kept = [set(bench["extra_info"]) for bench in project.benchmarks().values()]
    assert kept == [{"specdec", "specdec_seconds"}] * 3
