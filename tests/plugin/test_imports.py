"""pytest starts fast: heavy packages are imported when an engine needs them, not when tests are collected."""

from __future__ import annotations

from tests.plugin.conftest import Project
from tests.plugin.gates import SPECULATIVE

HEAVY = {"torch", "vllm", "transformers", "pynvml", "rich", "scipy", "aiohttp", "prometheus_client"}
ALL_FIXTURES = """
import pytest

pytestmark = pytest.mark.specdec(target="t", draft="d", scenario="scenarios/short.toml")

@pytest.mark.cpu
def test_engines(specdec, vllm_spec, vllm_ar, transformers_spec, transformers_ar, openai_server, scenario): ...

@pytest.mark.gpu
def test_named(specdec, spec_engine, ar_engine, scenario): ...

@pytest.mark.multi_gpu(2)
@pytest.mark.engine("vllm")
def test_marks(specdec_session): ...
"""
NOTES_MODULES = r"""
import sys

@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    Path(__file__).with_name("modules.txt").write_text("\n".join(sys.modules))
"""


def list_imports(project: Project, *options: str) -> set[str]:
    """The modules that a run in a process of its own has at its end."""
    project.conftest(NOTES_MODULES)
    result = project.run_afresh(*options)
    assert result.ret == 0
    return set((project.path / "modules.txt").read_text().splitlines())


def test_collecting_imports_no_heavy_package(project: Project) -> None:
    """Every fixture and mark is used, and nothing is loaded."""
    project.tests(ALL_FIXTURES, header="")
    modules = list_imports(project, "--collect-only")
    assert "pytest_specdec.workloads.scenario" in modules
    assert modules & HEAVY == set()


def test_a_run_without_the_fixtures_imports_next_to_nothing(project: Project) -> None:
    """The plugin is installed, other tests run: it costs its own file, the settings and how a session is ended."""
    project.write("pytest.ini", "[pytest]\n")
    project.tests("def test_other():\n    pass\n", header="import pytest\n")
    modules = list_imports(project)
    assert modules & (HEAVY | {"pydantic"}) == set()
    assert {name for name in modules if name.split(".")[0] == "pytest_specdec"} == {
        "pytest_specdec",
        "pytest_specdec.plugin",
        "pytest_specdec.fixtures",
        "pytest_specdec.hookspecs",
        "pytest_specdec.interruption",
        "pytest_specdec.errors",
        "pytest_specdec.settings",
    }


def test_a_gate_on_the_fake_engine_imports_no_engine(project: Project) -> None:
    """Neither does the table at the end, beyond rich."""
    project.tests(SPECULATIVE)
    assert list_imports(project) & {"torch", "vllm", "transformers"} == set()
