"""Rounds: how many are timed and why they end, how the two arms take turns, and what else time was spent on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_specdec.engines.fake import FakeEngine, clock
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Generation, Run
from pytest_specdec.metrics.base import (
    BEFORE,
    FEW_FOR_DRIFT,
    UNCOUNTED,
    base_of,
    target_alone_part,
    warn_of_differences,
    warnings_of,
)
from pytest_specdec.metrics.rounds import (
    BY_BUDGET,
    BY_INTERVAL,
    BY_NUMBER,
    Plan,
    Rounds,
    Warmup,
    mean_interval,
    ratio_interval,
)
from pytest_specdec.record import Figure
from pytest_specdec.telemetry.meter import NoMeter
from pytest_specdec.telemetry.timing import DECODE, LOAD, LOOK_AGAIN, RATE, WARM_UP, Spent, Timed, Turns, time_rounds
from pytest_specdec.workloads.workload import Request, Workload

WORKLOAD = Workload("x", (Request((1,), 10),), 1)


class Time:
    """A clock, and engines whose rounds take as long as they are told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def engine(self, name: str, seconds: Callable[[int], float]) -> Any:
        """An engine whose round number i takes `seconds(i)`, and delivers ten tokens."""
        return Clockwork(self, name, seconds)


class Clockwork:
    """Ten tokens a round; only the time they take is of interest."""

    spec = EngineSpec(backend="clockwork", target="t")

    def __init__(self, time: Time, name: str, seconds: Callable[[int], float]) -> None:
        self._time, self._name, self._seconds, self._rounds = time, name, seconds, 0

    def prepare(self, workload: Workload) -> None:
        self._time.now += 1000

    def run(self) -> None:
        self._time.log.append(self._name)
        self._time.now += self._seconds(self._rounds)
        self._rounds += 1

    def collect(self) -> Run:
        return Run((Generation((1,), tuple(range(10)), "length"),), None, 0.0)


class Stopwatch:
    """What pytest-benchmark's fixture does here."""

    disabled = False

    def __init__(self, time: Time) -> None:
        self._time = time
        self.data: list[float] = []
        self.stats = SimpleNamespace(stats=SimpleNamespace(data=self.data), update=self.data.append)

    def pedantic(self, target: Any, setup: Any, teardown: Any, rounds: int, iterations: int) -> None:
        for _ in range(rounds):
            setup()
            began = self._time()
            target()
            self.data.append(self._time() - began)
            teardown()


def of(*seconds: float, warmup: Warmup | None = None, hits: int | None = None) -> Rounds:
    """Rounds of ten tokens each."""
    run = Run((Generation((1,), tuple(range(10)), "length"),), None, 0.0, hits, counted_alone=True)
    return Rounds((run,) * len(seconds), seconds, warmup=warmup or Warmup())


def run(seconds: Callable[[int], float], plan: Plan) -> Rounds:
    """Rounds of an engine whose round number i takes `seconds(i)`, by its own clock."""
    time = Time()
    return time_rounds(Timed(time.engine("a", seconds), WORKLOAD, time), plan)


def test_rounds_end_at_the_fewest_when_they_agree() -> None:
    """Equal rounds have an interval of no width."""
    rounds = run(lambda _: 2.0, Plan(3, 0, 0.05, 100.0))
    assert (rounds.seconds, rounds.ended_by, rounds.tokens_per_second) == ((2.0,) * 3, BY_INTERVAL, 5.0)


def test_rounds_go_on_while_they_scatter() -> None:
    """Noise of 10 % asks for more than three, and all of them are kept. The clock is a fake one."""
    draw = random.Random(1)
    asked: list[float] = []

    def seconds(_: int) -> float:
        asked.append(draw.gauss(2.0, 0.2))
        return asked[-1]

    rounds = run(seconds, Plan(3, 0, 0.05, 1e9))
    assert rounds.ended_by == BY_INTERVAL
    assert rounds.interval is not None
    assert rounds.interval.share <= 0.05
    assert rounds.seconds == pytest.approx(asked)
    assert len(asked) > 20


