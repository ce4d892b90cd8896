"""`scenario` is a common word: a test that means its own parameter or fixture by it is not this plugin's business."""

from __future__ import annotations

from tests.plugin.conftest import Project


def test_a_parameter_named_scenario_is_left_alone(project: Project) -> None:
    """It is parametrized by the test itself, once."""
    project.tests(
        """
        import pytest

        @pytest.mark.parametrize("scenario", ["sunny", "rainy"])
        def test_weather(scenario):
            assert scenario in ("sunny", "rainy")
        """,
        header="",
    )
    assert project.ids() == ["test_weather[sunny]", "test_weather[rainy]"]
    project.run().assert_outcomes(passed=2)


def test_a_fixture_named_scenario_is_left_alone(project: Project) -> None:
    """The nearer fixture is the one that is meant, and it needs no scenario file."""
    project.tests(
        """
        import pytest

        @pytest.fixture
        def scenario():
            return "sunny"

        def test_weather(scenario):
            assert scenario == "sunny"
        """,
        header="",
    )
    assert project.ids() == ["test_weather"]
    project.run().assert_outcomes(passed=1)


def test_a_fixture_may_make_a_scenario_for_the_gate(project: Project) -> None:
    """Overriding is how a project computes its scenarios."""
    project.tests(
        """
        from pytest_specdec.workloads.scenario import load_scenario

        @pytest.fixture
        def scenario():
            return load_scenario("scenarios/short.toml").model_copy(update={"max_tokens": 4})

        def test_it(specdec, ar_engine, scenario):
            assert specdec(ar_engine, scenario).throughput.tokens == 2 * 2 * 4
        """
    )
    assert project.ids() == ["test_it[t-target]"]
    project.run().assert_outcomes(passed=1)
