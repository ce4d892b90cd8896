"""Under pytest-xdist each worker's engines get a GPU of their own among those that the caller shows."""

from __future__ import annotations

import re

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import gate

MINE = """
import time

from pytest_specdec import hardware
from pytest_specdec.engines.fake import FakeEngine

CARDS = tuple(hardware.Gpu(f"GPU-{name * 8}", "card", index) for index, name in enumerate("abc"))
hardware.gpus = lambda: hardware.Gpus(hardware.visible_gpus(CARDS, os.environ), "1", None)

worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "alone")

def is_here():
    Path(__file__).with_name(f"{worker}.{run}").touch()

def wait_for_all():  # to have claimed GPUs or been refused them: a worker that ends gives its own back
    is_here()
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    until = time.monotonic() + 600
    while len(list(Path(__file__).parent.glob(f"*.{run}"))) < workers and time.monotonic() < until:
        time.sleep(0.05)

def pytest_runtest_logreport(report):
    if report.when == "call" and worker != "main":
        is_here()

@pytest.hookimpl(specname="pytest_specdec_start_engine")
def pytest_start_mine(spec, settings):
    if spec.backend != "mine":
        return None
    wait_for_all()
    own = os.environ.get("CUDA_VISIBLE_DEVICES")
    with Path(__file__).with_name("gpus.txt").open("a") as notes:
        notes.write(f"{worker} {own} {spec.environment.get('CUDA_VISIBLE_DEVICES')}\\n")
    return FakeEngine(spec)
"""
TWO_TARGETS = gate("test_t", "ar_engine") + gate("test_u", "ar_engine", target="u")


@pytest.fixture
def cards(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A machine of three cards, of which the caller shows the last two; locks of this test alone."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    monkeypatch.setenv("TMPDIR", str(project.path))
    project.conftest(MINE)
    project.tests(TWO_TARGETS)
    return project


def read_notes(project: Project) -> list[list[str]]:
    """For each engine: the worker, what the worker shows, what the engine is shown."""
    return sorted(line.split() for line in (project.path / "gpus.txt").read_text().splitlines())


def test_two_workers_use_two_cards(cards: Project) -> None:
    """Each engine sees one card by its UUID; the workers' own variable stays what the caller said."""
    cards.run_apart("-n", "2", "--specdec-engine=mine").assert_outcomes(passed=2)
    engines = read_notes(cards)
    assert [own for _, own, _ in engines] == ["2,1", "2,1"]
    assert {shown for _, _, shown in engines} == {"GPU-bbbbbbbb", "GPU-cccccccc"}


def test_without_workers_an_engine_sees_what_the_caller_shows(cards: Project) -> None:
    """Nothing is set."""
    cards.run_apart("--specdec-engine=mine").assert_outcomes(passed=2)
    assert {shown for _, _, shown in read_notes(cards)} == {"None"}


def test_an_engine_that_spans_two_cards_gets_both(cards: Project) -> None:
    """One worker is all that two cards can serve, and the second one says so."""
    cards.tests(
        gate("test_t", "ar_engine") + gate("test_u", "ar_engine", target="u", options={"tensor_parallel_size": 2})
    )
    result = cards.run_apart("-n", "2", "--specdec-engine=mine")
    result.assert_outcomes(passed=1, failed=1)
    assert [shown for _, _, shown in read_notes(cards)] == ["GPU-cccccccc,GPU-bbbbbbbb"]
    assert re.search(r"2 visible GPUs are too few for so many workers with 2 each: use -n 1", result.stdout.str())
