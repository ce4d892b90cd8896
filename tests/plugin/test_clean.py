"""What others read or enforce stays clean: no warning, strict JSON, short parameters, and tests of others."""

from __future__ import annotations

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import gate, own_engine

BOTH_ARMS = gate("test_target_only", "ar_engine") + gate("test_speculative", gamma=[2, 4])
NOT_A_NUMBER = own_engine(
    """
    def score(self, requests, outputs):
        scores = super().score(requests, outputs)
        return tuple(tuple(replace(score, gap=float("nan")) for score in row) for row in scores)
    """
)
STRICT = ("-W", "error", "--strict-markers", "--strict-config")


@pytest.mark.parametrize("more", [(), ("-p", "no:xdist"), ("--benchmark-disable",)])
def test_no_warning(project: Project, more: tuple[str, ...]) -> None:
    """Every warning is an error, markers and configuration are strict."""
    project.tests(BOTH_ARMS)
    result = project.run_afresh(*STRICT) if not more else project.run_apart(*STRICT, *more)
    result.assert_outcomes(passed=3)
    assert result.ret == 0


@pytest.mark.parametrize("fault", ["dies", "does not load", "unsupported"])
def test_no_warning_beside_an_engine_fault(project: Project, fault: str) -> None:
    """That nothing was timed follows; pytest-benchmark need not say it too."""
    project.tests(gate(gamma=3, speculative_options={"fault": fault}))
    assert project.run().parseoutcomes() in ({"failed": 1}, {"skipped": 1})


def test_params_are_the_ids(project: Project) -> None:
    """Short strings that --benchmark-group-by and a reader of the JSON can use; no object's repr, no path."""
    project.tests(BOTH_ARMS)
    params = {name: bench["params"] for name, bench in project.benchmarks().items()}
    assert params == {
        "test_target_only[t-target-short]": {"ar_engine": "t-target", "scenario": "short"},
        "test_speculative[t-draft_model-g2-short]": {"spec_engine": "t-draft_model-g2", "scenario": "short"},
        "test_speculative[t-draft_model-g4-short]": {"spec_engine": "t-draft_model-g4", "scenario": "short"},
    }


def test_params_of_others_are_left_alone(project: Project) -> None:
    """Only this plugin's own parameters are named anew."""
    project.tests(
        """
        @pytest.mark.parametrize("size", [1])
        def test_both(specdec, ar_engine, scenario, size):
            specdec(ar_engine, scenario)

        @pytest.mark.parametrize("numbers", [[1, 2]])
        def test_other(benchmark, numbers):
            from pytest_specdec.engines.fake import TIME

            benchmark.pedantic(lambda: TIME.advance(1))
        """,
    )
    params = [bench["params"] for bench in project.benchmarks().values()]
    assert params == [{"ar_engine": "t-target", "scenario": "short", "size": 1}, {"numbers": [1, 2]}]


def test_grouping_by_a_parameter_shows_its_label(project: Project) -> None:
    """pytest-benchmark's own option, as a reader would use it."""
    project.tests(BOTH_ARMS)
    result = project.run("--specdec-table=both", "--benchmark-group-by=param:scenario")
    result.stdout.fnmatch_lines(["*benchmark 'scenario=short': 3 tests*"])


def test_a_figure_that_is_not_a_number_is_null_in_strict_json(project: Project) -> None:
    """Also where a broken target rates everything NaN, which makes the gate red."""
    project.conftest(NOT_A_NUMBER)
    project.tests(BOTH_ARMS)
    result = project.run("--junit-xml=out.xml")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*the calibration failed: the target's own logits are not numbers"])
    assert "NaN" not in (project.path / "out.xml").read_text()
    assert project.records() == {}


def test_a_green_run_is_strict_json(project: Project) -> None:
    """The whole file, not only the records."""
    project.tests(BOTH_ARMS)
    assert len(project.benchmarks()) == 3
