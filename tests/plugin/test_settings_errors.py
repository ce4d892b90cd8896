"""A setting or mark that cannot be meant is refused with its place and a remedy, before any engine is loaded."""

from __future__ import annotations

import pytest
from _pytest.config import ExitCode
from tests.plugin.conftest import Project
from tests.plugin.gates import SPECULATIVE, gate


def collection_error(project: Project, *options: str) -> list[str]:
    """The lines that pytest says of a file that it could not collect; the engines were left alone."""
    result = project.run(*options)
    assert result.ret == ExitCode.INTERRUPTED
    assert project.loads() == []
    return result.outlines


def test_a_bad_value_names_the_option(project: Project) -> None:
    """With the value, what it should be, and the setting's own help."""
    project.tests(SPECULATIVE)
    result = project.run("--specdec-gamma=3,x")
    assert result.ret == ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--specdec-gamma: cannot read '3,x' as N[[],N]*; draft tokens a step*"])


def has_message(lines: list[str], message: str) -> bool:
    """Whether the message is there, as it is, without a traceback around it."""
    plain = not [line for line in lines if "plugin.py" in line or line.startswith("E ")]
    return plain and any(message in line for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--specdec-engine=vllm", "--specdec-scenario=scenarios/short.toml"),
            "no target model: give --specdec-target MODEL, or @pytest.mark.specdec(target=…)",
        ),
        (
            ("--specdec-engine=vllm", "--specdec-target=t", "--specdec-draft=d"),
            "no scenario: give --specdec-scenario FILE, or @pytest.mark.specdec(scenario=…)",
        ),
        (
            ("--specdec-target=t", "--specdec-scenario=scenarios/short.toml"),
            "the fixture spec_engine needs to know its engine: give --specdec-engine NAME",
        ),
    ],
)
def test_what_nobody_has_said_names_option_and_mark(project: Project, options: tuple[str, ...], message: str) -> None:
    """Either remedy will do; the engine of spec_engine is left to the command line."""
    project.write("pytest.ini", "[pytest]\n")
    project.tests(SPECULATIVE, header="import pytest\n")
    assert has_message(collection_error(project, *options), message)


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("specdec(gama=3)", "test_it.py::test_wrong: @pytest.mark.specdec: unknown key 'gama'; did you mean 'gamma'?"),
        ("specdec('t')", "test_it.py::test_wrong: @pytest.mark.specdec takes keys only, not 't': e.g. gamma=4"),
        (
            "specdec(scenario='scenarios/shrt.toml')",
            "scenarios/shrt.toml: no such file or folder: did you mean 'short.toml'?",
        ),
        ("specdec(method='none')", "method 'none' does not speculate: use the fixtures"),
        ("specdec(target=3)", "@pytest.mark.specdec: target=3: expected a text or a list of them"),
        ("specdec(gamma='3')", "@pytest.mark.specdec: gamma='3': expected a number of tokens, 1 or more, or a list"),
        ("specdec(options=[1])", "@pytest.mark.specdec: options=[1]: expected a table"),
        ("specdec(dtype='fp16')", "unknown dtype 'fp16'; did you mean 'float16'?"),
        ("specdec(target='constructed:tyni')", "unknown preset 'tyni'; did you mean 'tiny'?"),
        ("specdec(target='constructd:tiny')", "unknown model 'constructd'; did you mean 'constructed'?"),
        (
            "engine('vlm')",
            "@pytest.mark.engine('vlm') must name one of: vllm, transformers, fake; did you mean 'vllm'?",
        ),
        ("specdec(gamma=[])", "no engine is left: target, method and gamma name one or more each, not an empty list"),
        ("specdec(gamma=True)", "@pytest.mark.specdec: gamma=True: expected a number of tokens, 1 or more, or a list"),
        ("multi_gpu(n=True)", "@pytest.mark.multi_gpu(True) must say how many GPUs, e.g. multi_gpu(2)"),
        ("multi_gpu('two')", "@pytest.mark.multi_gpu('two') must say how many GPUs, e.g. multi_gpu(2)"),
    ],
)
def test_a_mark_that_cannot_be_meant_is_refused_before_anything_is_loaded(
    project: Project, mark: str, message: str
) -> None:
    """A gate that could run stands before it, and waits."""
    project.tests(SPECULATIVE + f"\n@pytest.mark.{mark}\n" + gate("test_wrong"))
    assert has_message(collection_error(project), message)


