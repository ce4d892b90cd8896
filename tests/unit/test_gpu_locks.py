"""Parallel workers hold GPUs of their own: several real processes contend for made-up cards."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_specdec import gpu_locks
from pytest_specdec.engines.fake import FakeEngine
from pytest_specdec.engines.pool import Pool
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineDied, EngineError
from pytest_specdec.gpu_locks import Claim, Placement, claim, count_gpus
from pytest_specdec.hardware import Gpu, visible_gpus

UNTIL_KILLED = 3600.0
CARDS = tuple(Gpu(f"GPU-{letter * 8}", "card", index) for index, letter in enumerate("abcd"))
SPEC = EngineSpec(backend="vllm", target="t")
OTHER_PROCESS = """
import sys, time
from pathlib import Path
from pytest_specdec.gpu_locks import claim
from pytest_specdec.hardware import Gpu

folder, run, wanted, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
cards = [Gpu(uuid, "card", index) for index, uuid in enumerate(sys.argv[5:])]
held = claim(cards, wanted, run, 600.0, folder)
began = time.monotonic()
print(held.visible, flush=True)
time.sleep(seconds)
print(began, time.monotonic(), flush=True)
"""


@pytest.fixture
def others(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes that a test starts; all have ended when it has."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def other(folder: Path, run: str, wanted: int, seconds: float, cards: tuple[Gpu, ...]) -> subprocess.Popen[str]:
    """A process that holds `wanted` cards for so long."""
    arguments = [str(folder), run, str(wanted), str(seconds), *(card.uuid for card in cards)]
    command = [sys.executable, "-c", OTHER_PROCESS, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def holding(process: subprocess.Popen[str]) -> list[str]:
    """The cards of another process, once it has them."""
    assert process.stdout is not None
    return process.stdout.readline().strip().split(",")


def refusal(folder: Path) -> str:
    """Why a third run gets none of two cards without waiting; empty if it does."""
    try:
        claim(CARDS[:2], 1, "three", 0.0, folder).release()
    except EngineError as error:
        return str(error)
    return ""


def test_processes_hold_different_gpus(tmp_path: Path, others: list[subprocess.Popen[str]]) -> None:
    """Four at once on four cards, each with its own."""
    others += [other(tmp_path, "run", 1, UNTIL_KILLED, CARDS) for _ in CARDS]
    assert sorted(card for process in others for card in holding(process)) == [card.uuid for card in CARDS]


def test_one_that_finds_none_free_waits_for_another_run(tmp_path: Path, others: list[subprocess.Popen[str]]) -> None:
    """Three runs for pairs of two cards follow one another and never overlap."""
    others += [other(tmp_path, f"run {number}", 2, 0.2, CARDS[:2]) for number in range(3)]
    times = sorted(tuple(map(float, process.communicate()[0].splitlines()[1].split())) for process in others)
    assert [process.returncode for process in others] == [0] * 3
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times))


def test_a_killed_holder_holds_nothing(tmp_path: Path, others: list[subprocess.Popen[str]]) -> None:
    """The system lets go."""
    others.append(other(tmp_path, "run", 4, UNTIL_KILLED, CARDS))
    holding(others[0])
    with pytest.raises(
        EngineError, match=rf"no 1 GPUs free within 0 s: {CARDS[0].uuid} is held by process {others[0].pid}"
    ):
        claim(CARDS, 1, "another run", 0.0, tmp_path)
    others[0].kill()
    others[0].wait()
    held = claim(CARDS, 4, "another run", 0.0, tmp_path)
    held.release()


def test_who_wants_many_is_not_overtaken(tmp_path: Path, others: list[subprocess.Popen[str]]) -> None:
    """While it waits for both cards, nobody takes the one that is free."""
    first = claim(CARDS[:2], 1, "one", 0.0, tmp_path)
    others.append(other(tmp_path, "two", 2, UNTIL_KILLED, CARDS[:2]))
    deadline = time.monotonic() + 600
    while not (refused := refusal(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "others wait for GPUs" in refused
    first.release()
    assert holding(others[0]) == [card.uuid for card in CARDS[:2]]


def test_too_many_workers_of_one_run_are_told_so_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would wait for one another until the end of the run."""
    held = [claim(CARDS, 2, "run", 0.0, tmp_path) for _ in range(2)]
    monkeypatch.setattr(
        gpu_locks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("it waits"))
    )
    with pytest.raises(EngineError, match="4 visible GPUs are too few for so many workers with 2 each: use -n 2"):
        claim(CARDS, 2, "run", 600.0, tmp_path)
    for each in held:
        each.release()


