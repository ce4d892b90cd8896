"""Energy of prefill and decode apart, of an engine that draws known power in either: its figures, or why none."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.telemetry import fake_nvml as fake

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Chunk, Generation, Run
from pytest_specdec.metrics.base import base_of, target_alone_part
from pytest_specdec.metrics.phases import NO_LATER_TOKEN, NO_TRACE, OVERLAP, with_phases
from pytest_specdec.metrics.rounds import Plan
from pytest_specdec.metrics.speed import NO_START, NO_TIMES
from pytest_specdec.record import Figure, to_json
from pytest_specdec.record.parts import EnergyPart, TargetAlonePart
from pytest_specdec.telemetry.energy import RemoteMeter, local_meter
from pytest_specdec.telemetry.meter import INSTANT, Instruments, Meter, NoMeter, Subject
from pytest_specdec.telemetry.timing import Timed, time_rounds
from pytest_specdec.workloads.workload import Request, Workload

PREFILL_WATTS, DECODE_WATTS = 700.0, 300.0
PROMPT, LATER = 1000, 20
WORKLOAD = Workload("x", (Request((1,) * PROMPT, LATER + 1),), 1)


class Engine:
    """Prefills and decodes waves of requests, in known times at known power on each card."""

    spec = EngineSpec(backend="clockwork", target="t")

    def __init__(self, clock: Any, cards: list[Any], waves: int, at_once: int, seconds: tuple[float, float]) -> None:
        self._clock, self._cards, self._waves, self._at_once, self._seconds = clock, cards, waves, at_once, seconds
        self.later = LATER

    def prepare(self, workload: Workload) -> None:
        self._clock.sleep(0.0371)

    def run(self) -> None:
        began = self._clock()
        self._answers: list[Generation] = []
        for _ in range(self._waves):
            self._wave(began)
        self._draw(100.0)

    def _wave(self, began: float) -> None:
        prefill_s, decode_s = self._seconds
        sent = self._clock() - began
        self._spend(prefill_s, PREFILL_WATTS)
        chunks = [Chunk(self._clock() - began, 1)]
        for _ in range(self.later):
            self._spend(decode_s / self.later, DECODE_WATTS)
            chunks.append(Chunk(self._clock() - began, 1))
        answer = Generation((1,) * PROMPT, (2,) * (1 + self.later), "length", tuple(chunks), started_s=sent)
        self._answers += [answer] * self._at_once

    def _spend(self, seconds: float, watts: float) -> None:
        self._draw(watts)
        self._clock.sleep(seconds)

    def _draw(self, watts: float) -> None:
        for each in self._cards:
            each.draw(watts, self._clock())

    def collect(self) -> Run:
        return Run(tuple(self._answers), None, 0.0)


def measured(
    *cards: Any,
    seconds: tuple[float, float] = (0.83, 1.27),
    waves: int = 1,
    at_once: int = 4,
    later: int = LATER,
    meter: Meter | None = None,
) -> EnergyPart:
    """Energy over three rounds; each phase's joules are of all cards."""
    clock = fake.FakeClock()
    has = cards or (card(),)
    nvml = fake.FakeNvml(clock, *has)
    instruments = Instruments(lambda: nvml, environment={}, clock=clock, sleep=clock.sleep, ticker=clock.ticker)
    engine: Any = Engine(clock, list(has), waves, at_once, seconds)
    engine.later = later
    used = meter or local_meter(Subject("H100", os.getpgid(0), 1, {}), instruments)
    return time_rounds(Timed(engine, WORKLOAD, clock, used), Plan(3, 0)).energy


def card(uuid: str = "GPU-a", **traits: Any) -> Any:
    return fake.Card(uuid, processes={os.getpid(): 10}, **traits)


def both(energy: EnergyPart) -> tuple[Figure[float], Figure[float]]:
    return energy.prefill_joules_per_prompt_token, energy.decode_joules_per_output_token