@pytest.mark.parametrize("options", [(), ("-n", "1")])
def test_all_mistakes_of_a_file_are_told_at_once_and_each_of_them_once(
    project: Project, options: tuple[str, ...]
) -> None:
    """So that they are mended at once; that of a module's mark is every test's."""
    tests = (
        gate("test_one", gama=3) + gate("test_two", dtype="fp16") + gate("test_three", dtype="fp16") + gate("test_four")
    )
    project.tests(tests)
    project.write("test_other.py", "import pytest\npytestmark = pytest.mark.specdec(target=3)\n" + gate())
    result = project.run(*options)
    assert result.ret == (ExitCode.TESTS_FAILED if options else ExitCode.INTERRUPTED)
    assert project.loads() == []
    for told in (
        "test_it.py::test_one: @pytest.mark.specdec: unknown key 'gama'; did you mean 'gamma'?",
        "test_it.py::test_two and 1 more: unknown dtype 'fp16'; did you mean 'float16'?",
        "test_other.py::test_it: @pytest.mark.specdec: target=3: expected a text or a list of them",
    ):
        assert len([line for line in result.outlines if told in line]) == 1, told


def test_a_scenario_is_found_from_the_root_or_beside_the_test(project: Project) -> None:
    """The root's own counts where both have one."""
    beside = project.write("sub/beside.toml", (project.path / "scenarios/short.toml").read_text("utf-8"))
    project.write("sub/test_beside.py", "import pytest\n" + gate(scenario="beside.toml"))
    at_root = project.write("beside.toml", "nothing = 1\n")
    assert has_message(collection_error(project, "sub"), "unknown key 'nothing'")
    at_root.unlink()
    project.run("sub").assert_outcomes(passed=1)
    beside.rename(beside.with_name("besides.toml"))
    told = "sub/beside.toml: no such file or folder: did you mean 'besides.toml'?"
    assert any(told in line for line in project.run("sub").outlines)


def test_a_key_of_a_mark_that_is_none_says_nothing(project: Project) -> None:
    """As a test of one's own hands it on where nothing is set."""
    project.tests(gate(options=None, environment=None, method=None))
    project.run().assert_outcomes(passed=1)


@pytest.mark.parametrize("draft", ["constructed:tiny:draft?vocab=900", "constructed:small:draft", "smollm2"])
def test_a_draft_of_another_tokenizer_is_refused_before_it_is_made(project: Project, draft: str) -> None:
    """Both models are named."""
    project.tests(gate(target="constructed:tiny", draft=draft))
    lines = collection_error(project)
    assert has_message(lines, "the draft has another tokenizer than the target: 1024 tokens and ")
    assert has_message(lines, f"(target constructed:tiny, draft {draft})")


def test_a_model_folder_that_does_not_exist_is_named(project: Project) -> None:
    """For engines that read it on this machine."""
    project.tests('@pytest.mark.specdec(target="/no/such/model")\ndef test_it(specdec, vllm_ar, scenario): ...\n')
    assert has_message(collection_error(project), "/no/such/model: no such model: name a folder, a hub id, or")


def test_an_engine_that_nobody_has_is_refused_with_a_suggestion(project: Project) -> None:
    """Where another plugin starts engines, it alone knows its names."""
    project.tests(SPECULATIVE)
    assert has_message(collection_error(project, "--specdec-engine=vlm"), "unknown engine 'vlm'; did you mean 'vllm'?")
