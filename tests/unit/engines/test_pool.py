"""The pool: one engine awake, the target-only engine parked, each configuration loaded once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.engines.fake import FakeEngine
from pytest_specdec.engines.pool import Pool
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineDied, EngineError

TARGET = EngineSpec(backend="fake", target="t")
DRAFTED = replace(TARGET, method="draft_model", draft="d", gamma=2)
LONGER = replace(DRAFTED, gamma=4)
OTHER = EngineSpec(backend="fake", target="other")


class Watched(FakeEngine):
    """A fake engine that writes down what happens to it."""

    history: list[str]

    def park(self) -> None:
        self.history.append(f"park {self.spec.label}")

    def wake(self) -> None:
        self.history.append(f"wake {self.spec.label}")

    def close(self) -> None:
        self.history.append(f"close {self.spec.label}")


@pytest.fixture
def history() -> list[str]:
    return []


@pytest.fixture
def pool(history: list[str]) -> Pool:
    def start(spec: EngineSpec) -> FakeEngine:
        engine = Watched(spec)
        engine.history = history
        history.append(f"load {spec.label}")
        return engine

    return Pool(start)


def test_the_target_is_parked_while_a_speculative_engine_runs_and_woken_to_rescore(
    pool: Pool, history: list[str]
) -> None:
    for spec in (TARGET, DRAFTED, TARGET, DRAFTED):
        pool.awake(spec)
    label, drafted = TARGET.label, DRAFTED.label
    expected = [f"load {label}", f"park {label}", f"load {drafted}", f"park {drafted}", f"wake {label}"]
    assert history == [*expected, f"park {label}", f"wake {drafted}"]


def test_the_same_engine_again_changes_nothing(pool: Pool, history: list[str]) -> None:
    assert pool.awake(TARGET) is pool.awake(TARGET)
    assert history == [f"load {TARGET.label}"]


def test_a_speculative_engine_is_closed_for_the_next_one_and_the_target_is_kept(pool: Pool, history: list[str]) -> None:
    for spec in (TARGET, DRAFTED, LONGER):
        pool.awake(spec)
    assert history[-2:] == [f"close {DRAFTED.label}", f"load {LONGER.label}"]
    assert f"close {TARGET.label}" not in history


def test_an_engine_is_described_while_it_is_parked(pool: Pool, history: list[str]) -> None:
    """Asking wakes nobody; what was never loaded has nothing to say."""
    pool.awake(TARGET)
    pool.awake(DRAFTED)
    before = list(history)
    described = pool.describe(TARGET)
    assert described is not None
    assert described.device == "fake"
    assert pool.describe(LONGER) is None
    assert history == before


def test_another_target_closes_both(pool: Pool, history: list[str]) -> None:
    for spec in (TARGET, DRAFTED, OTHER):
        pool.awake(spec)
    assert history[-3:] == [f"close {TARGET.label}", f"close {DRAFTED.label}", f"load {OTHER.label}"]


def test_an_engine_that_does_not_load_is_not_tried_again(pool: Pool) -> None:
    hopeless = replace(DRAFTED, speculative_options={"fault": "no such fault"})
    with pytest.raises(EngineError, match="has no fault 'no such fault'; it has: wrong token, "):
        pool.awake(hopeless)
    with pytest.raises(EngineError, match="not tried again in this session: the fake engine has no fault"):
        pool.awake(hopeless)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("none", "the baseline would speculate, by 'deepseek_mtp': take speculation out of its options"),
        ("mtp", "γ = 2 was asked for, and the engine drafts 4 tokens a step by deepseek_mtp"),
        ("draft_model", "the method draft_model was asked for, and the engine drafts by deepseek_mtp"),
    ],
)
def test_an_engine_that_drafts_otherwise_is_refused(method: str, words: str, history: list[str]) -> None:
    """By another number of tokens or another method, with both, and ended; an alias is the same method."""

    def start(spec: EngineSpec) -> FakeEngine:
        engine = Watched(spec)
        engine.history = history
        told = {"speculation": {"method": "deepseek_mtp", "gamma": 4}}
        engine.description = replace(engine.description, details=told)
        return engine

    drafted = TARGET if method == "none" else replace(DRAFTED, method=method)
    with pytest.raises(EngineError, match=words):
        Pool(start).awake(drafted)
    assert history == [f"close {drafted.label}"]
    Pool(start).awake(replace(LONGER, method="mtp"))


def test_an_engine_that_dies_is_loaded_anew(pool: Pool, history: list[str]) -> None:
    with pytest.raises(EngineDied), pool.using(TARGET):
        raise EngineDied("gone")
    pool.awake(TARGET)
    assert history == [f"load {TARGET.label}", f"close {TARGET.label}", f"load {TARGET.label}"]


def test_a_target_that_dies_in_its_turn_is_loaded_anew_too(pool: Pool, history: list[str]) -> None:
    """The one that runs while another's rounds are taken is forgotten with it."""
    for spec in (TARGET, DRAFTED):
        pool.awake(spec).description = replace(pool.awake(spec).description, parks=True)

    def take_its_turn() -> None:
        pool.wake(TARGET)
        raise EngineDied("gone")

    with pytest.raises(EngineDied), pool.using(DRAFTED):
        take_its_turn()
    pool.awake(TARGET)
    assert history.count(f"load {TARGET.label}") == 2


def test_only_an_engine_that_gave_something_up_is_woken(pool: Pool, history: list[str]) -> None:
    """Where both are resident both can run, and neither is parked for the other's turn."""
    resident, sleeper = pool.awake(TARGET), pool.awake(DRAFTED)
    sleeper.description = replace(sleeper.description, parks=True)
    assert (resident.description.parks, pool.wake(TARGET), pool.wake(DRAFTED)) == (False, False, False)
    pool.awake(TARGET)
    assert (pool.wake(DRAFTED), history[-1]) == (True, f"wake {DRAFTED.label}")


def test_close_ends_every_engine(pool: Pool, history: list[str]) -> None:
    pool.awake(TARGET)
    pool.awake(DRAFTED)
    pool.close()
    assert {f"close {TARGET.label}", f"close {DRAFTED.label}"} <= set(history)


class Leaking(FakeEngine):
    """A fake engine whose process does not end."""

    def close(self) -> None:
        raise EngineError(f"{self.spec.label} still runs")


def test_an_engine_that_does_not_end_keeps_no_other_from_ending(history: list[str]) -> None:
    """And it is told, by the next test that needs room or at the end of the session."""
    ended: list[str] = []

    class Ending(FakeEngine):
        def close(self) -> None:
            ended.append(self.spec.label)

    pool = Pool(lambda spec: Leaking(spec) if spec.speculates else Ending(spec))
    pool.awake(TARGET)
    pool.awake(DRAFTED)
    with pytest.raises(EngineError, match="t-draft_model-g2 still runs"):
        pool.close()
    assert ended == ["t-target"]
