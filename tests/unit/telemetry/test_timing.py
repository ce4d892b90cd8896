"""What time was spent on: each second once, for the innermost block; a second look has all that it does but loading."""

from __future__ import annotations

from pytest_specdec.record import Figure
from pytest_specdec.telemetry.timing import DECODE, LOAD, LOOK_AGAIN, RATE, WARM_UP, Spent


def test_each_second_counts_once_for_the_innermost_block() -> None:
    """What lies outside of all blocks counts for none, and what was not done is null with the reason."""
    now = [0.0]
    spent = Spent(lambda: now[0])
    now[0] += 100
    with spent.on(DECODE):
        now[0] += 1
        with spent.on(WARM_UP):
            now[0] += 10
        now[0] += 2
    now[0] += 100
    with spent.on(LOOK_AGAIN), spent.on(RATE):
        now[0] += 20
        with spent.on(LOAD):
            now[0] += 5
    told = spent.part
    assert [told.decode_s.value, told.warmup_s.value, told.second_look_s.value, told.load_s.value] == [3, 10, 20, 5]
    assert told.rating_s.value is None
    spent.begin()
    assert spent.part.decode_s == Figure(None, "nothing was decoded")
