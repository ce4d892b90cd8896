"""`--specdec-engine fake` is enough: a target, a scenario and a clock come with the engine."""

from __future__ import annotations

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import gate

from pytest_specdec import plugin
from pytest_specdec.metrics.rounds import IS_BASELINE
from pytest_specdec.record import missing
from pytest_specdec.record.parts import TargetAlonePart


def test_no_other_option_is_needed(project: Project) -> None:
    """Tests without marks pass; figures are those of the engine's own clock: a second for each of 8 x 32 tokens."""
    project.write("pytest.ini", "[pytest]\n")
    project.tests(gate("test_speculative") + gate("test_target_only", "ar_engine"), header="")
    records = project.records("--specdec-engine", "fake")
    assert [record.gate for record in records.values()] == ["green", "green"]
    alone = records["test_target_only[arithmetic-target-numbers]"]
    assert alone.throughput.seconds.value == 8 * 32 * alone.throughput.rounds
    assert alone.target_alone == missing(TargetAlonePart, IS_BASELINE)


@pytest.fixture
def every_engine_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though none is loaded: no package has to be installed."""
    monkeypatch.setattr(plugin, "_missing_here", lambda item, engines: [])


@pytest.mark.usefixtures("every_engine_runs_here")
@pytest.mark.parametrize("runs", [True, False])
def test_beside_another_engine_it_is_skipped_by_name_and_judged_where_nothing_is_timed(
    project: Project, runs: bool
) -> None:
    """By the usual clock it decodes faster than by its own, which would be a red gate on a sound engine."""
    project.write("pytest.ini", "[pytest]\n")
    marks = "@pytest.mark.specdec(target='t')\n" + ("" if runs else "@pytest.mark.skip\n")
    project.write("test_other.py", f"import pytest\n\n{marks}def test_other(specdec, vllm_ar, scenario): ...\n")
    project.tests(gate("test_fake", "ar_engine"))
    other = {"failed": 1, "skipped": 0} if runs else {"failed": 0, "skipped": 1}  # it gates nothing, which is an error
    project.run("--specdec-engine=fake", "--benchmark-disable").assert_outcomes(passed=1, **other)
    timed = project.run("--specdec-engine=fake", "-rs")
    timed.assert_outcomes(passed=0 if runs else 1, **{**other, "skipped": 1})
    assert any("the fake engine has a clock of its own: run it without" in line for line in timed.outlines) == runs


@pytest.mark.usefixtures("every_engine_runs_here")
@pytest.mark.parametrize(
    ("fixture", "clock"), [("spec_engine", "pytest_specdec.engines.fake.clock"), ("vllm_ar", "time.perf_counter")]
)
def test_another_engine_beside_it_is_timed_by_the_usual_clock(project: Project, fixture: str, clock: str) -> None:
    """That of the fake engine stands still while others decode."""
    project.conftest("def pytest_report_collectionfinish(config):\n    return config.getoption('benchmark_timer')\n")
    project.write("pytest.ini", "[pytest]\n")
    project.tests(
        f"def test_it(specdec, {fixture}, scenario): ...\n\ndef test_two(specdec, ar_engine, scenario): ...\n"
    )
    assert clock in project.run("--specdec-engine=fake", "--collect-only").outlines
