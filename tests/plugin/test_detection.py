"""A green gate says which faults of the KV cache it would have seen, where that was measured on a model of its kind."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from tests.plugin.conftest import Project
from tests.plugin.gates import WRONG_TOKEN, gate

from pytest_specdec.record import from_json
from pytest_specdec.record.parts import DetectionPart

PAIR = {"target": "constructed:tiny?memory=24", "draft": "constructed:tiny:draft?memory=24", "gamma": 3}
GATES = gate("test_pair", **PAIR) + gate("test_red", **PAIR | WRONG_TOKEN) + gate("test_other", gamma=3)
SCENARIO = 'source = { format = "random", length = 33 }\ncount = 2\nmax_tokens = 20\nrounds = 2\n'


def told(project: Project, *options: str) -> dict[str, DetectionPart | None]:
    """What each gate's record says, by the name of its test; red gates have one too."""
    project.run("--junit-xml=out.xml", *options)
    cases = ElementTree.parse(project.path / "out.xml").iterfind(".//testcase")
    found = {case.get("name", "").partition("[")[0]: case.find(".//property[@name='specdec']") for case in cases}
    return {
        name: from_json(json.loads(str(each.get("value")))).detection
        for name, each in found.items()
        if each is not None
    }


def test_a_green_gate_on_a_pair_with_memory_says_what_it_would_have_seen(project: Project) -> None:
    """By the tokens of its answers; a gate that is red, or on another model, says nothing."""
    project.tests(GATES)
    project.scenario(SCENARIO)
    report = project.path / "report.md"
    said = told(project, f"--specdec-report={report}")
    pair = said.pop("test_pair")
    assert said == {"test_red": None, "test_other": None}
    assert pair is not None
    assert (pair.measured_on, pair.tokens) == ("constructed:tiny?memory=24", 16)
    assert report.read_text().count(pair.statement) == 1
