"""What a gate exercised: steps by what was accepted, ends and edges within a step; and what was demanded of it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from pytest_specdec.generation import Chunk, Generation, Run, Speculation
from pytest_specdec.record import Figure
from pytest_specdec.verdict.exercised import DEMANDS, NO_SIZE, UNTOLD, exercised_part, unmet
from pytest_specdec.workloads.scenario import Demand
from pytest_specdec.workloads.workload import Request

REQUEST = Request((5,) * 14, 12, min_tokens=2, ignore_eos=False, sampling={"temperature": 0.0, "min_p": 0.1})
CHUNKS = (Chunk(0.0, 1), Chunk(1.0, 4), Chunk(2.0, 1), Chunk(3.0, 2))  # positions 14, 15 to 18, 19, 20 and 21
ANSWER = Generation(REQUEST.prompt_ids, (6,) * 8, "stop", CHUNKS)
RUN = Run((ANSWER,), Speculation(3, 9, 4, (2, 1, 1)), 0.0, prefix_cache_hits=8)


def test_steps_ends_and_edges_are_counted() -> None:
    """The second step leaves a block of 16 and a chunk of 3, the fourth a chunk, two tokens below the context."""
    part = exercised_part([REQUEST], [RUN], {"block_size": 16, "prefill_chunk": 3}, 24, 3)
    assert (part.none_accepted, part.some_accepted, part.all_accepted) == (Figure(1), Figure(1), Figure(1))
    assert (part.drafted_share, part.ends_in_burst) == (Figure(0.75), 1)
    assert (part.block_edges, part.chunk_edges, part.context_edges) == (Figure(1), Figure(2), 1)
    assert (part.longest_prompt, part.longest_output) == (14, 8)
    assert (part.cached_tokens, part.preemptions) == (Figure(8), Figure(None, UNTOLD))
    assert part.fields == ("eos", "min_tokens")


def test_a_step_of_one_token_crosses_nothing() -> None:
    """Target-only decoding has no bursts, whatever its lengths."""
    alone = Generation(REQUEST.prompt_ids, (6,) * 8, "stop", tuple(Chunk(float(at), 1) for at in range(8)))
    part = exercised_part([REQUEST], [Run((alone,), None, 0.0)], {"block_size": 16}, 24, None)
    assert (part.block_edges, part.context_edges, part.ends_in_burst) == (Figure(0), 0, 0)
    assert part.chunk_edges == Figure(None, NO_SIZE)


def test_what_did_not_happen_is_told_with_what_to_change() -> None:
    """In the order of the list of demands; what happened is not told."""
    part = exercised_part([REQUEST], [RUN], {"block_size": 16}, 24, 3)
    assert unmet(["rejection", "eos_in_burst", "block_edge", "context_edge", "cached_prompt"], part) == []
    assert unmet(["preemption", "chunk_edge"], part) == [
        "'chunk_edge' was demanded and did not happen: take a smaller max_num_batched_tokens, or longer prompts",
        "'preemption' was demanded and did not happen: give the engine fewer cache blocks, or take longer answers",
    ]


def test_cached_tokens_of_an_earlier_answer_are_told_apart() -> None:
    """Of 20 cached tokens behind a prompt of 14, six were decoded; a cached prompt, and another's prefix, are none."""
    answered = replace(ANSWER, cached_tokens=13)
    next_turn = Generation((*REQUEST.prompt_ids, *(6,) * 8, 9), (7,), "length", cached_tokens=20)
    other = Generation((*REQUEST.prompt_ids, 5, 6), (7,), "length", cached_tokens=16)
    part = exercised_part([REQUEST], [replace(RUN, generations=(answered, next_turn, other))], {}, 64, 3)
    assert part.cached_answers == Figure(6)
    assert exercised_part([REQUEST], [RUN], {}, 24, 3).cached_answers == Figure(None, UNTOLD)


def test_a_scenario_can_demand_all_that_is_counted() -> None:
    """And nothing else."""
    assert set(get_args(Demand)) == set(DEMANDS)
