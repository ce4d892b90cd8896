"""What the suite and the tests of real engines share: scenarios whose prompts walk a constructed pair's own cycle.

What tests start prints without colours, whatever the terminal or tox says of them. vLLM looks up n-grams in one numba
thread, but numba starts as many as there are cores, and they wait for one another where a core is busy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_specdec.models import expected_continuation, parse
from pytest_specdec.workloads.scenario import Scenario, load_scenario

for colours in ("FORCE_COLOR", "PY_COLORS"):
    os.environ.pop(colours, None)
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

WALKED_AGAIN = 4  # tokens beyond those that the next one depends on
ORDINARY = range(3, 1000)  # ids of every constructed pair that are no special ones
STRIDE = 31


@pytest.fixture
def walks_of(tmp_path: Path) -> Callable[..., Scenario]:
    """A maker of scenarios whose prompts walk a constructed pair's own way and begin it anew.

    So lookup in the prompt finds what comes next: `tokens` of it, and a little more. Of a pair with memory the new
    beginning is as long as what it reads back. Further keys are the scenario's.
    """

    def made(target: str, starts: Sequence[int], tokens: int, **keys: int) -> Scenario:
        read_back = reach_of(target)
        begun = [
            (start, *(ORDINARY[(start + STRIDE * step) % len(ORDINARY)] for step in range(read_back)))
            for start in starts
        ]
        ahead = [[*each, *expected_continuation(target, each, tokens + 8 + read_back)] for each in begun]
        prompts = [[*walk, *walk[: WALKED_AGAIN + read_back]] for walk in ahead]
        lines = [f'source = {{ format = "ids", prompts = {prompts} }}', f"max_tokens = {tokens}"]
        file = tmp_path / "walks.toml"
        file.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in keys.items())]))
        return load_scenario(file)

    return made


def reach_of(target: str) -> int:
    """How far back a constructed target reads, 0 without memory."""
    memory = parse(target).memory
    return memory.reach if memory is not None else 0
