"""A project whose gates leave every kind of record: green, red, sampled, under open loads, swept, with a fault."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from tests.plugin.conftest import Project

TESTS = """
import pytest

def on(scenario, **more):
    engines = {"target": "t", "draft": "d", "speculative_options": {"alpha": 0.7}}
    return pytest.mark.specdec(scenario=f"scenarios/{scenario}.toml", **{**engines, **more})


@on("short")
def test_target(specdec, ar_engine, scenario):
    specdec(ar_engine, scenario)

@on("short", gamma=(2, 4))
def test_green(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)

@on("short", gamma=3, speculative_options={"fault": "wrong token"})
def test_red(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)

@on("short", gamma=3, speculative_options={"fault": "dies"})
def test_dies(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)

@on("short", gamma=3, speculative_options={"fault": "dead drafter"})
def test_undrafted(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)

@on("paced", gamma=3)
def test_paced(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)

@on("swept", gamma=3)
def test_swept(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)

@on("sampled", gamma=1)
def test_sampled(specdec, spec_engine, scenario):
    specdec(spec_engine, scenario)
"""
REQUESTS = 'source = { format = "random", length = 4 }\ncount = 12\nmax_tokens = 8\nrounds = 2\n'
SCENARIOS = {
    "short": 'source = { format = "ids", prompts = [[5, 9], [8, 12, 4]] }\n'
    "max_tokens = 16\nconcurrency = 2\nrounds = 4\n",
    "paced": REQUESTS
    + 'slo = { ttft_ms = 1000, e2e_ms = 9000 }\nload = { kind = "open", arrivals = "constant", rate = 1.0 }\n',
    "swept": REQUESTS + 'load = { kind = "open", arrivals = "constant", rates = [0.1, 0.2, 0.4] }\n',
    "sampled": REQUESTS + "sampling = { temperature = 0.8 }\n",
}


def every_record(project: Project) -> dict[str, dict[str, Any]]:
    """The records of all its gates as JSON, by the test's name."""
    for name, text in SCENARIOS.items():
        project.scenario(text, name)
    project.tests(TESTS, header="")
    project.run("--junit-xml=out.xml", "--specdec-calibration=2")
    cases = ElementTree.parse(project.path / "out.xml").iterfind(".//testcase")
    told = {str(case.get("name")): case.find(".//property[@name='specdec']") for case in cases}
    return {name: json.loads(str(each.get("value"))) for name, each in told.items() if each is not None}
