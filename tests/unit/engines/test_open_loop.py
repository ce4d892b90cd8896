"""Requests are sent at their moments: on an absolute schedule, whatever steps and sleeps take.

The loops are vLLM's, with a core that answers by arithmetic, and the served client's, on an event loop in a clock's
time; the fake engine keeps the same moments on its own clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_specdec.engines import transformers, vllm, worker
from pytest_specdec.engines.fake import FAULTS, TIME, Decoder, FakeEngine, Progress
from pytest_specdec.engines.server import client
from pytest_specdec.engines.server.client import Exchange
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.engines.transformers import TransformersBackend
from pytest_specdec.engines.vllm import VllmBackend
from pytest_specdec.generation import Generation, Run
from pytest_specdec.metrics.load import Flow, flags, send_lags_s
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.metrics.speed import queue_s, ttft_s
from pytest_specdec.workloads.load import at_random, evenly
from pytest_specdec.workloads.workload import Request, Workload

OVERSLEEPS_S = 0.00045
"""What a sleep of 5 ms takes longer, where 200 requests a second become 183.5 if each gap is slept by itself."""


class FakeClock:
    """A clock in the place of the module `time`: sleeping advances it, and always a little too far."""

    def __init__(self, oversleeps_s: float = 0.0) -> None:
        self.now, self.oversleeps_s = 1000.0, oversleeps_s

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.oversleeps_s


class Core:
    """An engine's core that answers each request in one step, which takes as long as `step_s` says of its number."""

    def __init__(self, advance: Callable[[float], None], step_s: Callable[[int], float]) -> None:
        self._advance, self._step_s = advance, step_s
        self._steps = 0
        self._waiting: list[str] = []

    def add_request(self, name: str, prompt: Any, sampling: Any, lora_request: Any) -> None:
        self._waiting.append(name)

    def step(self) -> list[Any]:
        assert self._waiting, "a step with nothing to do"
        self._advance(self._step_s(self._steps))
        self._steps += 1
        done, self._waiting = self._waiting, []
        token = [SimpleNamespace(token_ids=[7], finish_reason="length")]
        return [SimpleNamespace(request_id=name, finished=True, outputs=token, prompt_token_ids=[5]) for name in done]


def backend_of(core: Core) -> VllmBackend:
    llm = SimpleNamespace(llm_engine=core, get_metrics=list, reset_prefix_cache=bool)
    return VllmBackend(llm, {"method": "none", "target": "t"})


def run_loop(
    monkeypatch: pytest.MonkeyPatch, due: Sequence[float], core: Core, concurrency: int | None = None
) -> Rounds:
    """vLLM's loop over requests that are due at these moments."""
    monkeypatch.setattr(vllm, "_sampling", lambda request: SimpleNamespace(detokenize=False))
    backend = backend_of(core)
    backend.prepare([{"prompt_ids": [5]}] * len(due), concurrency or len(due), arrivals_s=list(due))
    backend.run()
    run = Run.from_wire(backend.collect())
    return Rounds((run,), (run.engine_seconds,))


def on_a_fake_clock(
    monkeypatch: pytest.MonkeyPatch,
    due: Sequence[float],
    step_s: Callable[[int], float],
    oversleeps_s: float = 0.0,
    concurrency: int | None = None,
) -> tuple[Generation, ...]:
    clock = FakeClock(oversleeps_s)
    monkeypatch.setattr(vllm, "time", clock)

    def advance(seconds: float) -> None:
        clock.now += seconds

    return run_loop(monkeypatch, due, Core(advance, step_s), concurrency).runs[0].generations


def each_gap_slept(due: Sequence[float], clock: FakeClock) -> list[float]:
    """Row 32's fault: when requests are sent if each gap is slept, and what a sleep took too long is not taken off."""
    start, moments = clock.now, []
    for at, moment in enumerate(due):
        clock.sleep(moment - due[at - 1] if at else 0.0)
        moments.append(clock.now - start)
    return moments


def rate_of(moments: Sequence[float]) -> float:
    return (len(moments) - 1) / (moments[-1] - moments[0])


