"""A setting is read from the command line, then the environment, then the ini file; else it has its default."""

from __future__ import annotations

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import INI, SPECULATIVE, TARGET_ONLY, gate

from pytest_specdec.settings import OPTIONS


def test_pytest_s_help_lists_each_option(project: Project) -> None:
    """Argparse takes a percent sign in a help text for a format."""
    told = project.run("--help").stdout.str()
    assert [option.flag for option in OPTIONS if option.flag not in told] == []
    assert "5%" in told


def test_command_line_over_environment_over_ini_file_over_default(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """γ of the one test, as its id tells it: one key, one variable, one option a setting."""
    project.tests(SPECULATIVE)
    found = [project.ids()]
    project.write("pytest.ini", INI + "specdec_gamma = 4\n")
    found.append(project.ids())
    monkeypatch.setenv("SPECDEC_GAMMA", "5")
    found += [project.ids(), project.ids("--specdec-gamma=6")]
    assert found == [[f"test_it[t-draft_model-g{gamma}-short]"] for gamma in (3, 4, 5, 6)]


def test_a_target_from_the_settings_reaches_a_test_without_marks(project: Project) -> None:
    """And so do draft, scenario and γ: a test file can name none of them."""
    project.tests(SPECULATIVE, header="import pytest\n")
    models = ("--specdec-target=t", "--specdec-draft=d", "--specdec-gamma=2,4")
    assert project.ids(*models, "--specdec-scenario=scenarios/short.toml") == [
        "test_it[t-draft_model-g2-short]",
        "test_it[t-draft_model-g4-short]",
    ]


def test_rounds_and_warmup_over_the_scenario(project: Project) -> None:
    """The scenario has two rounds; the session asks for five, without warming up."""
    project.tests(SPECULATIVE)
    (bench,) = project.benchmarks("--specdec-rounds=5", "--specdec-warmup=0").values()
    assert (bench["stats"]["rounds"], bench["extra_info"]["specdec"]["throughput"]["rounds"]) == (5, 5)


def test_engine_options_reach_the_engine(project: Project) -> None:
    """As JSON: a step of 2 s doubles the seconds of sixteen steps."""
    project.tests(TARGET_ONLY)
    (bench,) = project.benchmarks('--specdec-engine-options={"step_seconds": 2.0}').values()
    assert bench["stats"]["data"] == [32.0, 32.0]


def test_dtype_is_part_of_the_engine(project: Project) -> None:
    """And of the record."""
    project.tests(TARGET_ONLY)
    (record,) = project.records("--specdec-dtype=float32").values()
    assert record.asked.dtype == "float32"


def test_an_option_that_every_mark_overrides_is_said_to_have_no_effect(project: Project) -> None:
    """Unless one test leaves it open: a target-only one leaves no γ open."""
    own = gate("test_own", gamma=2) + TARGET_ONLY
    project.tests(own)
    said = "--specdec-gamma has no effect: the marks of all tests set gamma themselves"
    assert said in project.run("--specdec-gamma=8", "--specdec-plan").outlines
    assert "has no effect" not in project.run("--specdec-dtype=float32", "--specdec-plan").stdout.str()
    project.tests(own + gate("test_open"))
    assert "has no effect" not in project.run("--specdec-gamma=8", "--specdec-plan").stdout.str()


def test_no_mark_overrides_what_no_mark_says(project: Project) -> None:
    """Neither γ where nothing speculates, nor the scenario of a test that takes nothing else from here."""
    project.tests("def test_alone(specdec, ar_engine, scenario):\n    specdec(ar_engine, scenario)\n")
    assert "has no effect" not in project.run("--specdec-gamma=8", "--specdec-plan").stdout.str()
    own = gate("test_own", target="t", draft="d", scenario="scenarios/short.toml")
    project.tests(own + "def test_scenario(scenario):\n    pass\n", header="import pytest\n")
    told = project.run("--specdec-scenario=scenarios/short.toml", "--specdec-plan")
    assert "has no effect" not in told.stdout.str()


def test_the_header_says_what_differs_from_the_defaults_and_where_it_was_said(project: Project) -> None:
    """In one line; where nothing is set there is none."""
    project.write("pytest.ini", INI + "specdec_preset = quick\n")
    project.tests("def test_other():\n    pass\n", header="")
    told = "specdec settings: engine = fake (ini file); dtype = float32 (--specdec-dtype)"
    assert told in project.run("--specdec-dtype=float32").outlines
    assert "fail = tokens_per_second:5%" in project.run("--specdec-fail=tokens_per_second:5%").stdout.str()
    project.write("pytest.ini", "[pytest]\n")
    assert "specdec settings" not in project.run().stdout.str()


def test_so_many_prompts_are_calibrated_on(project: Project) -> None:
    """One is decoded at batch 1, where there would be two."""
    project.tests(TARGET_ONLY)
    (record,) = project.records("--specdec-calibration=1").values()
    assert record.verdict.calibration is not None
    assert record.verdict.calibration.compared == 1