def test_the_time_budget_ends_what_never_settles() -> None:
    """Rounds that go on scattering stop when ten seconds of them are spent."""
    rounds = run(lambda i: 1.0 + i % 2, Plan(3, 0, 0.05, 10.0))
    assert rounds.ended_by == BY_BUDGET
    assert 10 <= sum(rounds.seconds) < 12


class NeedsTenSeconds(NoMeter):
    """A meter whose window is long enough after ten seconds of rounds."""

    def __init__(self, time: Time) -> None:
        super().__init__("a toy")
        self._time, self._began, self._spent = time, 0.0, 0.0

    def begin_round(self) -> None:
        self._began = self._time()

    def end_round(self) -> None:
        self._spent += self._time() - self._began

    def satisfied(self) -> bool:
        return self._spent >= 10


@pytest.mark.parametrize(("budget", "rounds", "ended_by"), [(100.0, 5, BY_INTERVAL), (7.0, 4, BY_BUDGET)])
def test_a_meter_with_too_short_a_window_asks_for_more_rounds(budget: float, rounds: int, ended_by: str) -> None:
    """Equal rounds of 2 s: the rate is known after three, the energy after five, if the budget allows."""
    time = Time()
    timed = Timed(time.engine("a", lambda _: 2.0), WORKLOAD, time, NeedsTenSeconds(time))
    told = time_rounds(timed, Plan(3, 0, 0.05, budget))
    assert (len(told.seconds), told.ended_by) == (rounds, ended_by)


@pytest.mark.parametrize(("budget", "rounds", "ended_by"), [(100.0, 14, BY_INTERVAL), (15.0, 8, BY_BUDGET)])
def test_rounds_go_on_while_they_do_not_decide_what_is_asked(budget: float, rounds: int, ended_by: str) -> None:
    """Equal rounds of 2 s, of which ten decide: looked at after 4, 6, 9 and 14, unless the budget is spent."""
    told = run(lambda _: 2.0, Plan(4, 0, 0.05, budget, decided=lambda ours, _: len(ours.seconds) >= 10))
    assert (len(told.seconds), told.ended_by) == (rounds, ended_by)


def test_a_number_of_rounds_is_exact() -> None:
    """What the user fixed is neither lengthened nor cut."""
    rounds = run(lambda i: 1.0 + i, Plan(4, 0))
    assert (len(rounds.seconds), rounds.ended_by) == (4, BY_NUMBER)


def test_warm_up_lasts_until_two_rounds_take_equally_long() -> None:
    """8, 4, 2, 1 and 1 s: five are judged and not timed, and the sixth is the first that counts."""
    rounds = run(lambda i: max(1.0, 8.0 / 2**i), Plan(2, 1, budget_s=99.0, steady=True))
    assert (rounds.warmup.rounds, rounds.warmup.steady, rounds.seconds) == (5, True, (1.0, 1.0))


def test_a_warm_up_that_never_settles_ends_and_is_told() -> None:
    """Rounds that halve for ever are given up on, with a warning."""
    rounds = run(lambda i: 1.0 / 2**i, Plan(2, 1, budget_s=99.0, steady=True))
    assert (rounds.warmup.rounds, rounds.warmup.steady) == (6, False)
    assert warnings_of(rounds, None) == ["the last two of 6 warm-up rounds still differed by more than 5 %"]


def test_warming_up_longer_than_the_time_budget_is_left() -> None:
    """Rounds of 40 s are not repeated to see whether they are steady; that they may not be is not claimed either."""
    warmup = run(lambda _: 40.0, Plan(2, 1, budget_s=20.0, steady=True)).warmup
    assert (warmup.rounds, warmup.steady) == (1, None)


