"""Another plugin, or a conftest, adds an engine by one hook; fixtures, gate and record treat it as the package's."""

from __future__ import annotations

from tests.plugin.conftest import Project
from tests.plugin.gates import SPECULATIVE, gate, own_engine

NOTES_ITS_COLOUR = """
def __init__(self, spec):
    super().__init__(spec)
    Path(__file__).with_name("colour.txt").write_text(str(spec.options.get("colour")))
"""
MINE = own_engine(NOTES_ITS_COLOUR, 'spec.backend == "mine"')


def test_an_engine_of_a_conftest_runs_through_spec_engine(project: Project) -> None:
    """It is loaded with its target-only arm, judged, and named in the record."""
    project.conftest(MINE)
    project.tests(SPECULATIVE)
    (record,) = project.records("--specdec-engine=mine").values()
    assert (record.asked.engine, record.gate, record.verdict.outcome) == ("mine", "green", "identical")
    assert project.loads() == ["t-target", "t-draft_model-g3"]


def test_its_options_reach_it(project: Project) -> None:
    """The mark's options pass through as they are."""
    project.conftest(MINE)
    project.tests(gate(options={"colour": "green"}))
    project.run("--specdec-engine=mine").assert_outcomes(passed=1)
    assert (project.path / "colour.txt").read_text() == "green"


def test_an_engine_that_is_not_its_own_is_left_to_others(project: Project) -> None:
    """The hook says None to the backend fake, and the package answers."""
    project.conftest(MINE)
    project.tests(SPECULATIVE)
    (record,) = project.records().values()
    assert (record.asked.engine, record.gate) == ("fake", "green")
    assert not (project.path / "colour.txt").exists()


def test_one_test_runs_on_both(project: Project) -> None:
    """Side by side in one session, each against its own target-only arm."""
    project.conftest(MINE)
    project.tests(SPECULATIVE)
    project.run("--specdec-engine=fake,mine").assert_outcomes(passed=2)
    assert project.loads() == ["t-target", "t-draft_model-g3"] * 2


def test_it_is_judged_like_the_others(project: Project) -> None:
    """A fault in an engine from outside is a red gate too."""
    project.conftest(MINE)
    project.tests(gate(speculative_options={"fault": "wrong token"}))
    project.run("--specdec-engine=mine").assert_outcomes(failed=1)


def test_an_engine_that_takes_fewer_requests_than_are_asked_for_is_warned_of(project: Project) -> None:
    """The others wait in it: of two at once where it takes one, and not of one."""
    takes_one = """
        def __init__(self, spec):
            super().__init__(spec)
            details = {**self.description.details, "most_requests": 1}
            self.description = replace(self.description, details=details)
    """
    project.conftest(own_engine(takes_one))
    project.scenario('source = { format = "random", length = 4 }\ncount = 2\nmax_tokens = 8\nconcurrency = [1, 2]\n')
    project.tests(SPECULATIVE)
    one, two = project.records("--specdec-engine=mine").values()
    assert not [each for each in one.warnings if "at once" in each]
    assert [each for each in two.warnings if "at once" in each] == [
        "2 requests were to be under way at once, and the engine takes 1: the figures are of 1; raise its limit "
        "(max_num_seqs in vLLM) for both arms, or lower concurrency"
    ]


def test_steps_larger_than_the_engines_cuda_graphs_are_warned_of(project: Project) -> None:
    """Two requests of γ + 1 = 4 tokens where graphs end at 4; not one request, and not the target's two of one."""
    ends_at_four = """
        def __init__(self, spec):
            super().__init__(spec)
            details = {**self.description.details, "cuda_graph_tokens": 4}
            self.description = replace(self.description, details=details)
    """
    project.conftest(own_engine(ends_at_four))
    project.scenario('source = { format = "random", length = 4 }\ncount = 2\nmax_tokens = 8\nconcurrency = [1, 2]\n')
    project.tests(SPECULATIVE)
    one, two = project.records("--specdec-engine=mine").values()
    assert not [each for each in one.warnings if "graphs" in each]
    assert [each for each in two.warnings if "graphs" in each] == [
        "a step of 2 requests has up to 8 tokens, and the engine's CUDA graphs end at 4: larger steps launch each "
        "kernel by itself; raise compilation_config.max_cudagraph_capture_size (vLLM) for both arms"
    ]