def test_more_than_there_are_is_refused(tmp_path: Path) -> None:
    """No waiting makes a card."""
    with pytest.raises(EngineError, match="2 GPUs wanted for each worker, 1 visible"):
        claim(CARDS[:1], 2, "run", 60.0, tmp_path)


def test_only_what_the_caller_shows_is_chosen(tmp_path: Path) -> None:
    """In the caller's own order."""
    visible = visible_gpus(CARDS, {"CUDA_VISIBLE_DEVICES": "3,1"})
    held = claim(visible, 2, "run", 0.0, tmp_path)
    assert held.visible == f"{CARDS[3].uuid},{CARDS[1].uuid}"
    held.release()


def test_engines_of_a_worker_get_its_gpus_by_their_environment() -> None:
    """Claimed once, at the first engine; not for one that says its own, is elsewhere, or is none."""
    claims = [Claim(CARDS[:2], ())]
    place = Placement(claims.pop)
    named = replace(SPEC, environment={"CUDA_VISIBLE_DEVICES": "7"})
    untouched = [named, replace(SPEC, gateway="ssh=there"), replace(SPEC, backend="fake")]
    assert [place(spec) for spec in untouched] == untouched
    assert claims
    placed = place(replace(SPEC, environment={"A": "b"}))
    assert placed.environment == {"A": "b", "CUDA_VISIBLE_DEVICES": "GPU-aaaaaaaa,GPU-bbbbbbbb"}
    assert place(placed) == placed
    assert place(SPEC).environment == {"CUDA_VISIBLE_DEVICES": "GPU-aaaaaaaa,GPU-bbbbbbbb"}
    assert claims == []


def test_the_pool_places_what_it_loads_and_still_loads_once() -> None:
    """Target and drafted engine on the same card, found again under the name that was asked for."""
    loaded: list[EngineSpec] = []
    drafted = replace(SPEC, method="draft_model", draft="d", gamma=2)

    def start(spec: EngineSpec) -> FakeEngine:
        loaded.append(spec)
        return FakeEngine(replace(spec))

    pool = Pool(start, Placement(lambda: Claim(CARDS[:1], ())))
    for spec in (SPEC, drafted, SPEC, drafted):
        with pool.using(spec):
            pass
    assert [spec.environment for spec in loaded] == [{"CUDA_VISIBLE_DEVICES": "GPU-aaaaaaaa"}] * 2
    with pytest.raises(EngineDied), pool.using(drafted):
        raise EngineDied("gone")
    pool.awake(drafted)
    assert len(loaded) == 3


@pytest.mark.parametrize(
    ("options", "marks", "wanted"),
    [
        ([], [], 1),
        ([{}], [], 1),
        ([{"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, {}], [3], 4),
        ([{"tensor_parallel_size": 2, "data_parallel_size": 4}], [], 8),
        ([{}], [8], 8),
    ],
)
def test_a_worker_needs_what_its_most_demanding_test_needs(
    options: list[dict[str, int]], marks: list[int], wanted: int
) -> None:
    """Tensor times pipeline times data parallelism, or the mark."""
    assert count_gpus([replace(SPEC, options=each) for each in options], marks) == wanted