def test_no_warm_up_means_none() -> None:
    """A scenario that wants the cold round gets it."""
    rounds = run(lambda i: 1.0 + i, Plan(1, 0, budget_s=99.0, steady=True))
    assert (rounds.warmup, rounds.seconds) == (Warmup(), (1.0,))


def test_the_arms_take_turns_and_each_goes_first_in_turn() -> None:
    """Target, draft, draft, target, …: what drifts hits both, and so does what the order does."""
    time = Time()
    beside = Timed(time.engine("t", lambda _: 2.0), WORKLOAD, time)
    timed = Timed(time.engine("d", lambda _: 1.0), WORKLOAD, time)
    time_rounds(timed, Plan(3, 0, 0.05, 0.0), beside, Stopwatch(time))
    assert "".join(time.log) == "tddttd"
    assert (beside.so_far.seconds, timed.so_far.seconds) == ((2.0,) * 3, (1.0,) * 3)


def test_whose_turn_it_is_is_told() -> None:
    """By the rounds of the engine that is measured, whose progress is shown."""
    time, told = Time(), []

    def tell(_: int) -> float:
        told.append(timed.told)
        return 1.0

    beside, timed = (Timed(time.engine(name, tell), WORKLOAD, time) for name in "td")
    time_rounds(timed, Plan(2, 1), beside, Stopwatch(time))
    assert told == [
        "warm-up round 1",
        "the target's turn",
        "round 1",
        "round 2, 10.0 tokens/s",
        "the target's turn",
    ]


def test_rounds_past_the_fewest_reach_pytest_benchmark() -> None:
    """Its statistics cover every round that the record has."""
    time = Time()
    stopwatch = Stopwatch(time)
    timed = Timed(time.engine("d", lambda i: 1.0 + i % 2), WORKLOAD, time)
    rounds = time_rounds(timed, Plan(2, 0, 0.01, 9.0), None, stopwatch)
    assert stopwatch.data == list(rounds.seconds) == [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]


def test_alternated_arms_cancel_a_drift_that_separate_ones_report_as_a_speed_up() -> None:
    """A machine that slows by 5 % a round makes a later arm of the same engine look slower; taking turns does not."""
    time = Time()

    def slower(_: int) -> float:
        return 1.05 ** len(time.log)

    first = time_rounds(Timed(time.engine("t", slower), WORKLOAD, time), Plan(4, 0))
    beside = Timed(time.engine("t", slower), WORKLOAD, time)
    ours = time_rounds(Timed(time.engine("d", slower), WORKLOAD, time), Plan(4, 0), beside, Stopwatch(time))
    assert rate(ours) / rate(first) < 0.75
    assert rate(ours) / rate(base_of(first, beside.so_far).rounds) == pytest.approx(1, abs=0.01)
    assert base_of(first, beside.so_far).drift.ratio == pytest.approx(1.05**-7, rel=0.03)  # type: ignore[union-attr]


def rate(rounds: Rounds) -> float:
    assert rounds.tokens_per_second is not None
    return rounds.tokens_per_second


def test_an_arm_that_sleeps_is_woken_for_its_turn_and_its_first_pass_is_not_timed() -> None:
    """A-B-B-A: each is woken once for two rounds, and its next pass counts nowhere; waking is part of the budget."""
    time = Time()
    awake = ["t"]

    def wake(name: str) -> bool:
        woken, awake[0] = awake[0] != name, name
        time.now += 5 * woken
        return woken

    engines = {name: time.engine(name, lambda _: 1.0) for name in "td"}
    beside = Timed(engines["t"], WORKLOAD, time, wake=lambda: wake("t"))
    timed = Timed(engines["d"], WORKLOAD, time, wake=lambda: wake("d"))
    awake[0] = "d"
    time_rounds(timed, Plan(4, 0), beside, Stopwatch(time))
    assert "".join(time.log) == "tt ddd ttt ddd tt".replace(" ", "")
    assert (beside.so_far.seconds, timed.so_far.seconds) == ((1.0,) * 4,) * 2
    assert (beside.waking_s, timed.waking_s) == (3 * 1006.0, 2 * 1006.0)


