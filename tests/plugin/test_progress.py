"""What is said while engines load and decode, and the table at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

BOTH_ARMS = """
@pytest.mark.specdec(gamma=3, speculative_options={"alpha": 1.0})
def test_speculative(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)

def test_target_only(specdec, ar_engine, scenario):
    specdec(ar_engine, scenario)
"""
TITLE = "speculative decoding: is it exact, is it faster"


def progress(result: pytest.RunResult) -> list[str]:
    """The lines of progress, in order."""
    return [line.strip() for line in result.outlines if line.strip().startswith("specdec: ")]


def table(result: pytest.RunResult) -> list[list[str]]:
    """The rows of the closing table, cell by cell."""
    lines = result.outlines
    start = next(at for at, line in enumerate(lines) if TITLE in line)
    return [line.split() for line in lines[start:] if line.strip().startswith("short")]


def test_loading_and_decoding_are_told_as_they_happen(project: Project) -> None:
    """Which engine loads, when it is ready, and what it decodes; past pytest's capturing."""
    project.tests(BOTH_ARMS)
    said = progress(project.run())
    assert said[0] == "specdec: loading t-target (fake, bfloat16)"
    assert said[1].startswith("specdec: t-target is ready after ")
    assert said[2] == "specdec: t-target decodes short, 2 rounds of 2 requests"
    assert said[3] == "specdec: t-target takes the control of short"
    assert said[4] == "specdec: loading t-draft_model-g3 (fake, bfloat16)"
    assert len(said) == 7


def test_rescoring_is_told(project: Project) -> None:
    """It may take long on a real engine."""
    project.tests(BOTH_ARMS.replace('"alpha": 1.0', '"fault": "wrong token"'))
    assert progress(project.run())[-1] == "specdec: t-target rescores 16 tokens"


def test_a_quiet_run_says_nothing_of_it(project: Project) -> None:
    """-q is quiet; the table, which is the result, stays."""
    project.tests(BOTH_ARMS)
    result = project.run("-q")
    assert progress(result) == []
    assert len(table(result)) == 2


def test_the_table_has_the_verdict_before_the_speed(project: Project) -> None:
    """Target-only first, then what it is compared with: 16 tokens in 16 s, and in 7 s with every draft accepted."""
    project.tests(BOTH_ARMS)
    result = project.run()
    result.stdout.fnmatch_lines(
        ["*scenario*target*engine*method*γ*verdict*tokens/s*speed-up*itl ms*accepted*length*J/token*"]
    )
    assert [row[:9] for row in table(result)] == [
        ["short", "t", "bf16", "fake", "none", "–", "identical", "1.0", "–"],
        ["short", "t", "bf16", "fake", "draft_model", "3", "identical", "2.3", "2.29"],
    ]
    assert table(result)[1][9:12] == ["437.5", "100.0%", "4.00"]


def test_the_notes_say_what_the_columns_mean(project: Project) -> None:
    """And why one of them is empty."""
    project.tests(BOTH_ARMS)
    lines = project.run().outlines
    assert [line for line in lines if line.startswith("speed-up: tokens/s over target-only of the same engine")] != []
    assert [line for line in lines if line.startswith("J/token: ")] != []


def test_a_red_gate_has_its_row(project: Project) -> None:
    """With its verdict, and without a speed-up."""
    project.tests(BOTH_ARMS.replace('"alpha": 1.0', '"fault": "wrong token"'))
    row = table(project.run())[1]
    assert (row[6], row[8]) == ("divergent", "–")


def test_a_dead_drafter_is_marked_red_in_its_row(project: Project) -> None:
    """Its output is identical, and that proves nothing."""
    project.tests(BOTH_ARMS.replace('"alpha": 1.0', '"fault": "dead drafter"'))
    assert table(project.run())[1][6:8] == ["identical,", "red"]


def test_without_a_gate_there_is_no_table(project: Project) -> None:
    """Other people's test runs stay as they were."""
    project.tests("def test_other():\n    pass\n")
    assert TITLE not in project.run().stdout.str()
