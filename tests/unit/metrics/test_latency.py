"""Latencies of hand-made chunk sequences, to the digit; what is missing is counted, what contradicts is refused."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_specdec.engines.vllm import VllmBackend, _Answer
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Chunk, Generation, Run
from pytest_specdec.metrics.rounds import Contradiction, Rounds
from pytest_specdec.metrics.speed import (
    NO_START,
    NO_TIMES,
    NO_TOKEN,
    ONE_CHUNK,
    chunk_gaps_s,
    e2e_s,
    itl_s,
    latency_part,
    median_chunk_gap_s,
    percentile,
    refuse_contradictions,
    tpot_s,
    ttft_s,
)
from pytest_specdec.record import Spread


def answer(*chunks: tuple[float, int], started: float | None = 0.0, ids: int | None = None) -> Generation:
    tokens = sum(tokens for _, tokens in chunks) if ids is None else ids
    return Generation((7,), tuple(range(tokens)), "length", tuple(Chunk(*chunk) for chunk in chunks), None, started)


def rounds(*answers: Generation, seconds: float, measured: float | None = None) -> Rounds:
    return Rounds((Run(answers, None, seconds),), (measured or seconds,))


THREE_ONE_FOUR = answer((1.5, 3), (2.0, 1), (3.0, 4), started=0.5)
FOUR_AT_ONCE = answer((1.5, 4), started=0.5)
ONE_TOKEN = answer((1.5, 1), started=0.5)
NOTHING = answer(started=0.5)


def test_chunks_of_3_1_4_have_two_gaps_and_five_inter_token_latencies() -> None:
    """The gap is what a reader waits for, the latency per token what throughput follows from."""
    assert chunk_gaps_s(THREE_ONE_FOUR) == [0.5, 1.0]
    assert itl_s(THREE_ONE_FOUR) == [0.5, 0.25, 0.25, 0.25, 0.25]
    assert sum(itl_s(THREE_ONE_FOUR)) == sum(chunk_gaps_s(THREE_ONE_FOUR))


@pytest.mark.parametrize(
    ("seen", "ttft", "tpot", "e2e"),
    [
        (THREE_ONE_FOUR, 1.0, 0.3, 2.5),
        (FOUR_AT_ONCE, 1.0, None, 1.0),
        (ONE_TOKEN, 1.0, None, 1.0),
        (NOTHING, None, None, None),
        (answer((1.5, 1), (2.0, 1), started=None), None, 0.5, None),
    ],
    ids=["3-1-4", "four at once", "one token", "none", "start unknown"],
)
def test_one_request(seen: Generation, ttft: float | None, tpot: float | None, e2e: float | None) -> None:
    """Tokens that come with the first cost no time after it: four at once have no time per token, rather than zero."""
    assert (ttft_s(seen), tpot_s(seen), e2e_s(seen)) == (ttft, tpot, e2e)


def test_a_record_has_percentiles_with_their_sample_sizes() -> None:
    part = latency_part(rounds(THREE_ONE_FOUR, ONE_TOKEN, seconds=3.0))
    itl = {"p50": 0.25, "p90": 0.4, "p95": 0.45, "p99": 0.49, "n": 5, "missing": 1, "reason": None}
    gap = {"p50": 0.75, "p90": 0.95, "p95": 0.975, "p99": 0.995, "n": 2, "missing": 1, "reason": None}
    assert (asdict(part.itl_s), asdict(part.chunk_gap_s)) == (pytest.approx(itl), pytest.approx(gap))
    assert (part.ttft_s.n, part.tpot_s.n, part.tpot_s.missing) == (2, 1, 1)
    assert part.tokens_per_chunk == {"1": 2, "3": 1, "4": 1}


def test_a_request_without_tokens_is_missing_and_leaves_the_median_alone() -> None:
    """A zero in its place would halve the median."""
    without = latency_part(rounds(THREE_ONE_FOUR, seconds=3.0)).ttft_s
    beside = latency_part(rounds(THREE_ONE_FOUR, NOTHING, seconds=3.0)).ttft_s
    assert beside == replace(without, missing=1)
    assert beside.p50 == 1.0


def test_time_in_the_queue_stands_apart() -> None:
    """It is no part of the time to the first token."""
    part = latency_part(rounds(answer((1.0, 1)), answer((2.0, 1), started=1.0), seconds=2.0))
    assert (part.queue_s.p50, part.ttft_s.p50) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("seen", "key", "reason"),
    [
        (NOTHING, "ttft_s", NO_TOKEN),
        (answer(ids=3), "itl_s", NO_TIMES),
        (answer((1.0, 1), started=None), "e2e_s", NO_START),
        (FOUR_AT_ONCE, "tpot_s", ONE_CHUNK),
    ],
)
def test_a_figure_that_nobody_has_is_null_with_the_reason(seen: Generation, key: str, reason: str) -> None:
    part = latency_part(rounds(seen, seconds=1.6))
    assert getattr(part, key) == Spread(missing=1, reason=reason)


REFUSED: dict[str, tuple[Rounds, int, str]] = {
    "ids and chunks differ": (
        rounds(answer((1.0, 3), ids=15), seconds=1.0),
        1,
        "3 tokens arrived in chunks, but 15 were delivered",
    ),
    "empty chunk": (rounds(answer((1.0, 0)), seconds=1.0), 1, "a chunk without tokens"),
    "backwards": (rounds(answer((1.0, 1), (0.5, 1)), seconds=1.0), 1, "do not follow one another"),
    "before its start": (rounds(answer((1.0, 1), started=1.5), seconds=2.0), 1, "do not follow one another"),
    "after the end": (rounds(answer((2.0, 1)), seconds=1.0), 1, "arrived after 2 s of a run of 1 s"),
    "too early for the throughput": (
        rounds(answer((1.0, 1), (2.0, 9)), seconds=10.0),
        1,
        "by arrivals all 10 tokens took 2 s, by throughput 10 s",
    ),
    "too early in each of two rounds": (
        Rounds(tuple(Run((answer((1.0, 1), (2.0, 9)),), None, 10.0) for _ in range(2)), (10.0, 10.0)),
        1,
        "round 1: by arrivals all 10 tokens took 2 s, by throughput 10 s",
    ),
    "more at once than allowed": (
        rounds(answer((1.0, 1), (3.0, 8)), answer((1.0, 1), (3.0, 8)), seconds=3.0),
        1,
        "latencies need a concurrency of 2",
    ),
    "another clock": (rounds(answer((2.0, 1)), seconds=2.0, measured=0.01), 1, "must be a clock of real time"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_arrivals_that_contradict_the_throughput_are_an_error(case: tuple[Rounds, int, str]) -> None:
    """An engine's error, so that it is never taken for a verdict on tokens."""
    seen, concurrency, message = case
    with pytest.raises(Contradiction, match=message) as refusal:
        refuse_contradictions(seen, concurrency)
    assert isinstance(refusal.value, EngineError)


