"""Who is a stranger on a GPU: not the engines that this very process has started."""

from __future__ import annotations

import os
import subprocess
import sys

from pytest_specdec.telemetry.energy import is_own_process


def test_a_child_of_this_process_is_no_stranger() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert is_own_process(child.pid)
    finally:
        child.kill()
        child.wait()


def test_others_and_the_dead_are() -> None:
    assert not is_own_process(os.getppid())
    assert not is_own_process(2**22 + 1)
