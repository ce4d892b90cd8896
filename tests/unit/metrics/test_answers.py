"""Loops in answers, and what is decoded past the target's own end: how much, and how many tokens a step come there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.generation import Chunk, Generation, Run, Speculation
from pytest_specdec.metrics.answers import NO_END_KNOWN, NONE_PAST, TOO_SHORT, answers_part, warn_of_answers
from pytest_specdec.metrics.rounds import SEVERAL_STEPS
from pytest_specdec.record import Figure
from pytest_specdec.record.parts import AnswersPart
from pytest_specdec.workloads.workload import Request

EOS = 2
ON, ENDING = Request((5,), 64), Request((5,), 64, ignore_eos=False)


def answer(*tokens: int, chunks: tuple[int, ...] = ()) -> Generation:
    """Of these tokens, in chunks of these sizes or one by one."""
    return Generation((5,), tokens, "length", tuple(Chunk(0.1, size) for size in chunks or (1,) * len(tokens)))


def part_of(*answers: Generation, request: Request = ON, ends: tuple[int, ...] = (EOS,)) -> AnswersPart:
    """All of what was delivered beside one token a chunk was drafted."""
    accepted = sum(len(each.token_ids) - len(each.chunks) for each in answers)
    return answers_part([request] * len(answers), [Run(answers, Speculation(9, 27, accepted), 1.0)], ends)


def test_runs_that_stood_in_the_same_answer_before_are_repeated() -> None:
    """Of 30 tokens in a circle of ten 23 runs of eight are ten different ones; other answers do not count."""
    circle, straight = answer(*[*range(10, 20)] * 3), answer(*range(10, 33))
    assert part_of(circle).repeated_share == Figure(13 / 23)
    assert part_of(straight, straight).repeated_share == Figure(0.0)
    assert part_of(circle, straight).repeated_share == Figure(13 / (23 + 16))


def test_an_answer_that_is_too_short_says_nothing() -> None:
    assert part_of(answer(*range(7))).repeated_share == Figure(None, TOO_SHORT)
    assert part_of(answer(*range(10, 18))).repeated_share == Figure(0.0)


def test_what_comes_past_an_end_is_counted_with_its_steps() -> None:
    """Three tokens and EOS, then six tokens, in four steps of which the third step reaches over the end."""
    going_on = answer(7, 8, 9, EOS, 11, 11, 11, 11, 11, 11, chunks=(1, 1, 3, 5))
    part = part_of(going_on)
    assert part.past_end == Figure(6)
    assert part.tokens_per_step_to_end == Figure(5 / 3)
    assert part.tokens_per_step_past_end == Figure(5.0)


@pytest.mark.parametrize("counted", [Speculation(9, 27, 27), Speculation(0, 0, 0), None])
def test_chunks_that_carry_several_steps_are_no_steps(counted: Speculation | None) -> None:
    """Nine steps of γ = 3 in five chunks: 36 tokens, and no more than 32 are accepted ones and one a chunk."""
    going_on = answer(9, 9, 9, EOS, *[11] * 32, chunks=(4, 8, 8, 8, 8))
    part = answers_part([ON], [Run((going_on,), counted, 1.0)], (EOS,))
    assert part.past_end == Figure(32)
    assert part.tokens_per_step_to_end == part.tokens_per_step_past_end == Figure(None, SEVERAL_STEPS)
    assert warn_of_answers(part, 36)[-1].endswith("ignore_eos passes over")


def test_steps_are_held_against_the_answers_that_tell_theirs() -> None:
    """One that does not, as one that the engine broke off, makes the others' no less known."""
    whole, untold = answer(7, EOS, 8, 9), Generation((5,), (7, 8), "length", (), "broken off")
    assert part_of(whole, untold).tokens_per_step_past_end == part_of(whole).tokens_per_step_past_end == Figure(1.0)


def test_an_answer_that_failed_is_none() -> None:
    """What came of it says nothing of its end, nor of circles."""
    whole, failed = answer(7, EOS, *[11] * 8), replace(answer(7, EOS, *[11] * 32), error="the connection was lost")
    assert part_of(whole, failed) == part_of(whole)
    assert part_of(failed).past_end == Figure(0)


@pytest.mark.parametrize(
    ("told", "request_"), [(answer(7, 8, EOS), ON), (answer(7, EOS, 8), ENDING), (answer(7, 8, 9), ON)]
)
def test_an_end_at_the_end_and_one_that_was_asked_for_are_none_to_pass(told: Generation, request_: Request) -> None:
    """What goes on where an end was wanted is no figure but a finding of the verdict."""
    part = part_of(told, request=request_)
    assert (part.past_end, part.tokens_per_step_past_end) == (Figure(0), Figure(None, NONE_PAST))


def test_without_a_known_end_nothing_is_known_of_it() -> None:
    assert part_of(answer(7, EOS, 8), ends=()).past_end == Figure(None, NO_END_KNOWN)


def test_a_warning_is_of_half_in_circles_and_of_a_tenth_past_the_end() -> None:
    """Both say how much; without steps the second says no more."""
    much = AnswersPart(
        repeated_share=Figure(0.5),
        past_end=Figure(10),
        tokens_per_step_to_end=Figure(1.5),
        tokens_per_step_past_end=Figure(4.0),
    )
    assert warn_of_answers(much, 100) == [
        "the answers go in circles, 50% of their runs of 8 tokens stood there before",
        "10% of the tokens come after an end that ignore_eos passes over: 4 tokens a step there, 1.5 before",
    ]
    assert warn_of_answers(AnswersPart(repeated_share=Figure(0.49), past_end=Figure(9)), 100) == []
    assert warn_of_answers(part_of(answer()), 0) == []  # of an engine that gives no token at all
    assert warn_of_answers(AnswersPart(past_end=Figure(10)), 100)[0].endswith("ignore_eos passes over")
