"""The speed-up: between equal arms only, predicted by a model that the fake obeys, taken apart, and where it ends."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from pytest_specdec.engines.fake import FakeEngine, clock
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Chunk, Generation, Run, Speculation
from pytest_specdec.metrics.acceptance import acceptance_part
from pytest_specdec.metrics.base import TARGET_NOT_TIMED
from pytest_specdec.metrics.rounds import IS_BASELINE, NO_STEPS, NOT_TIMED, Contradiction, Plan, Rounds
from pytest_specdec.metrics.speed import latency_part
from pytest_specdec.metrics.speedup import (
    NO_ALPHA,
    NO_ENERGY,
    NO_STEP,
    NOISY_FIT,
    NONE_MEASURED,
    ONE_GAMMA,
    Arm,
    Gain,
    Pace,
    StepCost,
    advice,
    break_even_alpha,
    break_even_concurrency,
    decompose,
    expected_speedup,
    expected_tokens,
    explain_in_hindsight,
    over_target,
    speedup_part,
)
from pytest_specdec.record import Figure, Record, missing
from pytest_specdec.record.parts import AskedPart, EnergyPart, EnginePart, SpeedupPart, TargetAlonePart
from pytest_specdec.telemetry.timing import Timed, time_rounds
from pytest_specdec.workloads.workload import Request, Workload

WORKLOAD = Workload("short", tuple(Request((start, 5), max_tokens=200) for start in (3, 40)), 1)
PLAIN = EngineSpec(backend="fake", target="t", options={"model": "context", "near_tie_rate": 0.0, "context": 512})


def fake(gamma: int, draft_seconds: float = 0.25) -> Arm:
    """An arm of the fake engine: a step takes 1 s, a draft `draft_seconds`, α is 0.8; γ 0 is the target alone."""
    options = {**PLAIN.options, "draft_seconds": draft_seconds}
    spec = replace(PLAIN, options=options, **({"method": "draft_model", "draft": "d", "gamma": gamma} if gamma else {}))
    return Arm(time_rounds(Timed(FakeEngine(spec), WORKLOAD, clock), Plan(1, 0)), gamma, "bfloat16")


def arm(*tokens: int, seconds: float = 10.0, gamma: int = 0, step: float = 1.0, tries: bool = True) -> Arm:
    """A round of requests of so many tokens, one a step."""
    counted = Speculation(10, 10 * gamma, 5, (5, *(0,) * (gamma - 1)) if tries else ()) if gamma else None
    answers = tuple(
        Generation((7,), (1,) * count, "length", tuple(Chunk(step * (at + 1), 1) for at in range(count)))
        for count in tokens
    )
    return Arm(Rounds((Run(answers, counted, seconds),), (seconds,)), gamma, "bfloat16")


def with_energy(arm: Arm, joules_per_token: float, *gpus: str) -> Arm:
    """The same arm with a meter's word on it."""
    energy = EnergyPart(joules_per_token=Figure(joules_per_token), method="nvml counter", scope=gpus)
    return replace(arm, rounds=replace(arm.rounds, energy=energy))


def record(arm: Arm, target: Arm) -> Record:
    """Of a gate that has measured these."""
    return Record(
        asked=AskedPart(method="draft_model", gamma=arm.gamma),
        speedup=speedup_part(arm, target),
        acceptance=acceptance_part(arm.rounds, arm.gamma),
        energy=arm.rounds.energy,
        target_alone=TargetAlonePart(joules_per_token=target.rounds.energy.joules_per_token),
    )


def explained(ours: Arm, target: Arm, *others: Arm) -> SpeedupPart:
    """The first one's, where a session has measured the others too."""
    return explain_in_hindsight([record(each, target) for each in (ours, *others)])[0].speedup


@pytest.mark.parametrize(
    "other",
    [
        {"asked": AskedPart(method="draft_model", gamma=2, sweep_key="b")},
        {"engine": EnginePart(versions={"vllm": "0.26"})},
    ],
)
def test_gates_of_other_options_or_versions_explain_nothing(other: dict[str, Any]) -> None:
    """What differs in more than γ is no sweep."""
    target = fake(0)
    ours, theirs = record(fake(4), target), replace(record(fake(2), target), **other)
    assert explain_in_hindsight([ours, theirs])[0].speedup.model.predicted.reason == ONE_GAMMA


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 0.999])
def test_expected_tokens_are_the_geometric_sum(alpha: float) -> None:
    assert expected_tokens(alpha, 4) == pytest.approx((1 - alpha**5) / (1 - alpha))