@pytest.mark.parametrize("due", [evenly(10_000, 200.0), at_random(10_000, 200.0, 1.0, 0)], ids=["constant", "poisson"])
def test_row_32_what_a_sleep_takes_too_long_does_not_add_up(
    monkeypatch: pytest.MonkeyPatch, due: tuple[float, ...]
) -> None:
    """10,000 requests at 200/s are sent at 200/s; sleeping each gap sends 183.5/s, and the flag would say so."""
    answers = on_a_fake_clock(monkeypatch, due, lambda step: 0.0, OVERSLEEPS_S)
    flow = Flow.of(Rounds((Run(answers, None, 60.0),), (60.0,)))
    assert (flow.asked, flow.sent) == (pytest.approx(200, rel=1e-9), pytest.approx(200, rel=0.005))
    assert flags(flow, []) == []
    slow = rate_of(each_gap_slept(due, FakeClock(OVERSLEEPS_S)))
    assert slow == pytest.approx(183.5, abs=0.1)
    assert flags(Flow(200.0, slow, None), []) == ["asked 200 requests/s, sent 183.5: off by -8.3%, more than 1%"]


def stalls_at_step_10(step: int) -> float:
    return 0.1 if step == 10 else 0.001


def test_row_40_a_stall_is_in_the_latencies_of_all_who_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request each 10 ms, and one step of 100 ms: those that were due meanwhile waited 91, 81, … 1 ms longer.

    Counted from when they were sent, nine of the ten would show no wait at all.
    """
    answers = on_a_fake_clock(monkeypatch, evenly(30, 100.0), stalls_at_step_10)
    first_tokens = [round(1000 * (ttft_s(answer) or 0.0), 6) for answer in answers]
    assert first_tokens[:10] == [1.0] * 10
    assert first_tokens[10:21] == [100.0, 91.0, 81.0, 71.0, 61.0, 51.0, 41.0, 31.0, 21.0, 11.0, 1.0]
    assert first_tokens[21:] == [1.0] * 9
    from_sending = [round(1000 * (answer.chunks[0].at_s - (answer.started_s or 0.0)), 6) for answer in answers]
    assert sorted(from_sending) == [1.0] * 29 + [100.0]


def test_row_40_the_lag_of_sending_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst request was sent 90 ms late."""
    answers = on_a_fake_clock(monkeypatch, evenly(30, 100.0), stalls_at_step_10)
    rounds = Rounds((Run(answers, None, 1.0),), (1.0,))
    assert send_lags_s(rounds)[-1] == pytest.approx(0.09)
    (told,) = flags(Flow.of(rounds), send_lags_s(rounds))
    assert told.startswith("requests were sent late: p99 of the send lag 87.1 ms, more than 5 ms")


@pytest.mark.parametrize(("step_s", "oversleeps_s", "excused"), [(0.001, 5.0, True), (5.0, 0.0, False)])
def test_a_sleep_that_is_too_long_is_the_machine_s_and_a_step_the_engine_s(
    monkeypatch: pytest.MonkeyPatch, step_s: float, oversleeps_s: float, excused: bool
) -> None:
    """Ten requests a second, which come late by five seconds: only the step says that the engine does not keep up."""
    answers = on_a_fake_clock(monkeypatch, evenly(30, 10.0), lambda step: step_s, oversleeps_s)
    flow = Flow.of(Rounds((Run(answers, None, 20.0),), (20.0,)))
    assert (flow.sustained, flow.sustained_at_best) == (False, excused)


def test_a_moment_binds_as_well_as_the_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once: of four that are due together two wait for the first step; the last waits for its moment."""
    answers = on_a_fake_clock(monkeypatch, [0.0, 0.0, 0.0, 0.0, 9.0], lambda step: 1.0, concurrency=2)
    assert [answer.started_s for answer in answers] == [0.0, 0.0, 1.0, 1.0, 9.0]
    assert [queue_s(answer) for answer in answers] == [0.0, 0.0, 1.0, 1.0, 0.0]


def test_without_moments_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed load has no schedule, and its generations have none."""
    monkeypatch.setattr(vllm, "_sampling", lambda request: SimpleNamespace(detokenize=False))
    backend = backend_of(Core(lambda seconds: None, lambda step: 0.0))
    backend.prepare([{"prompt_ids": [5]}] * 3, 2)
    backend.run()
    assert {each["scheduled_s"] for each in backend.collect()["generations"]} == {None}


def test_steps_do_not_add_up_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """2000 requests at 1000/s, each with a step of a tenth of a millisecond, are sent at 1000/s within 0.05 %."""
    answers = on_a_fake_clock(monkeypatch, evenly(2000, 1000.0), lambda step: 0.0001, OVERSLEEPS_S)
    assert rate_of([answer.started_s or 0.0 for answer in answers]) == pytest.approx(1000, rel=0.0005)


