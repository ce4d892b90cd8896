"""With --specdec-env what benchmark scripts export steers a run, and the run says what it took from where."""

from __future__ import annotations

import re

import pytest
from _pytest.config import ExitCode
from tests.plugin.conftest import Project
from tests.plugin.gates import gate

from pytest_specdec.exported_names import NAMES

MODES = gate("test_target_alone", "ar_engine") + gate("test_speculation")
BARE = 'import pytest\npytestmark = pytest.mark.specdec(scenario="scenarios/short.toml")\n'
MODELS = {"TARGET_MODEL": "t", "DRAFTER_MODEL": "d", "GAMMA_VALUE": "5"}


@pytest.fixture
def modes(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of both arms, whose models come from the environment alone."""
    for row in NAMES:
        monkeypatch.delenv(row.name, raising=False)
    for name, text in MODELS.items():
        monkeypatch.setenv(name, text)
    project.tests(MODES, header=BARE)
    return project


def settings_in(lines: list[str]) -> set[str]:
    return {re.sub(r" +", " ", line.strip()) for line in lines}


def test_without_the_flag_they_change_nothing(modes: Project) -> None:
    """Somebody else's TARGET_MODEL is not ours."""
    lines = modes.run("--specdec-engine=vllm").outlines
    assert any("no target model: give --specdec-target MODEL" in line for line in lines)
    assert "speculative decoding: settings, and where each comes from" not in lines


@pytest.mark.parametrize("how", ["option", "variable", "ini"])
def test_the_configuration_is_printed_with_where_it_came_from(
    modes: Project, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Switched on by the option, by its variable, or in the ini file."""
    if how == "variable":
        monkeypatch.setenv("SPECDEC_ENV", "yes")
    if how == "ini":
        modes.write("pytest.ini", (modes.path / "pytest.ini").read_text() + "specdec_env = yes\n")
    result = modes.run(*(["--specdec-env"] if how == "option" else []), "--specdec-gamma=2")
    result.assert_outcomes(passed=2)
    assert {
        "target = t (TARGET_MODEL)",
        "gamma = 2 (--specdec-gamma)",
        "engine = fake (specdec_engine in the ini file)",
        "dtype = - (default)",
    } <= settings_in(result.outlines)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("speculative", ["test_speculation[t-draft_model-g5-short]"]),
        ("target_ar", ["test_target_alone[t-target-short]"]),
    ],
)
def test_the_method_selects_the_arm(
    modes: Project, monkeypatch: pytest.MonkeyPatch, method: str, expected: list[str]
) -> None:
    """The other arm's gate is deselected."""
    monkeypatch.setenv("INFERENCE_METHOD", method)
    assert modes.ids("--specdec-env") == expected
    modes.run("--specdec-env").assert_outcomes(passed=1, deselected=1)


def test_workload_names_take_the_place_of_the_scenarios_keys(modes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One prompt of five tokens instead of two of eight."""
    monkeypatch.setenv("NUM_PROMPTS", "1")
    monkeypatch.setenv("GENERATION_LENGTH", "5")
    monkeypatch.setenv("ENABLE_BATCH", "false")
    records = modes.records("--specdec-env", "--specdec-arm=target")
    assert [record.throughput.tokens for record in records.values()] == [10]


def test_a_key_that_does_not_fit_names_who_gave_it(modes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has two prompts."""
    monkeypatch.setenv("NUM_PROMPTS", "3")
    lines = modes.run("--specdec-env").outlines
    assert any("short.toml with NUM_PROMPTS: count: 3 prompts asked for, the source has 2" in line for line in lines)


def test_set_works_without_exports_too(modes: Project) -> None:
    """As in a scenario file; an unknown key is refused."""
    models = ("--specdec-target=t", "--specdec-draft=d", "--specdec-arm=target")
    records = modes.records(*models, "--specdec-set", "max_tokens = 3, concurrency = 1")
    assert [record.throughput.tokens for record in records.values()] == [12]
    lines = modes.run(*models, "--specdec-set", "max_token = 3").outlines
    assert any("with --specdec-set: unknown key 'max_token': did you mean 'max_tokens'?" in line for line in lines)


def test_a_name_without_meaning_is_warned_of(modes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, in pytest's summary of warnings."""
    monkeypatch.setenv("VLLM_USE_V2_BLOCK_MANAGER", "true")
    result = modes.run("--specdec-env")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*VLLM_USE_V2_BLOCK_MANAGER has no meaning any more*"])


def test_a_bad_value_is_a_usage_error(modes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable, the value and the remedy."""
    monkeypatch.setenv("GAMMA_VALUE", "many")
    result = modes.run("--specdec-env")
    assert result.ret == ExitCode.USAGE_ERROR
    assert "GAMMA_VALUE=many: " in result.stderr.str()
    assert "export a number of draft tokens, 1 or more" in result.stderr.str()
