"""The reference: target-only greedy decoding of a workload, measured once, controlled, and kept for the session.

A speculative engine is compared with the target alone on the same workload. The control runs here too, before any
speculative engine is judged: the target at batch 1 and at the workload's concurrency, each output rescored by the
target itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_specdec.engines.engine import Engine
from pytest_specdec.generation import Generation, Run
from pytest_specdec.measure.rounds import Rounds, one_pass
from pytest_specdec.verdict.noise import NoiseFloor, noise_floor
from pytest_specdec.workloads.workload import Workload


@dataclass(frozen=True)
class Reference:
    """Target-only rounds on a workload, the first prompts one at a time (`alone`), and the floor of both."""

    rounds: Rounds
    alone: Run
    floor: NoiseFloor

    def expected(self) -> list[tuple[Generation, ...]]:
        """For each request, the target-only generations that the control has rescored."""
        first = self.rounds.runs[0].generations
        alone: list[tuple[Generation, ...]] = [(generation,) for generation in self.alone.generations]
        alone += [()] * (len(first) - len(alone))
        return [(generation, *more) for generation, more in zip(first, alone, strict=True)]


def control(engine: Engine, workload: Workload, rounds: Rounds, prompts: int) -> Reference:
    """Decode the first `prompts` requests one at a time as well, rescore both, and take the floor."""
    together = rounds.runs[0]
    solo = workload.one_at_a_time(prompts)
    alone = one_pass(engine, solo) if workload.concurrency > 1 else Run(together.generations[:prompts], None, 0.0)
    scores = engine.score(workload.requests, _outputs(together))
    if workload.concurrency > 1:
        scores += engine.score(solo.requests, _outputs(alone))
    disagreements = sum(
        mine.token_ids != theirs.token_ids
        for mine, theirs in zip(together.generations, alone.generations, strict=False)
    )
    floor = noise_floor(scores, engine.spec.dtype, disagreements, len(alone.generations))
    return Reference(rounds, alone, floor)


def _outputs(run: Run) -> Sequence[Sequence[int]]:
    return [generation.token_ids for generation in run.generations]
