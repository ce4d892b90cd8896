"""Asking engines for samples: what is sent, what is counted, and how ratings become a distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import exp, inf

import pytest

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Generation, Ranking, Run, Speculation
from pytest_specdec.verdict.sampling import Drawing, KnownTarget, is_sampled, knows_exactly, rescore
from pytest_specdec.workloads.workload import Request, Workload

REQUEST = Request(
    (7, 8), max_tokens=99, min_tokens=5, ignore_eos=False, stop_token_ids=(2,), sampling={"temperature": 2.0}
)
LOGITS = [3.0, 1.0, -inf]


class Recorder:
    """An engine that answers with the seed's digits, rates by LOGITS after any prefix, and keeps what it was sent."""

    spec = EngineSpec(backend="recorder", target="t", method="ngram", gamma=2)

    def __init__(self, speculates: bool = True) -> None:
        self.workloads: list[Workload] = []
        self.entered = 0
        self._speculation = Speculation(3, 6, 4, (3, 1)) if speculates else None

    @contextmanager
    def enter(self) -> Iterator[Recorder]:
        self.entered += 1
        yield self

    def prepare(self, workload: Workload) -> None:
        self.workloads.append(workload)

    def run(self) -> None:
        """Nothing to decode."""

    def collect(self) -> Run:
        answers = [tuple(map(int, str(request.sampling["seed"]))) for request in self.workloads[-1].requests]
        return Run(tuple(Generation((7, 8), answer, "length") for answer in answers), self._speculation, 0.1)

    def rank(
        self, requests: Sequence[Request], outputs: Sequence[Sequence[int]], most: int
    ) -> list[tuple[Ranking, ...]] | None:
        return [tuple(Ranking(LOGITS, (0, 1, 2), token, True) for token in output) for output in outputs]


def test_each_seed_is_a_request_of_its_own_that_runs_to_its_last_token() -> None:
    engine = Recorder()
    draw = Drawing(engine.enter, REQUEST, tokens=3, concurrency=16)  # type: ignore[arg-type]
    assert draw([123, 456]) == [(1, 2, 3), (4, 5, 6)]
    (workload,) = engine.workloads
    assert workload.concurrency == 16
    assert [dict(request.sampling) for request in workload.requests] == [
        {"temperature": 2.0, "seed": 123},
        {"temperature": 2.0, "seed": 456},
    ]
    assert {(request.max_tokens, request.min_tokens, request.ignore_eos) for request in workload.requests} == {
        (3, 0, True)
    }
    assert {request.stop_token_ids for request in workload.requests} == {()}


def test_what_was_speculated_is_added_up() -> None:
    """So that samples without drafts, or without rejections, can be told."""
    draw = Drawing(Recorder().enter, REQUEST, tokens=3, concurrency=1)  # type: ignore[arg-type]
    draw([111])
    draw([222])
    assert draw.speculation == Speculation(6, 12, 8, (6, 2))
    assert draw.drawn == 2


def test_an_engine_that_does_not_speculate_counted_nothing() -> None:
    draw = Drawing(Recorder(speculates=False).enter, REQUEST, tokens=3, concurrency=1)  # type: ignore[arg-type]
    draw([111])
    assert draw.speculation is None


def test_the_targets_logits_are_the_distribution_at_the_temperature() -> None:
    """After a prefix, by the logits there; one visit to the engine a prefix."""
    engine = Recorder()
    target = KnownTarget(rescore(engine.enter, REQUEST, vocabulary=3))  # type: ignore[arg-type]
    shares = target.shares((1, 0))
    assert shares == pytest.approx({0: 1 / (1 + exp(-1)), 1: exp(-1) / (1 + exp(-1)), 2: 0.0})
    assert (target.shares((1, 0)), engine.entered) == (shares, 1)


def test_a_target_that_tells_no_logits_must_be_sampled() -> None:
    """The error says so."""

    class Silent(Recorder):
        def rank(self, *_: object) -> None:
            return None

    target = KnownTarget(rescore(Silent().enter, REQUEST, vocabulary=3))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="tells no logits: compare with samples of it"):
        target.shares(())


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [({}, False), ({"temperature": 0}, False), ({"temperature": 0.7}, True), ({"top_k": 5}, False)],
)
def test_a_temperature_above_zero_is_sampling(sampling: dict[str, float], expected: bool) -> None:
    assert is_sampled(Request((1,), 1, sampling=sampling)) is expected


@pytest.mark.parametrize(
    ("sampling", "vocabulary", "expected"),
    [
        ({"temperature": 0.7, "seed": 1}, 1024, True),
        ({"temperature": 0.7}, 1025, False),
        ({"temperature": 0.7, "top_p": 0.9}, 64, False),
    ],
)
def test_the_distribution_is_known_where_a_temperature_alone_shapes_a_small_one(
    sampling: dict[str, float], vocabulary: int, expected: bool
) -> None:
    assert knows_exactly(sampling, vocabulary) is expected
