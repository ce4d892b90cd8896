"""A test that takes an engine gates it, with the arguments in their order; one that does not is told so by name."""

from __future__ import annotations

import pytest
from tests.plugin.conftest import Project


@pytest.mark.parametrize("fixtures", ["specdec, spec_engine, scenario", "spec_engine"])
def test_an_engine_that_is_never_gated_fails_its_test(project: Project, fixtures: str) -> None:
    """It would pass whatever the engine emits."""
    project.tests(f"def test_it({fixtures}):\n    pass\n")
    result = project.run()
    result.assert_outcomes(failed=1)
    said = "takes spec_engine and gates nothing: call specdec(spec_engine, scenario)"
    assert [line for line in result.outlines if line.startswith("test_it[t-draft_model-g3") and said in line] != []


def test_who_asks_the_session_itself_needs_no_gate(project: Project) -> None:
    """What it makes of the engine is its own business."""
    project.tests("def test_it(specdec_session, ar_engine):\n    specdec_session.pool.awake(ar_engine)\n")
    project.run().assert_outcomes(passed=1)


def test_a_fixture_may_gate_for_its_tests(project: Project) -> None:
    """The gate is what counts, not who calls it."""
    project.tests(
        """
        @pytest.fixture
        def green(specdec, scenario):
            return lambda engine: specdec(engine, scenario)

        def test_it(green, ar_engine):
            green(ar_engine)
        """
    )
    project.run().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "scenario, spec_engine",
            "specdec() takes an engine and a scenario in this order, not Scenario and EngineSpec",
        ),
        ("spec_engine, 'short'", "specdec() takes an engine and a scenario, not EngineSpec and str"),
    ],
)
def test_other_arguments_are_refused_before_anything_is_loaded(project: Project, arguments: str, said: str) -> None:
    """The words say what is wanted and what was given."""
    project.tests(f"def test_it(specdec, spec_engine, scenario):\n    specdec({arguments})\n")
    assert said in project.run().outlines
    assert project.loads() == []
