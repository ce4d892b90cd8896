"""What keeps unit tests from depending on how fast or busy the machine is: no deadlines, and work that is counted.

Garbage is looked for among what tests make alone.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import pytest_specdec

# Workers of pytest-xdist share the cores: with a thread for each core in each of them, torch waits for itself.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")
MADE_BETWEEN_LOOKS = 100_000
OURS = str(Path(pytest_specdec.__file__).parent)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto` one more than cores: tests wait a quarter of their time for processes that they have started."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_finish() -> None:
    """What was imported by then is not looked at again for garbage: with torch each look takes a quarter second.

    Looks are rare, too: objects of thousands of tokens are made and kept, and each look goes through all of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(MADE_BETWEEN_LOOKS)


@pytest.fixture
def lines_executed() -> Callable[[Callable[[], object]], int]:
    """How many lines of this package some work takes: the same on every machine."""
    return _lines_executed


def _lines_executed(work: Callable[[], object]) -> int:
    count = 0

    def each(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return each if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