TWO_TOKENS = answer((0.003, 1), (0.005, 1))
STALLED: dict[str, Rounds] = {
    "13 ms after the last token": rounds(TWO_TOKENS, seconds=0.018),
    "13 ms before the clock stops": rounds(TWO_TOKENS, seconds=0.0051, measured=0.018),
    "a second, in every round": Rounds(tuple(Run((TWO_TOKENS,), None, 1.0) for _ in range(3)), (1.0,) * 3),
    "a minute, in one round": Rounds(
        (Run((TWO_TOKENS,), None, 0.0051), Run((TWO_TOKENS,), None, 60.0)), (0.0051, 60.0)
    ),
}


@pytest.mark.parametrize("seen", STALLED.values(), ids=STALLED.keys())
def test_a_stall_of_the_machine_is_no_contradiction(seen: Rounds) -> None:
    """It makes a run longer and moves no token that has come."""
    refuse_contradictions(seen, 1)
    assert latency_part(seen).e2e_s.p50 == 0.005


def test_what_is_refused_at_concurrency_1_may_be_true_at_2() -> None:
    seen, _, _ = REFUSED["more at once than allowed"]
    refuse_contradictions(seen, 2)
    assert latency_part(seen).e2e_s.p50 == 3.0


def test_percentiles_interpolate_between_the_nearest_values() -> None:
    assert [percentile([1.0, 2.0, 4.0], percent) for percent in (0, 25, 50, 75, 100)] == [1.0, 1.5, 2.0, 3.0, 4.0]
    assert percentile([3.0], 99) == 3.0


def test_the_order_of_requests_does_not_matter() -> None:
    answers = [answer((at, 1)) for at in (3.0, 1.0, 2.0)]
    assert latency_part(rounds(*answers, seconds=3.0)) == latency_part(rounds(*sorted(answers, key=e2e_s), seconds=3.0))


def test_the_step_is_the_median_gap_of_all_requests() -> None:
    runs = rounds(THREE_ONE_FOUR, answer((1.0, 1), (1.2, 1)), seconds=3.0).runs
    assert median_chunk_gap_s(runs) == 0.5
    assert median_chunk_gap_s(rounds(ONE_TOKEN, seconds=2.0).runs) is None


class OneTokenAStep:
    """An engine's core that gives one token to every request under way, and ends an answer after two."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def add_request(self, name: str, prompt: Any, sampling: Any, lora_request: Any) -> None:
        self._given[name] = 0

    def step(self) -> list[Any]:
        self._given = {name: given + 1 for name, given in self._given.items() if given < 2}
        token = [SimpleNamespace(token_ids=[7], finish_reason="length")]
        return [
            SimpleNamespace(request_id=name, finished=given == 2, outputs=token, prompt_token_ids=[5])
            for name, given in self._given.items()
        ]


@pytest.mark.parametrize(("concurrency", "waits"), [(1, True), (2, False)])
def test_vllm_notes_when_a_request_was_submitted(concurrency: int, waits: bool) -> None:
    """Below the number of requests, the second is submitted when the first has ended."""
    backend = VllmBackend(SimpleNamespace(llm_engine=OneTokenAStep()), {"method": "none", "target": "t"})
    sampling = SimpleNamespace(detokenize=False)
    backend._answers = [_Answer({"prompt_ids": [5]}, sampling) for _ in range(2)]
    backend._concurrency = concurrency
    backend.run()
    first, second = (Generation.from_wire(each.wire()) for each in backend._answers)
    assert first.started_s is not None
    assert second.started_s is not None
    assert (second.started_s >= first.chunks[-1].at_s) is waits


@pytest.mark.parametrize(("wire", "started"), [({}, None), ({"started_s": None}, None), ({"started_s": 0}, 0.0)])
def test_a_start_crosses_the_wire(wire: dict[str, Any], started: float | None) -> None:
    plain = {"prompt_ids": [7], "token_ids": [1], "finish_reason": "length", "chunks": [(1.0, 1)], **wire}
    assert Generation.from_wire(plain).started_s == started
