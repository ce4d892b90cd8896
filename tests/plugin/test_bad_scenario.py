"""A mistake in a scenario file is told with file, line and key, before anything is loaded."""

from __future__ import annotations

from tests.plugin.conftest import Project
from tests.plugin.gates import gate

BOTH_SCENARIOS = gate(engine="ar_engine", scenario=["scenarios/short.toml", "scenarios/bad.toml"])
SOURCE = 'source = { format = "ids", prompts = [[5, 9], [8, 12, 4]] }\n'


def outcome(project: Project, bad: str) -> list[str]:
    """What is said of a scenario that only its engine refuses; the sound one passes, and there is no traceback."""
    project.scenario(bad, name="bad")
    project.tests(BOTH_SCENARIOS)
    result = project.run()
    assert result.parseoutcomes() == {"passed": 1, "failed": 1}
    assert [line for line in result.outlines if "During handling of" in line or line.startswith(("E ", ">"))] == []
    return result.outlines


def test_a_misspelt_key_is_told_with_its_line_and_a_suggestion(project: Project) -> None:
    """The file, the line, the key as written, and the key that was meant; the sound scenario beside it waits."""
    project.scenario(SOURCE + "max_tokens = 8\nconcurency = 2\n", name="bad")
    project.tests(BOTH_SCENARIOS)
    result = project.run()
    assert (result.parseoutcomes(), project.loads()) == ({"errors": 1}, [])
    said = next(line for line in result.outlines if "bad.toml:3: unknown key 'concurency'" in line)
    assert "did you mean 'concurrency'?" in said


def test_a_prompt_that_does_not_fit_the_context_is_told_before_decoding(project: Project) -> None:
    """The fake engine has room for 512 tokens; prompt and answer together exceed it."""
    lines = outcome(project, SOURCE + "max_tokens = 510\n")
    (said,) = [line for line in lines if line.startswith("prompt 2 of ")]
    assert "bad.toml: 3 + 510 tokens exceed the engine's context of 512: shorten it or raise max_model_len" in said


def test_a_token_id_outside_of_the_vocabulary_is_told(project: Project) -> None:
    """The fake engine knows ids below 103."""
    lines = outcome(project, 'source = { format = "ids", prompts = [[5, 103]] }\nmax_tokens = 8\n')
    assert [line for line in lines if "token id 103 outside of the vocabulary of 103 ids" in line] != []