def test_a_target_without_rounds_beside_has_no_known_drift() -> None:
    """Null and the reason, never 1."""
    part = target_alone_part(base_of(of(1.0, 1.0)))
    assert (part.rounds, part.drift) == (BEFORE, Figure(None, FEW_FOR_DRIFT))


def test_one_arm_beside_the_other_runs_in_turn_only() -> None:
    """`Turns` never runs the other engine twice for one round."""
    time = Time()
    beside, timed = (Timed(time.engine(name, lambda _: 1.0), WORKLOAD, time) for name in "td")
    turns = Turns(timed, beside)
    turns.before()
    turns.before()
    timed.round()
    turns.after()
    assert "".join(time.log) == "td"


NOT_RESET = "came from a prefix cache that could not be reset: repeated prompts cost less than a user's"


@pytest.mark.parametrize(
    ("ours", "base", "keeps", "said"),
    [
        (96, 0, False, ["the prefix cache was warm in one arm only: it held 96 prompt tokens here, 0 for target-only"]),
        (0, 96, True, ["the prefix cache was warm in one arm only: it held 0 prompt tokens here, 96 for target-only"]),
        (96, 90, False, [f"96 prompt tokens here and 90 for target-only {NOT_RESET}"]),
        (96, 90, True, []),
        (0, 0, False, []),
    ],
)
def test_a_warm_prefix_cache_is_warned_of(ours: int, base: int, keeps: bool, said: list[str]) -> None:
    """Hits on one side make its speed no matter of drafting; on both, no matter of use, unless they were asked for."""
    assert warnings_of(of(1.0, hits=ours), base_of(of(1.0, hits=base)), keeps) == said


def test_a_target_that_tells_no_counters_is_warned_of() -> None:
    """That it did not speculate is then believed, and not proven."""
    uncounted = Rounds((Run((), None, 0.0),), ())
    assert warnings_of(of(1.0), base_of(uncounted)) == [UNCOUNTED]


def test_the_interval_is_students_over_rounds_that_may_be_correlated() -> None:
    """Of 9, 11, 10 and 10: ρ is taken as -0.5 + 1/4 + 1/2 = 0.25, and t is 3.182, from a table."""
    known = mean_interval([9.0, 11.0, 10.0, 10.0])
    inflation = 1 + 2 * (3 / 4 * 0.25 + 2 / 4 * 0.25**2 + 1 / 4 * 0.25**3)
    error = (2 / 3 / ((4 - inflation) / 3) * inflation / 4) ** 0.5
    assert known is not None
    assert (known.low, known.high) == pytest.approx((10 - 3.1824 * error, 10 + 3.1824 * error), abs=1e-3)


def correlated(draw: random.Random, count: int, rho: float) -> list[float]:
    """A stationary series of mean 0 and variance 1, each value correlated with the one before."""
    values = [draw.gauss(0, 1)]
    while len(values) < count:
        values.append(rho * values[-1] + math.sqrt(1 - rho**2) * draw.gauss(0, 1))
    return values


@pytest.mark.parametrize(("rho", "least"), [(0.0, 0.95), (0.5, 0.92)])
def test_the_interval_of_a_ratio_holds_the_true_one_also_where_rounds_are_correlated(rho: float, least: float) -> None:
    """A thousand pairs of series of eight rounds; two standard errors are granted, and not every one holds it."""
    draw = random.Random(5)

    def covers() -> bool:
        rates = ([rate * math.exp(0.02 * each) for each in correlated(draw, 8, rho)] for rate in (150, 100))
        known = ratio_interval(*rates)
        assert known is not None
        return known.low <= 1.5 <= known.high

    assert least - 0.014 <= sum(covers() for _ in range(1000)) / 1000 <= 0.995


