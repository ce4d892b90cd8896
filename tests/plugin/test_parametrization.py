"""One test function runs on all its engines and scenarios, under ids that are short and stay the same."""

from __future__ import annotations

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import SPECULATIVE, gate


def test_drafts_methods_and_gammas_multiply_out(project: Project) -> None:
    """Two of each make eight engines, each with an id of its own."""
    project.tests(gate(draft=["d", "e"], method=["draft_model", "eagle"], gamma=[2, 4]))
    ids = project.ids()
    assert (len(ids), len(set(ids))) == (8, 8)
    project.run().assert_outcomes(passed=8)
    assert len(set(project.loads())) == 4 + 1
    assert len(project.loads()) == 8 + 1


def test_ids_hold_no_prompt_and_no_path(project: Project) -> None:
    """A model's id is its last part, a scenario's its name; the same on every machine and in every run."""
    project.scenario('source = { format = "text", prompts = ["Once upon a time"] }\nmax_tokens = 4\n', name="story")
    project.tests(gate(target="/models/big/t-7b", gamma=2, scenario="scenarios/story.toml"))
    first, second = project.ids(), project.ids()
    assert first == second == ["test_it[t-7b-draft_model-g2-story]"]


def test_scenarios_of_a_folder_multiply_out(project: Project) -> None:
    """In order of name."""
    project.scenario((project.path / "scenarios/short.toml").read_text(), name="again")
    project.tests(gate(scenario="scenarios"))
    assert project.ids() == ["test_it[t-draft_model-g3-again]", "test_it[t-draft_model-g3-short]"]


def test_a_scenario_of_the_command_line_lies_where_the_command_is_given(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else a mark says; its own scenario lies below the root folder."""
    project.tests('@pytest.mark.specdec(target="t", draft="d", gamma=2)\n' + SPECULATIVE, header="import pytest\n")
    monkeypatch.chdir(project.path / "scenarios")
    places = ("-c", f"{project.path}/pytest.ini", f"{project.path}/test_it.py")
    lines = project.run("--collect-only", "-q", "--specdec-scenario=short.toml", *places).outlines
    assert any(line.endswith("test_it.py::test_it[t-draft_model-g2-short]") for line in lines)


def test_targets_of_a_mark_multiply_out(project: Project) -> None:
    """As drafts do."""
    project.tests('@pytest.mark.specdec(target=("a", "b"))\ndef test_it(specdec, ar_engine, scenario): ...\n')
    assert project.ids() == ["test_it[a-target-short]", "test_it[b-target-short]"]


def test_the_same_engine_twice_is_one_test(project: Project) -> None:
    """A repetition on the command line measures nothing new."""
    project.tests(SPECULATIVE)
    assert project.ids("--specdec-gamma=3,3") == ["test_it[t-draft_model-g3-short]"]


def test_marks_of_module_and_class_are_defaults(project: Project) -> None:
    """The nearer mark wins key by key; what it leaves out comes from further away."""
    project.tests(
        """
        @pytest.mark.specdec(gamma=2)
        class TestAll:
            def test_class(self, specdec, spec_engine, scenario): ...

            @pytest.mark.specdec(gamma=5)
            def test_own(self, specdec, spec_engine, scenario): ...

        def test_module(specdec, spec_engine, scenario): ...
        """
    )
    assert sorted(project.ids()) == [
        "TestAll::test_class[t-draft_model-g2-short]",
        "TestAll::test_own[t-draft_model-g5-short]",
        "test_module[t-draft_model-g3-short]",
    ]


def test_several_marks_of_a_function_add_engines(project: Project) -> None:
    """Each on top of the module's; they do not multiply with each other."""
    project.tests("@pytest.mark.specdec(gamma=2)\n" + gate(method="ngram", draft=None, gamma=6))
    assert sorted(project.ids()) == ["test_it[t-draft_model-g2-short]", "test_it[t-ngram-g6-short]"]


def test_gamma_of_the_command_line_reaches_a_test_that_leaves_it_open(project: Project) -> None:
    """A test that fixes γ keeps its own."""
    project.tests(gate() + gate("test_fixed", gamma=2))
    assert sorted(project.ids("--specdec-gamma=7,8")) == [
        "test_fixed[t-draft_model-g2-short]",
        "test_it[t-draft_model-g7-short]",
        "test_it[t-draft_model-g8-short]",
    ]


def test_without_a_draft_drafting_is_by_lookup(project: Project) -> None:
    """A mark says None where its module names a draft."""
    project.tests(gate(draft=None))
    assert project.ids() == ["test_it[t-ngram-g3-short]"]


def test_target_only_fixtures_ignore_what_concerns_speculation(project: Project) -> None:
    """Both arms share one mark: γ does not multiply the target-only arm."""
    project.tests("@pytest.mark.specdec(gamma=[2, 4])\ndef test_it(specdec, ar_engine, scenario): ...\n")
    assert project.ids() == ["test_it[t-target-short]"]


def test_several_backends_multiply_out(project: Project) -> None:
    """spec_engine runs on each engine that is named, and the ids tell them apart."""
    project.tests(SPECULATIVE)
    ids = project.ids("--specdec-engine=fake,vllm")
    assert (len(ids), len(set(ids))) == (2, 2)


@pytest.mark.parametrize("seed", ["0", "1"])  # by which a set of the two fixtures' names has either order
def test_ids_do_not_depend_on_hashing(project: Project, monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    """Two engine fixtures in one test: the parts of its id have one order in every process, as pytest-xdist demands."""
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    project.tests("def test_it(specdec, ar_engine, spec_engine, scenario): ...\n")
    lines = project.run_afresh("--collect-only", "-q").outlines
    assert "test_it.py::test_it[t-draft_model-g3-t-target-short]" in lines
