"""What this machine cannot run is skipped by name and with a remedy, or fails where it was required."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest
from tests.plugin.conftest import Project

from pytest_specdec import hardware
from pytest_specdec.hardware import Gpu, Gpus

ONE_GPU = (Gpu("GPU-1", "H100", 0),)
TWO_GPUS = (*ONE_GPU, Gpu("GPU-2", "H100", 1))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine without GPUs, until told otherwise."""
    return Machine(monkeypatch)


class Machine:
    """The GPUs that the plugin believes to be here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.has()

    def has(self, *gpus: Gpu) -> None:
        """From now on these GPUs are visible."""
        found = Gpus(gpus, "1" if gpus else None, None if gpus else "NVML lists no GPU")
        self._monkeypatch.setattr(hardware, "gpus", lambda: found)


@pytest.fixture
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An interpreter in which the package vllm is not installed."""
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "vllm" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    hardware.missing_engine.cache_clear()
    yield
    hardware.missing_engine.cache_clear()


def verdict(project: Project, mark: str, *options: str) -> tuple[str, str]:
    """(outcome, reason) of one test with this mark, as pytest's summary has it; no reason where it passed."""
    project.tests(f"@pytest.mark.{mark}\ndef test_it():\n    pass\n")
    result = project.run("--strict-markers", "-rsfE", *options)
    (outcome,) = [kind for kind in result.parseoutcomes() if kind != "warnings"]
    summary = [line for line in result.outlines if line.startswith(("SKIPPED", "FAILED", "ERROR"))]
    return outcome, summary[0].partition(": " if outcome == "skipped" else " - ")[2] if summary else ""


def test_gpu_skips_where_there_is_none(project: Project, machine: Machine) -> None:
    """The reason says why none is seen, and two ways out."""
    assert verdict(project, "gpu") == (
        "skipped",
        "no NVIDIA GPU: NVML lists no GPU; run on a GPU machine, or deselect with -m 'not gpu'",
    )


def test_gpu_runs_where_there_is_one(project: Project, machine: Machine) -> None:
    """One is enough."""
    machine.has(*ONE_GPU)
    assert verdict(project, "gpu") == ("passed", "")


def test_multi_gpu_counts(project: Project, machine: Machine) -> None:
    """Two wanted, one there: skipped with both numbers; with two it runs."""
    machine.has(*ONE_GPU)
    assert verdict(project, "multi_gpu(2)") == ("skipped", "2 GPUs wanted, 1 visible: H100")
    assert verdict(project, "multi_gpu(n=4)") == ("skipped", "4 GPUs wanted, 1 visible: H100")
    machine.has(*TWO_GPUS)
    assert verdict(project, "multi_gpu(2)") == ("passed", "")


def test_cpu_skips_where_an_engine_would_take_the_gpu(project: Project, machine: Machine) -> None:
    """The reason names the GPU and how to hide it; without a GPU it runs."""
    assert verdict(project, "cpu") == ("passed", "")
    machine.has(*ONE_GPU)
    assert verdict(project, "cpu") == (
        "skipped",
        "engines would use the GPU (H100); hide it with CUDA_VISIBLE_DEVICES=''",
    )


def test_engine_skips_where_its_package_is_missing(project: Project, without_vllm: None) -> None:
    """With the command that installs it."""
    outcome, reason = verdict(project, 'engine("vllm")')
    assert (outcome, reason.partition(";")[0]) == ("skipped", "the package vllm is not installed")
    assert "pip install 'pytest-specdec[vllm]'" in reason