def test_a_drift_of_half_a_per_cent_a_round_leaves_the_truth_in_the_interval() -> None:
    """Two arms of the same engine, turn by turn: 1 lies within in 19 of 20 cases or more."""
    draw = random.Random(3)

    def covers() -> bool:
        order = "tddt" * 3
        rates = [math.exp(-0.005 * at + 0.01 * draw.gauss(0, 1)) for at in range(len(order))]
        arms = ([rate for rate, arm in zip(rates, order, strict=True) if arm == name] for name in "dt")
        known = ratio_interval(*arms)
        assert known is not None
        return known.low <= 1 <= known.high

    assert sum(covers() for _ in range(200)) >= 190


def test_a_steady_drift_is_no_scatter_of_the_pairs() -> None:
    """Arms that go first in turn show it as the difference of who went first, which is taken out."""
    order = "tddt" * 2
    arms = ([1.05**at for at, arm in enumerate(order) if arm == name] for name in "dt")
    known = ratio_interval(*arms)
    assert known is not None
    assert (known.low, known.high) == pytest.approx((1, 1))


def test_pairing_makes_the_interval_narrower_where_both_arms_drift() -> None:
    """Noise that both share is no noise of the ratio."""
    ours, base = [15.0, 12.0, 9.0, 14.0], [10.0, 8.1, 6.0, 9.3]
    paired, apart = ratio_interval(ours, base), mean_interval(ours)
    assert paired is not None
    assert apart is not None
    assert paired.share < apart.share / 5


def test_rounds_that_deliver_nothing_end() -> None:
    """A rate of zero is known exactly; the verdict says what is wrong with it."""
    assert Plan(3, 0, 0.05, 10.0).ended_by([0.0] * 3, 1.0) == BY_INTERVAL


def test_too_few_rounds_have_no_interval() -> None:
    """One round says nothing of scatter."""
    assert mean_interval([3.0]) is None
    assert ratio_interval([3.0], [2.0]) is None


def test_what_an_arm_brings_along_is_no_warning() -> None:
    """Nobody could set it alike; what could be set is told."""
    settings = {"cache.num_gpu_blocks": (1820, 2048), "model.max_logprobs": (20, -1), "cache.dtype": ("fp8", "auto")}
    (told,) = warn_of_differences(settings)
    assert told.startswith("cache.dtype is fp8 here and auto for target-only")


def test_each_second_counts_once_for_the_innermost_block() -> None:
    """Outside of all blocks for none, in a second look for that alone but for loading; what was not done is null."""
    time = Time()
    spent = Spent(time)
    time.now += 100
    with spent.on(DECODE):
        time.now += 1
        with spent.on(WARM_UP):
            time.now += 10
        time.now += 2
    time.now += 100
    with spent.on(LOOK_AGAIN), spent.on(RATE):
        time.now += 20
        with spent.on(LOAD):
            time.now += 5
    told = spent.part
    assert [told.decode_s.value, told.warmup_s.value, told.second_look_s.value, told.load_s.value] == [3, 10, 20, 5]
    assert told.rating_s.value is None
    spent.begin()
    assert spent.part.decode_s == Figure(None, "nothing was decoded")


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_gate_that_keeps_the_prefix_cache_finds_nothing_of_anothers(warmup: int) -> None:
    """Of two gates with the same requests on one engine, each begins empty and finds its own first pass again."""
    engine = FakeEngine(EngineSpec(backend="fake", target="t"))
    kept = Workload("kept", (Request(tuple(range(3, 43)), max_tokens=4),), 1, keeps_prefix_cache=True)
    for _ in range(2):
        rounds = time_rounds(Timed(engine, kept, clock), Plan(2 - warmup, warmup))
        found = [answer.cached_tokens for run in rounds.judged.values() for answer in run.generations]
        assert found == [0, 32]
