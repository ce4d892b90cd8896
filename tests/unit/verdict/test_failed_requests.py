"""A failed request is an engine error, whatever tokens it got; a target that failed on it certifies nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.fake import FakeEngine, clock
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Generation, Run
from pytest_specdec.verdict.equivalence import Calibration, Outcome, Verdict, judge
from pytest_specdec.verdict.reference import Sample, calibrate
from pytest_specdec.verdict.sampling import Drawing
from pytest_specdec.verdict.words import describe_verdict
from pytest_specdec.workloads.workload import Request, Workload

WORKLOAD = Workload("w", (Request((5, 9), 6), Request((8, 12, 4), 6)), 2)
FAILURE = "503 Service Unavailable"
ERROR: Mapping[str, str | None] = {"finish_reason": None, "error": FAILURE}
ABORT: Mapping[str, str | None] = {"finish_reason": "abort"}


class Stumbles(FakeEngine):
    """The fake target; the first request of each of the first `times` passes fails after two tokens."""

    def __init__(self, times: int, how: Mapping[str, str | None] = ERROR) -> None:
        super().__init__(EngineSpec(backend="fake", target="t"))
        self.left, self.how = times, how

    def collect(self) -> Run:
        run = super().collect()
        if not self.left:
            return run
        self.left -= 1
        return replace(run, generations=(with_failure(run.generations[0], self.how), *run.generations[1:]))


def with_failure(answer: Generation, how: Mapping[str, str | None] = ERROR) -> Generation:
    return replace(answer, token_ids=answer.token_ids[:2], chunks=answer.chunks[:2], **how)


def calibration_of(engine: FakeEngine) -> Calibration:
    return calibrate(engine, WORKLOAD, one_pass(engine, WORKLOAD), Sample(2), clock).calibration


def verdict_on(calibration: Calibration, *answers: Generation) -> Verdict:
    def rescore(requests: Sequence[Request], outputs: Sequence[Sequence[int]]):  # type: ignore[no-untyped-def]
        return Stumbles(0).score(requests, outputs)

    return judge(WORKLOAD, calibration, {0: Run(answers, None, 0.0)}, rescore)


@pytest.fixture
def whole() -> tuple[Generation, ...]:
    """What the target gives."""
    return one_pass(Stumbles(0), WORKLOAD).generations


def test_a_failed_request_is_an_engine_error(whole: tuple[Generation, ...]) -> None:
    """Its words are told, and what to do; the other request is still judged."""
    verdict = verdict_on(calibration_of(Stumbles(0)), with_failure(whole[0]), whole[1])
    assert (verdict.outcome, verdict.passes) == (Outcome.ENGINE_ERROR, False)
    assert verdict.counts == {"engine error": 1, "identical": 1}
    told = describe_verdict(verdict, "w")
    assert f"request 0, round 0: engine error: the request failed: {FAILURE}" in told
    assert "what to try: look at what the engine says of the failed requests" in told


def test_a_failed_request_is_never_identical(whole: tuple[Generation, ...]) -> None:
    """Though every token be right, and all of them be there."""
    verdict = verdict_on(calibration_of(Stumbles(0)), replace(whole[0], error="the connection was closed"), whole[1])
    assert verdict.outcome is Outcome.ENGINE_ERROR


def test_both_arms_failing_alike_is_no_agreement(whole: tuple[Generation, ...]) -> None:
    verdict = verdict_on(calibration_of(Stumbles(2)), with_failure(whole[0]), whole[1])
    assert verdict.counts == {"engine error": 1, "identical": 1}


def test_what_the_target_failed_on_is_certified_by_its_answer_at_batch_1(whole: tuple[Generation, ...]) -> None:
    """A failure among others, and an answer alone: that answer stands."""
    calibration = calibration_of(Stumbles(1))
    assert [[each.generation.token_ids for each in several] for several in calibration.certified] == [
        [whole[0].token_ids],
        [whole[1].token_ids],
    ]
    assert verdict_on(calibration, *whole).counts == {"identical": 2}


@pytest.mark.parametrize("how", [ERROR, ABORT], ids=["error", "abort"])
def test_what_the_target_never_answered_is_rescored(
    whole: tuple[Generation, ...], how: Mapping[str, str | None]
) -> None:
    """Every token is rated by the target alone: right ones pass, a wrong one is divergent, and neither is a length."""
    calibration = calibration_of(Stumbles(2, how))
    assert calibration.certified[0] == ()
    assert verdict_on(calibration, *whole).passes
    wrong = replace(whole[0], token_ids=(*whole[0].token_ids[:-1], 3))
    assert verdict_on(calibration, wrong, whole[1]).outcome is Outcome.DIVERGENT


@pytest.mark.parametrize("how", [ERROR, ABORT], ids=["error", "abort"])
def test_a_failed_request_is_no_disagreement_of_the_target_with_itself(how: Mapping[str, str | None]) -> None:
    """The calibration compares what was answered at both batch sizes."""
    floor = calibration_of(Stumbles(1, how)).floor
    assert (floor.disagreements, floor.compared) == (0, 1)


def test_a_sample_that_failed_is_an_error_and_no_sample() -> None:
    """Or its missing tokens would count as unlikely ones."""
    from contextlib import nullcontext

    draw = Drawing(lambda: nullcontext(Stumbles(1)), Request((5, 9), 6, sampling={"temperature": 1.0}), 3, 2)
    with pytest.raises(EngineError, match=f"1 of 2 samples failed: {FAILURE}"):
        draw([1, 2])
