"""Another plugin, or a conftest, adds an engine by one hook; fixtures, gate and record treat it as the package's."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (
            "most_requests=1",
            "2 requests were to be under way at once, and the engine takes 1: the figures are of 1; raise its limit "
            "(max_num_seqs in vLLM) for both arms, or lower concurrency",
        ),
        (
            "cuda_graph_tokens=4",
            "a step of 2 requests has up to 8 tokens, and the engine's CUDA graphs end at 4: larger steps launch each "
            "kernel by itself; raise compilation_config.max_cudagraph_capture_size (vLLM) for both arms",
        ),
        (
            "requests_piecewise=[2]",
            "a step of 2 requests has 8 tokens, for which this vLLM takes a piecewise CUDA graph though a full one is "
            "little larger: add 8 to compilation_config.cudagraph_capture_sizes for both arms",
        ),
    ],
)
def test_what_is_beyond_an_engines_limits_is_warned_of(project: Project, limit: str, told: str) -> None:
    """Two requests at once, each with γ + 1 = 4 tokens in a step, and not one."""
    limited = f"""
        def __init__(self, spec):
            super().__init__(spec)
            self.description = replace(self.description, details=dict(self.description.details, {limit}))
    """
    project.conftest(own_engine(limited))
    project.scenario('source = { format = "random", length = 4 }\ncount = 2\nmax_tokens = 8\nconcurrency = [1, 2]\n')
    project.tests(SPECULATIVE)
    one, two = project.records("--specdec-engine=mine").values()
    assert (told in one.warnings, two.warnings.count(told)) == (False, 1)