def test_drafts_that_are_always_accepted_give_all_of_them_and_a_bonus() -> None:
    assert (expected_tokens(1.0, 4), expected_speedup(1.0, 4, 0.25)) == (5.0, 2.5)


def test_the_model_recovers_what_the_fake_engine_was_told() -> None:
    """A draft costs a quarter of a step, verifying one step: the line through γ = 2 and 4 must say so."""
    part = explained(fake(4), fake(0), fake(2))
    assert (
        part.model.draft_step_s.value,
        part.model.verify_step_s.value,
        part.model.target_step_s.value,
    ) == pytest.approx((0.25, 1.0, 1.0))
    assert part.model.acceptance_per_token.value == pytest.approx(0.8, abs=0.1)
    assert part.model.predicted.value == pytest.approx(part.model.predicted_with_verify_cost.value)
    assert part.model.predicted.value == pytest.approx(part.ratio.value, rel=0.1)
    assert part.model.residual.value == pytest.approx(part.ratio.value - part.model.predicted.value)


def test_what_a_step_costs_is_its_mean_over_the_rounds() -> None:
    """Chunks come a second apart in all arms; what takes a round two and three times as long lies between them."""
    part = explained(arm(8, gamma=4, seconds=24.0), arm(8, seconds=8.0), arm(8, gamma=2, seconds=16.0))
    assert (part.model.draft_cost_ratio, part.model.verify_cost_ratio) == (Figure(0.5), Figure(1.0))


def test_the_residual_is_over_the_measured_cost_of_verifying() -> None:
    """Steps of 2.5 and 3.5 target steps: verifying costs 1.5 of them, and not the paper's one."""
    part = explained(arm(8, gamma=4, seconds=28.0), arm(8, seconds=8.0), arm(8, gamma=2, seconds=20.0))
    ratio, model = part.ratio.value, part.model
    assert model.verify_cost_ratio == Figure(1.5)
    assert model.residual.value == pytest.approx(ratio - model.predicted_with_verify_cost.value)
    assert model.residual.value != pytest.approx(ratio - model.predicted.value)


def test_the_fake_engine_tells_when_each_request_began() -> None:
    """One after another: the second waits for the first, and that is no part of its first token's time."""
    part = latency_part(fake(0).rounds)
    assert (part.queue_s.p50, part.ttft_s.p99, part.e2e_s.p50) == (100.0, 1.0, 200.0)


@pytest.mark.parametrize(("draft_seconds", "best"), [(0.01, 14), (2.0, 0)])
def test_the_best_gamma_follows_the_draft_cost(draft_seconds: float, best: int) -> None:
    """Nearly free drafts ask for many; drafts that cost two steps of the target for none."""
    part = explained(fake(4, draft_seconds), fake(0), fake(2, draft_seconds))
    assert part.model.best_gamma_latency.value == pytest.approx(best, abs=2)


def test_the_best_gamma_has_the_cheapest_tokens() -> None:
    """Against every γ by hand: α = 0.8, a draft costs 0.1 of a step."""
    speedups = {gamma: expected_speedup(0.8, gamma, 0.1) for gamma in range(17)}
    assert StepCost(1.0, 0.1).best_gamma(0.8, 1.0) == max(speedups, key=speedups.__getitem__) == 6


def test_energy_has_a_best_gamma_of_its_own() -> None:
    """Drafting that takes little time may take much energy; no time is lost, but each joule counts."""
    rounds = {gamma: fake(gamma, 0.01) for gamma in (0, 2, 4)}
    joules = {0: 10.0, 2: 30.0, 4: 50.0}
    told = {}
    for gamma, each in rounds.items():
        pace = Pace.of(each.rounds)
        assert pace is not None
        told[gamma] = with_energy(each, joules[gamma] / pace.length)
    part = explained(told[4], told[0], told[2])
    assert part.model.best_gamma_energy == Figure(0)
    assert part.model.best_gamma_latency.value > 4
    assert "best for energy is not to speculate" in advice(part.model)


