"""The calibration's shapes: the target verifies its own output in steps, or decodes as many rows as a step has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.fake import FakeEngine, clock
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.verdict.noise import PLAIN, ROWS, VERIFYING, Null
from pytest_specdec.verdict.reference import Reference, Sample, calibrate, verify_itself
from pytest_specdec.workloads.workload import Request, Workload

WORKLOAD = Workload("w", tuple(Request((5, 9, at), 64) for at in range(3, 11)), 4)
GAMMA = 3


class Plain(FakeEngine):
    """A target that cannot be asked to rate in steps, as vLLM cannot."""

    score_in_steps = None  # type: ignore[assignment]


def reference_of(engine: FakeEngine) -> Reference:
    """Of the engine's own rounds, and of its steps of verification."""
    together = one_pass(engine, WORKLOAD)
    return verify_itself(calibrate(engine, WORKLOAD, together, Sample(2), clock), engine, WORKLOAD, GAMMA)


def spec(**options: object) -> EngineSpec:
    """A context model on which one token in five is a near-tie."""
    return EngineSpec(backend="fake", target="t", options={"model": "context", "near_tie_rate": 0.2, **options})


def test_near_ties_of_steps_are_what_such_steps_would_choose_otherwise() -> None:
    """The fake rounds every near-tie of every shape the other way here, so each near-tie of the output is one."""
    null = reference_of(FakeEngine(spec(flip_rate=1.0))).calibration.floor.null
    tokens = sum(each.max_tokens for each in WORKLOAD.requests)
    assert (null.shape, null.tokens) == (VERIFYING, tokens)
    assert 0.1 * tokens < null.near_ties < 0.3 * tokens


def test_plain_decoding_that_never_rounds_shows_what_verification_does() -> None:
    """Steps alone have noise: the null has it, and plain decoding has not."""

    class NoisySteps(FakeEngine):
        def score_in_steps(self, requests, outputs, step, at_once):  # type: ignore[no-untyped-def]
            rows = self.score(requests, outputs)
            return tuple(
                tuple(replace(each, argmax=each.argmax + (at == 1)) for at, each in enumerate(row)) for row in rows
            )

    reference = reference_of(NoisySteps(spec(flip_rate=0.0)))
    assert reference.calibration.certified[0][0].scores[0].gap == 0.0
    assert reference.calibration.floor.null == Null(8, 512, VERIFYING)


def test_the_null_of_plain_decoding_is_of_the_batch_that_is_judged() -> None:
    """What is decoded alone goes another way at a near-tie: the floor has its tokens, the null has not."""
    engine = Plain(spec(flip_rate=0.25))
    floor = calibrate(engine, WORKLOAD, one_pass(engine, WORKLOAD), Sample(2), clock).calibration.floor
    tokens = sum(each.max_tokens for each in WORKLOAD.requests)
    assert (floor.null.shape, floor.null.tokens) == (PLAIN, tokens)
    assert sum(count for _, count in floor.histogram) > tokens


def test_without_steps_the_target_decodes_as_many_sequences_as_a_step_has_rows() -> None:
    """Four requests at once of four tokens each are sixteen rows: eight requests are decoded twice."""
    decoded: list[Workload] = []

    class Watched(Plain):
        def prepare(self, workload: Workload) -> None:
            decoded.append(workload)
            super().prepare(workload)

    null = reference_of(Watched(spec())).calibration.floor.null
    assert (null.shape, null.tokens) == (ROWS, 512)
    assert (decoded[-1].concurrency, len(decoded[-1].requests)) == (16, 16)


@pytest.mark.parametrize(
    ("details", "dtype", "unknown"),
    [
        ({"dtype": "torch.float16"}, "float16", ()),
        ({}, "float32", ("the engine does not tell its dtype: float32, as asked for, is taken",)),
    ],
)
def test_the_dtype_is_the_one_that_the_engine_resolved(
    details: dict[str, str], dtype: str, unknown: tuple[str, ...]
) -> None:
    """What was asked for counts only where the engine does not tell."""
    engine = FakeEngine(EngineSpec(backend="fake", target="t", dtype="float32"))
    engine.description = replace(engine.description, details=details)
    floor = reference_of(engine).calibration.floor
    assert (floor.dtype, floor.unknown) == (dtype, unknown)