@pytest.mark.parametrize(
    "cards",
    [
        pytest.param([{}], id="one card"),
        pytest.param([{"phase": 0.037}], id="another moment of its steps"),
        pytest.param([{}, {"uuid": "GPU-b", "phase": 0.05}], id="two cards out of step"),
        pytest.param([{"has_counter": False}], id="sampled power"),
    ],
)
@pytest.mark.parametrize(("waves", "at_once"), [(1, 4), (1, 1), (3, 1), (2, 4)])
def test_each_phase_has_the_energy_that_it_drew(cards: list[dict[str, Any]], waves: int, at_once: int) -> None:
    """All prefilled together, one request after another, and several waves of some."""
    found = measured(*(card(**each) for each in cards), waves=waves, at_once=at_once)
    prefill, decode = both(found)
    assert prefill.value == pytest.approx(len(cards) * PREFILL_WATTS * 0.83 / (at_once * PROMPT), rel=0.03)
    assert decode.value == pytest.approx(len(cards) * DECODE_WATTS * 1.27 / (at_once * LATER), rel=0.03)
    assert found.method == (INSTANT if "has_counter" in cards[0] else "nvml counter")


def test_sampled_power_that_changes_within_a_phase_is_summed_from_its_samples() -> None:
    """The boundary is where the first token came, not at a share of the round."""
    found = measured(card(has_counter=False), seconds=(1.5, 0.6), at_once=1)
    assert found.prefill_joules_per_prompt_token.value == pytest.approx(PREFILL_WATTS * 1.5 / PROMPT, rel=0.02)
    assert found.decode_joules_per_output_token.value == pytest.approx(DECODE_WATTS * 0.6 / LATER, rel=0.03)


def test_the_phases_add_up_to_the_rounds() -> None:
    """Where nothing else happens in them."""
    found = measured(at_once=1)
    prefill, decode = both(found)
    assert prefill.value is not None
    assert decode.value is not None
    assert 3 * (PROMPT * prefill.value + LATER * decode.value) == pytest.approx(found.joules.value)


def test_a_phase_of_fewer_than_five_steps_has_no_figure() -> None:
    """Each for itself: the other one stays."""
    prefill, decode = both(measured(seconds=(0.49, 1.27)))
    assert prefill.value is None
    assert prefill.reason == (
        "too short to measure: this phase takes 0.49 s at a time, less than 5 steps of 0.1 s; "
        "give longer prompts or answers, or more at once"
    )
    assert decode.value is not None
    prefill, decode = both(measured(seconds=(0.83, 0.31)))
    assert (prefill.value is None, decode.value) == (False, None)


def test_long_prompts_with_answers_of_one_token_have_no_decode() -> None:
    """A prefill alone."""
    prefill, decode = both(measured(later=0))
    assert (prefill.value is None, decode.reason) == (False, NO_LATER_TOKEN)


def test_a_counter_that_is_seldom_seen_is_taken_by_what_was_seen() -> None:
    """Not by the step that it had while idle."""
    seldom = [((0.0, 0.0), (2.1, 962.0))]
    told = with_phases(of(2.1), [Run((answer(0.0, 0.83, 2.1),), None, 2.1)], [seldom])
    assert all(str(each.reason).startswith("too short") for each in both(told))


def of(seconds: float) -> EnergyPart:
    return EnergyPart(joules=Figure(962.0), seconds=Figure(seconds), step_seconds=Figure(0.1))


def answer(sent: float | None, *at_s: float) -> Generation:
    return Generation((1,) * PROMPT, (2,) * len(at_s), "length", tuple(Chunk(at, 1) for at in at_s), started_s=sent)


def steady(seconds: float) -> Any:
    return [[(0.1 * step, 70.0 * step) for step in range(round(10 * seconds) + 1)]]


def of_answers(*answers: Generation, seconds: float = 4.0) -> tuple[Figure[float], Figure[float]]:
    return both(with_phases(of(seconds), [Run(answers, None, seconds)], [steady(seconds)]))


def test_requests_in_different_phases_have_no_figure() -> None:
    """The second is prefilled while the first one decodes, as everywhere in a load with more requests than places."""
    first = answer(0.0, 1.0, *(1.0 + 0.1 * step for step in range(1, 21)))
    second = answer(1.5, 2.5, *(2.5 + 0.1 * step for step in range(1, 15)))
    assert [each.reason for each in of_answers(first, second)] == [OVERLAP, OVERLAP]
    assert [each.reason for each in of_answers(first, replace(second, started_s=0.0))] == [OVERLAP, OVERLAP]


def test_a_last_answer_that_has_but_one_token_overlaps_too() -> None:
    """No pace of decoding is known then."""
    assert of_answers(answer(0.0, 1.0, 1.5), answer(0.0, 2.0))[0].reason == OVERLAP