def chunked(size: int, gap: float, gamma: int = 0) -> Arm:
    """A round of one request whose 24 tokens come in chunks of `size`, one each `gap` seconds."""
    chunks = tuple(Chunk(gap * (at + 1), size) for at in range(24 // size))
    places = (8, 6, 5)[:gamma]
    counted = Speculation(10, 10 * gamma, sum(places), places) if gamma else None
    run = Run((Generation((7,), (1,) * 24, "length", chunks),), counted, gap * len(chunks))
    return Arm(Rounds((run,), (run.engine_seconds,)), gamma, "bfloat16")


def test_a_target_s_chunk_of_two_tokens_costs_two_of_them() -> None:
    """Drafting was measured to save energy: by a chunk at the price of one token it would be told not to."""
    target = with_energy(chunked(2, 1.0), 1.0)
    part = explained(with_energy(chunked(3, 1.2, 1), 0.8), target, with_energy(chunked(4, 1.4, 3), 0.85))
    assert part.model.best_gamma_energy == Figure(3)


def test_energy_that_was_not_measured_gives_no_gamma() -> None:
    part = explained(fake(4), fake(0), fake(2))
    assert part.model.best_gamma_energy == Figure(None, NO_ENERGY)


def test_a_least_squares_line_goes_between_noisy_points() -> None:
    assert StepCost.fit([(1, 1.1), (2, 1.4), (3, 1.7)]) == StepCost(pytest.approx(0.8), pytest.approx(0.3))
    assert StepCost.fit([(1, 1.0), (2, 2.0), (3, 1.0)]) == StepCost(pytest.approx(4 / 3), 0.0)
    assert StepCost.fit([(2, 1.0), (2, 1.2)]) is None


@pytest.mark.parametrize(("gamma", "cost", "alpha"), [(1, 1.5, 0.5), (4, 2.0, 0.519), (4, 6.0, None), (4, 0.9, 0.0)])
def test_a_round_pays_from_some_acceptance_on(gamma: int, cost: float, alpha: float | None) -> None:
    found = break_even_alpha(gamma, cost)
    assert found == (alpha if alpha is None else pytest.approx(alpha, abs=0.001))


def test_a_change_is_the_product_of_its_parts() -> None:
    """Twice the tokens, three a step instead of one, and each step half as long again: as slow as before."""
    parts = decompose(Pace(2, 60, 60, 30.0), Pace(2, 120, 40, 30.0))
    assert asdict(parts) == pytest.approx(
        {"output_length": 2.0, "tokens_per_step": 1 / 3, "step_time": 1.5, "seconds_per_request": 1.0}
    )


def test_the_parts_of_a_measured_speedup_multiply_to_it() -> None:
    part = speedup_part(fake(4), fake(0))
    assert part.decomposition.value.output_length == 1.0
    assert part.decomposition.value.seconds_per_request == pytest.approx(1 / part.ratio.value)


def test_totals_are_compared_and_not_a_mean_of_ratios() -> None:
    """Twice as fast on 10 tokens and as fast on 90: 100 tokens in 95 s instead of 100 s, not one and a half."""
    seconds = {"target": (10.0, 90.0), "ours": (5.0, 90.0)}
    ours, target = (
        replace(base, rounds=Rounds((base.rounds.runs[0],) * 2, seconds[name]))
        for name, base in (("ours", arm(5, 5, gamma=1)), ("target", arm(5, 5)))
    )
    assert speedup_part(ours, target).ratio.value == pytest.approx(100 / 95)


UNEQUAL: dict[str, tuple[Arm, Arm, str]] = {
    "gpu": (
        with_energy(arm(5, gamma=2), 1.0, "GPU-a"),
        with_energy(arm(5), 1.0, "GPU-b"),
        "different GPUs: GPU-a, and GPU-b for target-only",
    ),
    "dtype": (replace(arm(5, gamma=2), dtype="float32"), arm(5), "float32, and bfloat16 for target-only"),
    "tokens": (arm(5, 4, gamma=2), arm(5, 5), "different numbers of tokens to the same requests: 9, and 10 a round"),
    "tokens swapped": (arm(5, 4, gamma=2), arm(4, 5), "different numbers of tokens to the same requests"),
    "untimed": (replace(arm(5, gamma=2), rounds=Rounds(arm(5, gamma=2).rounds.runs, ())), arm(5), NOT_TIMED),
    "target untimed": (arm(5, gamma=2), replace(arm(5), rounds=Rounds(arm(5).rounds.runs, ())), TARGET_NOT_TIMED),
}


@pytest.mark.parametrize("case", UNEQUAL.values(), ids=UNEQUAL.keys())
def test_unequal_arms_give_no_speedup(case: tuple[Arm, Arm, str]) -> None:
    ours, target, reason = case
    part = speedup_part(ours, target)
    assert part.ratio.value is None
    assert reason in part.ratio.reason


def test_equal_arms_do() -> None:
    """What the unequal ones are measured against."""
    assert speedup_part(arm(5, gamma=2, seconds=5.0), arm(5, seconds=10.0)).ratio.value == 2.0


def test_energy_stands_over_that_of_the_target_alone() -> None:
    """Half of its joules a token; below its own rate or not, under an open load too."""
    ours, target = with_energy(arm(5, gamma=2), 1.0, "GPU-a"), with_energy(arm(5), 2.0, "GPU-a")
    assert over_target(ours, target).over_target == Figure(0.5)


UNCOMPARED: dict[str, tuple[Arm, Arm | None, str]] = {
    "target-only": (arm(5), None, IS_BASELINE),
    "gpu": (with_energy(arm(5, gamma=2), 1.0, "GPU-a"), with_energy(arm(5), 1.0, "GPU-b"), "different GPUs"),
    "tokens": (with_energy(arm(4, gamma=2), 1.0), with_energy(arm(5), 1.0), "different numbers of tokens"),
    "no energy": (with_energy(arm(5, gamma=2), 1.0), arm(5), "the target-only baseline has no energy"),
}


@pytest.mark.parametrize("case", UNCOMPARED.values(), ids=UNCOMPARED.keys())
def test_unequal_arms_give_no_ratio_of_energy(case: tuple[Arm, Arm | None, str]) -> None:
    ours, target, reason = case
    ratio = over_target(ours, target).over_target
    assert ratio.value is None
    assert reason in ratio.reason


def test_arms_of_different_requests_are_an_error() -> None:
    """Two lines beside three: what pairs up would still give a number."""
    with pytest.raises(Contradiction, match=r"arms of \[2\] and \[3\] requests"):
        speedup_part(arm(5, 5, gamma=2), arm(5, 5, 5))


def test_target_only_is_the_baseline() -> None:
    part = speedup_part(arm(5), None)
    assert part == missing(SpeedupPart, IS_BASELINE)


UNPREDICTED: dict[str, tuple[Arm, Arm, list[Arm], str]] = {
    "one gamma": (arm(5, gamma=2), arm(5), [arm(5, gamma=2)], ONE_GAMMA),
    "no positions": (arm(5, gamma=2, tries=False), arm(5), [arm(5, gamma=4)], NO_ALPHA),
    "one token": (arm(1, gamma=2), arm(1), [], NO_STEP),
    "faster with more drafts": (arm(5, gamma=2, step=1.5), arm(5), [arm(5, gamma=4, step=1.2)], NOISY_FIT),
}


@pytest.mark.parametrize("case", UNPREDICTED.values(), ids=UNPREDICTED.keys())
def test_what_cannot_be_predicted_says_why(case: tuple[Arm, Arm, list[Arm], str]) -> None:
    """The measured speed-up stands all the same, and the advice says what is missing."""
    ours, target, sweep, reason = case
    part = explained(ours, target, *sweep)
    assert part.model.predicted == Figure(None, reason)
    assert part.ratio.value == 1.0
    assert advice(part.model).endswith(reason)


def test_an_engine_that_does_not_stream_has_no_decomposition() -> None:
    silent = Rounds((Run((Generation((7,), (1, 2), "length"),), None, 1.0),), (1.0,))
    part = speedup_part(Arm(silent, 2, "bfloat16"), Arm(silent, 0, "bfloat16"))
    assert part.decomposition == Figure(None, NO_STEPS)


def test_advice_names_the_gammas_that_would_be_better() -> None:
    said = advice(explained(fake(4, 1.0), fake(0), fake(2, 1.0)).model)
    assert "a draft step of c = 1 target steps the model predicts" in said
    assert said.endswith("best for latency is not to speculate; this γ pays from acceptance 1.00 on")


def gains(*told: tuple[int, float, float, float]) -> dict[int, Gain]:
    return {at: Gain(*gain) for at, *gain in told}


def test_the_crossing_is_interpolated_over_the_logarithm_of_concurrency() -> None:
    """From 2 at 16 requests to 1/2 at 64 the gain falls through 1 half way between them by doublings: at 32."""
    found = break_even_concurrency(gains((64, 0.5, 0.4, 0.6), (1, 3.0, 2.9, 3.1), (16, 2.0, 1.9, 2.1)))
    assert found.concurrency.value == pytest.approx(32)
    assert (found.pays_up_to, found.loses_from) == (16, 64)
    assert found.in_words() == "break-even between 16 and 64, at about 32"


def test_what_an_interval_leaves_open_does_not_narrow_the_bracket() -> None:
    """64 and 128 may be either; and without a value that surely loses the bracket is open."""
    told = ((32, 1.5, 1.4, 1.6), (64, 1.1, 0.9, 1.3), (128, 0.95, 0.8, 1.1), (256, 0.5, 0.4, 0.6))
    found = break_even_concurrency(gains(*told))
    assert (found.pays_up_to, found.loses_from) == (32, 256)
    assert 64 < (found.concurrency.value or 0) < 128
    assert break_even_concurrency(gains(*told[:3])).in_words() == "break-even above 32, at about 100"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ([(1, 2.0, 1.9, 2.1), (256, 1.2, 1.1, 1.3)], "pays at every concurrency measured, up to 256"),
        (
            [(1, 2.0, 1.9, 2.1), (256, 1.2, 0.9, 1.6)],
            "surely pays at 1; not decided at 256",
        ),
        ([(1, 0.9, 0.8, 0.95), (8, 0.7, 0.6, 0.8)], "pays at no concurrency measured, from 1 to 8"),
        ([(1, 0.9, 0.8, 1.1), (8, 0.7, 0.6, 0.8)], "surely does not pay at 8; not decided at 1"),
        ([(1, 0.9, 0.8, 1.1), (8, 0.7, 0.6, 1.2)], "not decided at 1, 8"),
        ([(1, 0.99, 0.97, 1.01), (8, 0.7, 0.6, 1.2)], "surely does not pay at 1; not decided at 8"),
        ([(1, 0.9, 0.8, 0.95), (8, 1.7, 1.6, 1.8)], "pays from 8 on at every concurrency measured, up to 8"),
        (
            [(1, 1.2, 1.1, 1.3), (4, 0.9, 0.8, 0.95), (16, 1.3, 1.2, 1.4)],
            "pays from 16 on at every concurrency measured, up to 16, and at 1",
        ),
        (
            [(1, 2.2, 2.1, 2.3), (4, 0.9, 0.8, 0.95), (16, 1.01, 0.98, 1.04)],
            "seems to pay, not surely, from 16 on at every concurrency measured, up to 16, and at 1",
        ),
        ([], NONE_MEASURED),
    ],
)
def test_without_a_crossing_there_is_a_reason(told: list[tuple[int, float, float, float]], reason: str) -> None:
    """Never a number beyond what was measured."""
    found = break_even_concurrency(gains(*told))
    assert (found.concurrency.value, found.concurrency.reason, found.in_words()) == (None, reason, reason)


def test_a_gain_without_bounds_is_nowhere_sure() -> None:
    """As where there are too few rounds for an interval."""
    found = break_even_concurrency({1: Gain(2.0), 4: Gain(0.5)})
    assert (found.pays_up_to, found.loses_from) == (None, None)
    assert found.in_words() == "break-even at about 2 by the estimates alone"