def test_engine_runs_where_its_package_is_there(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest itself stands in for an engine's package: it is certainly installed."""
    monkeypatch.setitem(hardware.INSTALL, "pytest", "pip install pytest")
    assert verdict(project, 'engine("pytest")') == ("passed", "")


def test_an_engine_fixture_needs_no_mark(project: Project, without_vllm: None) -> None:
    """vllm_spec alone says that vLLM is needed."""
    project.tests("def test_it(specdec, vllm_spec, scenario):\n    specdec(vllm_spec, scenario)\n")
    result = project.run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: the package vllm is not installed; pip install *"])


@pytest.mark.parametrize("mark", ["gpu", "multi_gpu(2)"])
def test_require_turns_the_skip_into_a_failure(project: Project, machine: Machine, mark: str) -> None:
    """On a machine that was bought for its GPU, "no GPU" is no success."""
    name = mark.partition("(")[0]
    outcome, reason = verdict(project, mark, f"--specdec-require={name}")
    assert outcome == "errors"
    assert f"--specdec-require={name}: no NVIDIA GPU" in reason or reason.startswith("Failed: --specdec-require")


def test_require_of_an_engine(project: Project, without_vllm: None) -> None:
    """The same for a package; what is not required still skips."""
    assert verdict(project, 'engine("vllm")', "--specdec-require=vllm")[0] == "errors"
    assert verdict(project, 'engine("vllm")', "--specdec-require=gpu")[0] == "skipped"


def test_require_does_not_fail_what_can_run(project: Project, machine: Machine) -> None:
    """It asks for the machine, not for failure."""
    machine.has(*ONE_GPU)
    assert verdict(project, "gpu", "--specdec-require=gpu") == ("passed", "")


def test_every_mark_is_registered(project: Project, machine: Machine) -> None:
    """All pass --strict-markers, on a test with an engine too."""
    project.tests(
        """
        @pytest.mark.gpu
        @pytest.mark.cpu
        @pytest.mark.multi_gpu(2)
        @pytest.mark.engine("fake")
        @pytest.mark.specdec(gamma=2)
        def test_it(specdec, spec_engine, scenario): ...
        """
    )
    project.run("--strict-markers").assert_outcomes(skipped=1)


def test_the_closing_lines_say_why_without_being_asked(project: Project, machine: Machine) -> None:
    """Skips of others stay as quiet as they were; with -rN all do."""
    project.tests("@pytest.mark.gpu\ndef test_it():\n    pass\n")
    assert [line for line in project.run().outlines if "1] " in line and "no NVIDIA GPU: NVML lists" in line] != []
    assert "no NVIDIA GPU" not in project.run("-rN").stdout.str()
    project.tests("@pytest.mark.skip(reason='not today')\ndef test_it():\n    pass\n")
    assert "not today" not in project.run().stdout.str()


ALL_SKIPPED = "nothing ran: every test was skipped"


@pytest.mark.parametrize(
    ("ci", "options", "ended"),
    [
        ("", (), (0, ALL_SKIPPED)),
        ("true", (), (1, ALL_SKIPPED + "; in CI that fails without --specdec-allow-empty")),
        ("true", ("--specdec-allow-empty",), (0, ALL_SKIPPED)),
    ],
)
@pytest.mark.usefixtures("machine")
def test_a_session_in_which_all_was_skipped_says_so(
    project: Project, monkeypatch: pytest.MonkeyPatch, ci: str, options: tuple[str, ...], ended: tuple[int, str]
) -> None:
    """And fails in CI, where nobody reads a green run."""
    monkeypatch.setenv("CI", ci)
    project.tests("@pytest.mark.gpu\ndef test_it():\n    pass\n")
    result = project.run(*options)
    assert (int(result.ret), *(line for line in result.outlines if line.startswith("nothing ran"))) == ended


def test_a_session_in_which_something_ran_is_not_empty(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little."""
    monkeypatch.setenv("CI", "true")
    project.tests("@pytest.mark.thorough\ndef test_it():\n    pass\n\ndef test_other():\n    pass\n")
    result = project.run()
    assert (int(result.ret), ALL_SKIPPED in result.stdout.str()) == (0, False)


def test_a_thorough_test_waits_to_be_asked_for(project: Project) -> None:
    """Skipped by name with the option that runs it; with the option it runs."""
    project.tests("@pytest.mark.thorough\ndef test_long():\n    pass\n", header="import pytest\n")
    assert "takes long: give --specdec-preset=thorough" in project.run("-rs").stdout.str()
    project.run("--specdec-preset=thorough").assert_outcomes(passed=1)
    project.run("--specdec-preset=long").stderr.fnmatch_lines(["*--specdec-preset*'long'*is none of quick, thorough*"])