def test_in_real_time_no_request_is_sent_before_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none is forgotten, in the order in which they are due; how late they are sent is the machine's."""
    rounds = run_loop(monkeypatch, evenly(200, 1000.0), Core(time.sleep, lambda step: 0.0001))
    assert all((queue_s(answer) or 0.0) > -1e-9 for answer in rounds.runs[0].generations)
    moments = [answer.started_s or 0.0 for answer in rounds.runs[0].generations]
    assert moments == sorted(moments)
    assert len(moments) == 200


class Sleeper(selectors.DefaultSelector):
    """Waits on a clock, and for nothing else."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self._clock.sleep(timeout)
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop in a clock's time: what it calls later comes too late by what the clock oversleeps."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(Sleeper(clock))
        self.time = clock.perf_counter


@pytest.mark.parametrize("due", [evenly(10_000, 200.0), at_random(10_000, 200.0, 1.0, 0)], ids=["constant", "poisson"])
def test_row_32_nor_does_it_in_the_served_client(monkeypatch: pytest.MonkeyPatch, due: tuple[float, ...]) -> None:
    """10,000 requests at 200/s are sent at 200/s, none early, each at the first timer after its moment."""
    clock = FakeClock(OVERSLEEPS_S)
    sent: list[float] = []

    async def note(exchange: Exchange) -> None:
        sent.append(clock.now)

    monkeypatch.setattr(client, "time", clock)
    with contextlib.closing(Loop(clock)) as loop:
        loop.run_until_complete(client.on_schedule([Exchange(due=at) for at in due], len(due), note))
    late = [at - 1000.0 - planned for at, planned in zip(sent, due, strict=True)]
    assert -1e-9 < min(late) <= max(late) < OVERSLEEPS_S + 1e-9


def test_one_that_is_due_while_no_place_is_free_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place, answers of 25 ms for requests that come each 10 ms; the last comes after a pause and does not wait."""
    clock = FakeClock()
    sent: list[float] = []

    async def answer(exchange: Exchange) -> None:
        sent.append(round(clock.now - 1000.0, 6))
        await asyncio.sleep(0.025)

    monkeypatch.setattr(client, "time", clock)
    with contextlib.closing(Loop(clock)) as loop:
        exchanges = [Exchange(due=due) for due in (0.0, 0.01, 0.02, 0.2)]
        span = loop.run_until_complete(client.on_schedule(exchanges, 1, answer))
    assert sent == [0.0, 0.025, 0.05, 0.2]
    assert span == (1000.0, pytest.approx(1000.225))


class Stalls(Decoder):
    """Nothing goes on for 100 ms before the second answer."""

    def burst(self, progress: Progress, start: float) -> None:
        TIME.advance(0.1 if progress.index == 1 else 0.0)
        super().burst(progress, start)


def fake_answers(due: Sequence[float], **options: Any) -> tuple[Generation, ...]:
    """One token for each request, by the fake engine, in steps of 1 ms."""
    spec = EngineSpec(backend="fake", target="t", options={"step_seconds": 0.001, **options})
    engine = FakeEngine(spec)
    engine.prepare(Workload("w", tuple(Request((5, 9), 1) for _ in due), len(due), tuple(due)))
    engine.run()
    return engine.collect().generations


def test_the_fake_engine_begins_when_a_request_is_due_or_when_the_one_before_is_done() -> None:
    """It serves one at a time: the third waits for the second."""
    answers = fake_answers([0.0, 0.01, 0.0105, 0.02])
    assert [answer.scheduled_s for answer in answers] == [0.0, 0.01, 0.0105, 0.02]
    assert [answer.started_s for answer in answers] == pytest.approx([0.0, 0.01, 0.011, 0.02])
    assert [ttft_s(answer) for answer in answers] == pytest.approx([0.001, 0.001, 0.0015, 0.001])


def test_row_40_on_the_fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall of 100 ms in the second of requests that come each 10 ms is in the latencies of those behind it."""
    monkeypatch.setitem(FAULTS, "stalls", Stalls)
    waited = [1000 * (ttft_s(answer) or 0.0) for answer in fake_answers(evenly(14, 100.0), fault="stalls")]
    assert waited == pytest.approx([1, 101, 92, 83, 74, 65, 56, 47, 38, 29, 20, 11, 2, 1])


def test_transformers_refuses_requests_that_come_over_time_so_that_the_test_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the words by which a worker tells a refusal from an error."""
    monkeypatch.setitem(sys.modules, f"{worker.BACKEND}transformers", transformers)
    backend = object.__new__(TransformersBackend)
    kind, words = worker.answer(backend.prepare, [], 1, False, [0.0, 0.5])
    assert kind == "unsupported"
    assert "use a closed load" in words
