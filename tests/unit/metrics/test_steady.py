"""The rate while every place of a closed load is taken, beside that of whole rounds."""

from __future__ import annotations

import pytest

from pytest_specdec.generation import Chunk, Generation, Run
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.metrics.speed import NO_WINDOW, OPEN, Window, throughput_part, with_steady_ratio
from pytest_specdec.metrics.speedup import Arm, speedup_part


def answer(start: float, *arrivals: float) -> Generation:
    """A token at each moment, in seconds."""
    return Generation((7,), (1,) * len(arrivals), "length", tuple(Chunk(at, 1) for at in arrivals), started_s=start)


TWO_AT_ONCE = (answer(0, 1, 2), answer(0, 1, 2, 3, 4), answer(2, 3, 4, 5, 6, 7, 8))


def rounds(*answers: Generation, seconds: float = 8.0) -> Rounds:
    """Two equal rounds."""
    return Rounds((Run(answers, None, seconds),) * 2, (seconds,) * 2)


def test_the_window_ends_when_a_place_stays_free() -> None:
    """Three requests in two places: the third takes the first one's place at 2 s, and from 4 s on it is alone."""
    assert Window.of(Run(TWO_AT_ONCE, None, 8.0), 2) == Window(8, 4.0)


def test_as_many_requests_as_places_are_at_once_until_the_first_ends() -> None:
    """What a table's "at once" is true of: two of four seconds."""
    assert Window.of(Run(TWO_AT_ONCE[:2], None, 4.0), 2) == Window(4, 2.0)


def test_the_steady_rate_stands_beside_the_whole() -> None:
    """12 tokens in 8 s, of which 8 in the first 4 s."""
    whole = rounds(*TWO_AT_ONCE)
    part = throughput_part(whole, 2)
    assert (part.tokens_per_second.value, part.steady_tokens_per_second.value, part.steady_share.value) == (1.5, 2, 0.5)


def test_the_steady_speedup_is_of_both_windows() -> None:
    """Answers that end at different times halve the whole's speed-up, and not that of full batches."""
    ours = rounds(answer(0, 1, 2, 3, 4), answer(0, 0.5, 1, 1.5, 2), seconds=4.0)
    base = rounds(answer(0, 1, 2, 3, 4), answer(0, 1, 2, 3, 4), seconds=4.0)
    part = speedup_part(Arm(ours, 3, "b"), Arm(base, 0, "b"))
    told = with_steady_ratio(part, ours, base, 2)
    assert (told.ratio.value, told.steady_ratio.value) == (1.0, 1.5)
    assert told.steady_interval.value == pytest.approx((1.5, 1.5))


@pytest.mark.parametrize(("places", "why"), [(None, OPEN), (2, NO_WINDOW)])
def test_no_window_has_its_reason(places: int | None, why: str) -> None:
    """An open load, and an engine that tells no times."""
    silent = rounds(Generation((7,), (1, 2), "length"))
    assert throughput_part(silent, places).steady_share.reason == why
    part = speedup_part(Arm(silent, 3, "b"), Arm(silent, 0, "b"))
    assert with_steady_ratio(part, silent, silent, places).steady_ratio.reason == why