def test_a_few_tokens_beside_a_prefill_in_pieces_are_let_be() -> None:
    """An engine that prefills by chunks decodes for those that are ready, a token in each step."""
    early = answer(0.0, 1.0, 2.0, *(2.0 + 0.05 * step for step in range(1, 20)))
    late = answer(0.0, 2.0, *(2.0 + 0.05 * step for step in range(1, 20)))
    prefill, decode = of_answers(early, late)
    assert prefill.value == pytest.approx(700 * 2.0 / (2 * PROMPT))
    assert decode.value == pytest.approx(700 * 0.95 / 38)


@pytest.mark.parametrize(
    ("run", "traces", "reason"),
    [
        pytest.param([answer(0.0, 1.0, 2.0)], [], NO_TRACE, id="no steps"),
        pytest.param([answer(0.0)], [steady(4.0)], NO_TIMES, id="no times"),
        pytest.param([answer(None, 1.0, 2.0)], [steady(4.0)], NO_START, id="no submission"),
    ],
)
def test_what_is_not_told_is_null(run: list[Generation], traces: list[Any], reason: str) -> None:
    """With the reason."""
    told = with_phases(of(4.0), [Run(tuple(run), None, 4.0)], traces)
    assert [each.reason for each in both(told)] == [reason, reason]


def test_without_energy_there_is_none_of_a_phase() -> None:
    """A server at a url, or a card that tells nothing: the same reason."""
    why = "the engine has no process of its own here, so nothing tells its energy from that of others"
    assert [each.reason for each in both(measured(meter=NoMeter(why)))] == [why, why]
    lost = both(measured(card(stuck=True)))
    assert all(each.reason == "the energy counter of GPU-a did not move within 2 s" for each in lost)


def test_the_target_s_stand_beside() -> None:
    """As its rounds were measured."""
    energy = replace(of(4.0), prefill_joules_per_prompt_token=Figure(0.1), decode_joules_per_output_token=Figure(2.0))
    rounds = time_rounds(Timed(Engine(clock := fake.FakeClock(), [], 1, 1, (1.0, 1.0)), WORKLOAD, clock), Plan(1, 0))  # type: ignore[arg-type]
    told = target_alone_part(base_of(replace(rounds, energy=energy)))
    assert told.prefill_joules_per_prompt_token.value == 0.1
    assert told.decode_joules_per_output_token.value == 2.0
    assert energy.phases_in_words(TargetAlonePart()) == (
        "0.1 a prompt token in prefill",
        "2 an output token in decode",
    )
    alone = TargetAlonePart(decode_joules_per_output_token=Figure(3.0))
    assert energy.phases_in_words(alone)[1] == "2 an output token in decode (target only 3)"


def test_a_trace_of_another_host_comes_by_way_of_json() -> None:
    """Its points are lists then; the figures are the same."""
    remote = object.__new__(RemoteMeter)
    remote._call = lambda name: to_json([TRACE])  # type: ignore[method-assign,assignment]
    energy, runs = EnergyPart(joules=Figure(TRACE[0][-1][1])), [Run((answer(0.0, 1.0, 1.5, 2.0),), None, 2.0)]
    assert both(with_phases(energy, runs, remote.traces())) == both(with_phases(energy, runs, [TRACE]))
    assert with_phases(energy, runs, [TRACE]).prefill_joules_per_prompt_token.value == pytest.approx(0.7)


def test_what_the_prefix_cache_held_was_not_prefilled() -> None:
    """A tenth of the prompt was; its tokens cost ten times as much as if all had been."""
    energy, found = EnergyPart(joules=Figure(1.0)), replace(answer(0.0, 1.0, 1.5, 2.0), cached_tokens=PROMPT * 9 // 10)
    told = with_phases(energy, [Run((found,), None, 2.0)], [TRACE])
    assert told.prefill_joules_per_prompt_token.value == pytest.approx(7.0)
    none = with_phases(energy, [Run((replace(found, cached_tokens=PROMPT),), None, 2.0)], [TRACE])
    assert none.prefill_joules_per_prompt_token == Figure(None, "the prefix cache held all prompts")


TRACE = [[(0.1 * step, 70.0 * min(step, 10) + 30.0 * max(step - 10, 0)) for step in range(21)]]
