"""Limits are judged absolutely: length, ends, ids and finish reason against the request itself."""

from __future__ import annotations

import pytest

from pytest_specdec.generation import Generation, Score
from pytest_specdec.verdict.limits import Facts, broken_limit, missed_eos, without_missed_eos
from pytest_specdec.workloads.workload import Request

PROMPT = (5, 6)
EOS = 99
FACTS = Facts(vocabulary=100, eos_token_ids=frozenset({EOS}))


def generation(tokens: list[int], finish: str) -> Generation:
    return Generation(PROMPT, tuple(tokens), finish)


@pytest.mark.parametrize(
    ("request_", "tokens", "finish", "broken"),
    [
        (Request(PROMPT, 4), [1, 2, 3, 4, 5], "length", "5 tokens delivered, more than max_tokens = 4"),
        (Request(PROMPT, 9, 4, False), [1, 99], "stop", "2 tokens delivered, fewer than min_tokens = 4"),
        (Request(PROMPT, 4), [1, 2], "stop", "2 tokens delivered where 4 were asked for and no end was allowed"),
        (Request(PROMPT, 4, 0, False), [], "stop", "no token was delivered"),
        (
            Request(PROMPT, 4, 0, False),
            [1, 2],
            "length",
            "finished by 'length' after 2 tokens, not after max_tokens = 4",
        ),
        (Request(PROMPT, 4, 0, False), [1, 2], "stop", "finished by 'stop' on token 2, which is no stop token"),
        (Request(PROMPT, 4, 0, False), [1, 99, 3, 4], "length", "continued past EOS at 1 (token 99)"),
        (Request(PROMPT, 4, stop_token_ids=(7,)), [7, 1, 1, 1], "length", "continued past stop token at 0 (token 7)"),
        (
            Request(PROMPT, 2),
            [1, 100],
            "length",
            "token 1 is 100, and the vocabulary has 100 tokens (padding is never an answer)",
        ),
        (
            Request(PROMPT, 2),
            [1, -1],
            "length",
            "token 1 is -1, and the vocabulary has 100 tokens (padding is never an answer)",
        ),
        (Request(PROMPT, 4, 0, False), [1, 99], "stop", None),
        (Request(PROMPT, 4, 3, False), [99, 99, 99], "stop", None),
        (Request(PROMPT, 4), [1, 99, 99, 2], "length", None),
        (Request(PROMPT, 2, 0, False), [1, 99], "length", None),
        (Request(PROMPT, 4, 0, False, stop=("x",)), [1, 2], "stop", None),
    ],
)
def test_each_limit(request_: Request, tokens: list[int], finish: str, broken: str | None) -> None:
    assert broken_limit(request_, generation(tokens, finish), FACTS) == broken


def test_a_missed_eos_is_no_matter_of_noise() -> None:
    asked = Request(PROMPT, 8, min_tokens=1, ignore_eos=False)
    scores = [Score(5.0, 10.0, EOS), Score(5.0, 10.0, EOS), Score(0.1, 10.0, 7)]
    assert without_missed_eos(asked, (1, 2, 3), scores, FACTS) == (scores[0], scores[2])


def test_eos_is_missed_where_it_is_permitted_and_wanted() -> None:
    asked = Request(PROMPT, 8, min_tokens=1, ignore_eos=False)
    scores = [Score(5.0, 10.0, EOS), Score(5.0, 10.0, EOS)]
    told = missed_eos(asked, generation([1, 2], "length"), scores, FACTS, lambda score: score.gap > 0.1)
    assert told == "missed EOS at token 1; min_tokens = 1 permits it there"


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_nothing_is_missed_within_the_floor_or_without_eos(ignore_eos: bool) -> None:
    asked = Request(PROMPT, 8, ignore_eos=ignore_eos)
    within = [Score(0.05, 10.0, EOS)]
    assert missed_eos(asked, generation([1], "length"), within, FACTS, lambda score: score.gap > 0.1) is None
