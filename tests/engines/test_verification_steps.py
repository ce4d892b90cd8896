"""The target's own output, rated in steps of verification: vLLM's scheduler is told to take a few tokens at a time."""

from __future__ import annotations

import pytest
from tests.engines.test_sampling import changed

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.run.session import Session
from pytest_specdec.workloads.workload import Request, Workload

WATCHED = """
def load(config, load=load):
    backend = load(config)
    scheduler = backend._core.scheduler
    schedule, passes = scheduler.schedule, []

    def watched(*args, **kwargs):
        planned = schedule(*args, **kwargs)
        passes.append(sorted(planned.num_scheduled_tokens.values()))
        return planned

    def take_passes():
        taken = [each for each in passes if each]
        passes.clear()
        return taken

    scheduler.schedule, backend.take_passes = watched, take_passes
    return backend
"""
STEP, AT_ONCE = 5, 2
REQUESTS = tuple(Request((5, 9, *range(at, at + 6)), 12) for at in range(3, 8))  # the last is left alone


@pytest.mark.cpu
@pytest.mark.specdec(target="constructed:tiny", max_model_len=64, environment={"OMP_NUM_THREADS": "1"})
def test_vllm_takes_the_tokens_of_a_step_of_each_sequence_under_way(
    specdec_session: Session, vllm_ar: EngineSpec
) -> None:
    """Never more in one pass, prompts too, nor of one that is left alone; the choices are those of one pass, and the
    next rating is one again. Where prompts would take more passes than decoding, there are no steps."""
    with changed(specdec_session, vllm_ar, WATCHED) as engine:
        outputs = [each.token_ids for each in one_pass(engine, Workload("w", REQUESTS, AT_ONCE)).generations]
        engine._call("take_passes")
        in_steps = engine.score_in_steps(REQUESTS, outputs, STEP, AT_ONCE)
        passes = engine._call("take_passes")
        at_once = engine.score(REQUESTS, outputs)
        whole = engine._call("take_passes")
        too_short = engine.score_in_steps(REQUESTS, [each[:1] for each in outputs], STEP, AT_ONCE)
    assert passes[0] == [STEP] * AT_ONCE
    assert max(map(max, passes)) == STEP
    assert max(map(sum, passes)) == STEP * AT_ONCE
    assert sum(map(sum, passes)) == sum(map(sum, whole)) == 100
    assert whole == [[20] * 5]
    assert too_short is None
    assert in_steps is not None
    assert [[each.argmax for each in row] for row in in_steps] == [[each.argmax for each in row] for row in at_once]
