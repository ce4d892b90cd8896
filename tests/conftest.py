"""What the suite and the tests of real engines share: scenarios whose prompts walk a constructed pair's own cycle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_specdec.models import expected_continuation
from pytest_specdec.workloads.scenario import Scenario, load_scenario

WALKED_AGAIN = 4


@pytest.fixture
def walks_of(tmp_path: Path) -> Callable[..., Scenario]:
    """A maker of scenarios whose prompts walk a constructed pair's own cycle and begin it anew.

    So lookup in the prompt finds what comes next: `tokens` of it, and a little more. Further keys are the scenario's.
    """

    def made(target: str, starts: Sequence[int], tokens: int, **keys: int) -> Scenario:
        ahead = [[start, *expected_continuation(target, (start,), tokens + 8)] for start in starts]
        prompts = [[*walk, *walk[:WALKED_AGAIN]] for walk in ahead]
        lines = [f'source = {{ format = "ids", prompts = {prompts} }}', f"max_tokens = {tokens}"]
        file = tmp_path / "walks.toml"
        file.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in keys.items())]))
        return load_scenario(file)

    return made
