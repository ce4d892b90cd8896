"""Under pytest-xdist gates judge and nothing is measured: that is said, and whoever asked for figures is refused.

Workers are interpreters of their own, half a second of work each, so one session of two answers several tests.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
from _pytest.config import ExitCode
from tests.plugin.conftest import Project
from tests.plugin.gates import WRONG_TOKEN, gate

TWO_TARGETS = """
@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.specdec(gamma=[2, 4])
def test_t(specdec, spec_engine, scenario, again):
    specdec(spec_engine, scenario)

def test_t_alone(specdec, ar_engine, scenario):
    specdec(ar_engine, scenario)

@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.specdec(target="u", gamma=[2, 4])
def test_u(specdec, spec_engine, scenario, again):
    specdec(spec_engine, scenario)

def test_plain():
    pass
"""
NOTHING_MEASURED = "nothing was measured: {} gates judged correctness only"


@dataclass(frozen=True)
class Session:
    """A session of two workers with ten gates, of which one is red: what it printed, wrote and loaded.

    `tests`: the names of its tests, as they can be given to pytest again.
    """

    result: pytest.RunResult
    folder: Path
    loads: list[tuple[str, str, str]]
    tests: list[str]


@pytest.fixture(scope="module")
def kept() -> list[Session]:
    """The session, once a test has asked for it."""
    return []


@pytest.fixture
def on_two_workers(project: Project, monkeypatch: pytest.MonkeyPatch, kept: list[Session]) -> Session:
    """The session of two workers; it writes a JUnit file, a report and a job's summary."""
    if not kept:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
        project.tests(TWO_TARGETS + gate("test_red", **WRONG_TOKEN))
        result = project.run_apart("-n", "2", "--junit-xml=out.xml", "--specdec-report=report.json")
        kept.append(Session(result, project.path, project.loads_by_worker(), project.ids()))
    return kept[0]


@pytest.mark.parametrize(
    "option",
    ["--benchmark-json=out.json", "--benchmark-autosave", "--benchmark-save=x", "--benchmark-compare-fail=mean:5%"],
)
def test_asking_for_figures_is_refused_with_the_remedy(project: Project, option: str) -> None:
    """pytest-benchmark would write nothing and say nothing."""
    project.tests(TWO_TARGETS)
    result = project.run("-n", "2", option)
    assert result.ret == ExitCode.USAGE_ERROR
    said = result.stderr.str()
    assert f"{option.partition('=')[0]} with -n would measure nothing" in said
    assert "Measure without -n, or drop the option and use -n to gate correctness only" in said
    assert project.loads() == []


@pytest.mark.parametrize(
    ("variable", "ini", "place"),
    [("5%", "", "SPECDEC_FAIL"), (None, "specdec_fail = tokens_per_second:5%", "specdec_fail in the ini file")],
    ids=["environment", "ini file"],
)
def test_a_threshold_is_refused_wherever_it_was_set(
    project: Project, monkeypatch: pytest.MonkeyPatch, variable: str | None, ini: str, place: str
) -> None:
    """Nothing would be compared, and the session would pass."""
    if variable:
        monkeypatch.setenv("SPECDEC_FAIL", f"tokens_per_second:{variable}")
    project.tests(TWO_TARGETS)
    options = ("-o", ini.replace(" = ", "=")) if ini else ()
    result = project.run("-n", "2", *options)
    assert result.ret == ExitCode.USAGE_ERROR
    assert f"{place} with -n would measure nothing" in result.stderr.str()


def test_gates_pass_and_each_engine_is_on_one_worker(on_two_workers: Session) -> None:
    """Each target's engines are loaded once, all by one worker; and it is said that nothing was measured."""
    on_two_workers.result.assert_outcomes(passed=10, failed=1)
    workers = defaultdict(set)
    for worker, _, label in on_two_workers.loads:
        workers[label[0]].add(worker)
    assert [len(workers[target]) for target in ("t", "u")] == [1, 1]
    assert len(on_two_workers.loads) == len({label for _, _, label in on_two_workers.loads}) == 7
    assert NOTHING_MEASURED.format(10) in on_two_workers.result.outlines


def test_a_red_gate_is_red_on_a_worker_too(on_two_workers: Session) -> None:
    """Its failure and its row in the table come back from the worker."""
    assert [line for line in on_two_workers.result.outlines if line.startswith("FAILED")] != []
    lines = [line.strip() for line in on_two_workers.result.outlines]
    assert len([line for line in lines if line.startswith("short") and "divergent" in line]) == 1


def test_reports_name_tests_as_they_are_run_and_hold_no_figure_of_time(on_two_workers: Session) -> None:
    """One job summary, names that can be given to pytest again, and nothing that looks measured."""
    cases = [*ElementTree.parse(on_two_workers.folder / "out.xml").iter("testcase")]
    assert sorted(case.attrib["name"] for case in cases) == sorted(on_two_workers.tests)
    found = {each.attrib["name"] for case in cases for each in case.iter("property")}
    assert {"specdec.gate", "specdec.acceptance_rate"} <= found
    assert [name for name in found if re.search("_s$|second|speedup|joule", name)] == []
    assert (on_two_workers.folder / "summary.md").read_text().count("## Speculative decoding") == 1


def test_the_report_is_written_once_by_the_process_that_hears_of_all_tests(on_two_workers: Session) -> None:
    """It has the gates of both workers."""
    assert on_two_workers.result.outlines.count("report: report.json") == 1
    assert len(json.loads((on_two_workers.folder / "report.json").read_text())["rows"]) == 10


@pytest.mark.parametrize("options", [("-n", "0"), ("-p", "no:xdist")])
def test_without_workers_it_measures_as_usual(project: Project, options: tuple[str, ...]) -> None:
    """pytest-xdist switched off, or not there at all."""
    project.tests(TWO_TARGETS)
    assert len(project.benchmarks(*options)) == 9


def test_benchmark_disable_judges_and_says_that_nothing_was_measured(project: Project) -> None:
    """One untimed round is judged; a red gate stays red."""
    project.tests(TWO_TARGETS)
    result = project.run("--benchmark-disable")
    result.assert_outcomes(passed=10)
    assert NOTHING_MEASURED.format(9) in result.outlines
    project.tests(gate("test_red", **WRONG_TOKEN))
    project.run("--benchmark-disable").assert_outcomes(failed=1)


def test_another_distribution_is_left_alone(project: Project) -> None:
    """Who asks for --dist loadfile has a reason; the plugin groups only where pytest-xdist's default would scatter."""
    project.conftest("def pytest_report_header(config):\n    return f'distribution {config.option.dist}'\n")
    project.tests("def test_plain():\n    pass\n")
    for options, distribution in ((), "loadgroup"), (("--dist", "loadfile"), "loadfile"):
        result = project.run("-n", "1", "--collect-only", *options)
        result.stdout.fnmatch_lines([f"distribution {distribution}"])


def test_a_measuring_run_does_not_say_that_nothing_was_measured(project: Project) -> None:
    """The word is only there when it is true."""
    project.tests(TWO_TARGETS)
    assert [line for line in project.run().outlines if "nothing was measured" in line] == []
