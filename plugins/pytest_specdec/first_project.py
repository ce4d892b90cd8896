"""A first project: `pytest-specdec demo` runs one that needs no model, `init` writes a test for one's own models.

The demo is the folder `examples` of the repository, which the wheel holds too. Its red gate is meant to be red, so the
command succeeds where exactly that one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from string import Template
from xml.etree import ElementTree

from pytest_specdec.engines.choice import choose_engines, default_method, refuse_impossible, refuse_missing_method
from pytest_specdec.engines.methods import method_named
from pytest_specdec.engines.vllm_source import names_of_vllm
from pytest_specdec.errors import ConfigurationError
from pytest_specdec.hardware import INSTALL
from pytest_specdec.settings import Settings

HERE = Path(__file__).parent
EXAMPLES = (HERE / "examples", HERE.parents[1] / "examples")
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*", "another-engine")
FORETOLD = {"test_exact": "passed", "test_faulty": "failure"}
LOADED = ("-p", "benchmark", "-p", "pytest_specdec.plugin")
FROM_OUTSIDE = ("SPECDEC_", "PYTEST_", "GITHUB_", "CI")
REPORTS, RESULTS = "bug-reports", "results.xml"
NEXT = """
As foretold: test_exact.py is green, test_faulty.py is red. The red verdict above names the first token that the target
would not have chosen. This shows that fault alone, with exit code 1 for as long as it is there: python {script}
All figures, the report: {report}
What to do next: `pytest-specdec init --engine vllm --target MODEL --draft DRAFT` (or --engine transformers) writes a
test for your own models, and `pytest-specdec doctor` says what this machine can run."""
OTHERWISE = """
Not as foretold: {outcomes}, where {foretold} was meant to be. pytest-specdec is at fault, or
what is installed beside it.
What to do next: file that, with the lines above and what `pytest-specdec doctor --json` says."""


def demo(options: argparse.Namespace) -> int:
    """Write the example into a new folder and run it: 0 if one gate was green and one red, as they are meant to be."""
    folder: Path = options.folder
    write_example(folder)
    report = folder / "report.html"
    run_example(folder, ("--specdec-engine", "fake", "--specdec-report", report.name, "--specdec-repro", REPORTS))
    outcomes, script = read_outcomes(folder / RESULTS), next((folder / REPORTS).glob("*.py"), None)
    if outcomes != FORETOLD or script is None:
        print(OTHERWISE.format(outcomes=outcomes, foretold=FORETOLD))
        return 1
    print(NEXT.format(script=shlex.quote(str(script)), report=report))
    if options.open:
        webbrowser.open(report.absolute().as_uri())
    return 0


def write_example(folder: Path) -> None:
    """Copy the example to where nothing is yet. Raises ConfigurationError."""
    example = next(each for each in EXAMPLES if each.is_dir())
    try:
        shutil.copytree(example, folder, ignore=NOT_COPIED)
    except FileExistsError:
        raise ConfigurationError(f"{folder} is there already, and nothing is overwritten: name a new folder") from None
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from None


def run_example(folder: Path, options: Sequence[str]) -> None:
    """Run pytest there, without what would set it up in another way: other plugins, and settings of the environment."""
    print(f"in {folder}: pytest {' '.join(options)}\n", flush=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FROM_OUTSIDE)}
    command = [sys.executable, "-m", "pytest", *LOADED, f"--junit-xml={RESULTS}", *options]
    subprocess.run(command, cwd=folder, env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, check=False)


def read_outcomes(results: Path) -> dict[str, str]:
    """What became of each test file, in the words of pytest's JUnit XML; nothing where that was not written."""
    cases = ElementTree.parse(results).iter("testcase") if results.exists() else ()
    found = {case.get("classname", ""): [part.tag for part in case] for case in cases}
    bad = ("failure", "error", "skipped")
    return {name: next((tag for tag in tags if tag in bad), "passed") for name, tags in found.items()}


TEST, SCENARIO = "test_speculation.py", "prompts.toml"
FIRST_TEST = Template(
    '''"""Speculation gives exactly what the target alone gives, and its gain is measured: one gate for each γ."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.specdec(
$mark
    scenario=Path(__file__).with_name("$scenario"),
)


def test_target_alone(specdec, ${engine}_ar, scenario):
    """What speculation has to beat."""
    specdec(${engine}_ar, scenario)


def test_speculation_is_exact(specdec, ${engine}_spec, scenario):
    """Every token is the target's own; a key min_speedup of the scenario demands a gain as well."""
    specdec(${engine}_spec, scenario)
'''
)
PROMPTS = """\
# What both arms are asked: replace it by what your users ask, e.g. a file of prompts, and as many at once as you serve.
max_tokens = 64
concurrency = 4
source = { format = "text", prompts = [
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that merges two sorted lists.",
    "Summarize: the committee met on Monday, disagreed about the budget, and adjourned until Friday.",
    "Translate into French: Where is the nearest railway station?",
    "List the planets of the solar system and one fact about each.",
    "Continue: 2, 3, 5, 7, 11, 13,",
    "Write a short letter that asks a landlord to repair the heating.",
    "What is the difference between a process and a thread?",
] }
"""


def init(options: argparse.Namespace) -> int:
    """Write a first test and its scenario for the models that are named, and say how to run it."""
    method = options.method or default_method(options.engine, options.draft).name
    drafted = {"draft": options.draft} if options.draft else {}
    mark = {"target": options.target, **drafted, "method": method, "gamma": options.gamma}
    specs = choose_engines(options.engine, True, [mark], Settings.resolve({}, {}, {}))
    refuse_impossible(specs, False, None)
    if names_of_vllm() is None:
        refuse_missing_method(method_named(mark["method"]).name, options.engine)
    source = {name: json.dumps(each, ensure_ascii=False) if name != "gamma" else each for name, each in mark.items()}
    said = "\n".join(f"    {name}={value}," for name, value in source.items())
    test, scenario = options.folder / TEST, options.folder / SCENARIO
    _write_new({test: FIRST_TEST.substitute(engine=options.engine, mark=said, scenario=SCENARIO), scenario: PROMPTS})
    print(f"wrote {test} and {scenario}")
    print(f"What would run:   pytest {test} --specdec-plan\nRun and keep it:  pytest {test} --benchmark-autosave")
    print(f"The engine, where it is not installed yet: {INSTALL[options.engine]}")
    return 0


def _write_new(files: dict[Path, str]) -> None:
    if there := [str(path) for path in files if path.exists()]:
        raise ConfigurationError(f"{', '.join(there)}: there already, and nothing is overwritten: name another folder")
    if no_folder := [str(path.parent) for path in files if path.parent.exists() and not path.parent.is_dir()]:
        raise ConfigurationError(f"{no_folder[0]} is a file: name a folder")
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
