"""A green gate says which faults of the KV cache it would have seen, where that was measured on a model of its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

GATES = """
pair = pytest.mark.specdec(target="constructed:tiny?memory=24", draft="constructed:tiny:draft?memory=24", gamma=3)

@pair
def test_pair(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)

@pair
@pytest.mark.specdec(speculative_options={"fault": "wrong token"})
def test_red(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)

@pytest.mark.specdec(gamma=3)
def test_other(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)
"""
SCENARIO = 'source = { format = "random", length = 33 }\ncount = 2\nmax_tokens = 20\nrounds = 2\n'


def test_a_green_gate_on_a_pair_with_memory_says_what_it_would_have_seen(project: Project) -> None:
    """By the tokens of its answers; a gate that is red, or on another model, says nothing."""
    project.tests(GATES)
    project.scenario(SCENARIO)
    report = project.path / "report.md"
    records = project.records(f"--specdec-report={report}")
    (pair,) = (record.detection for name, record in records.items() if name.startswith("test_pair"))
    (other,) = (record.detection for name, record in records.items() if name.startswith("test_other"))
    assert other is None
    assert pair is not None
    assert (pair.measured_on, pair.tokens) == ("constructed:tiny?memory=24", 16)
    assert report.read_text().count(pair.statement) == 1
