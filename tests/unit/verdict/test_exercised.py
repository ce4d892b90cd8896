"""What a gate exercised and what was demanded of it, and whether it drafted throughout: red, a warning, or asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Chunk, Generation, Run, Speculation
from pytest_specdec.record import Figure
from pytest_specdec.verdict.coverage import DEMANDS, NO_SIZE, UNTOLD, Drafting, exercised_part, unmet
from pytest_specdec.workloads.scenario import Demand
from pytest_specdec.workloads.workload import Conversation, Request

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


def test_lengths_of_their_own_and_what_a_template_was_given_are_told() -> None:
    """Of a prompt that was written of a conversation, and not of one that goes on after it."""
    talk = Conversation(({"role": "user", "content": "Hi"},), {"enable_thinking": True}, REQUEST.prompt_ids)
    said = replace(REQUEST, conversation=talk)
    asked = [said, replace(said, max_tokens=13), replace(said, prompt_ids=(*REQUEST.prompt_ids, 6))]
    told = [exercised_part(requests, [RUN], {}, 24, 3).fields for requests in ([asked[0]], asked[:2], asked[2:])]
    assert told == [
        ("chat_template_kwargs", "eos", "min_tokens"),
        ("chat_template_kwargs", "eos", "max_tokens", "min_tokens"),
        ("eos", "min_tokens"),
    ]


def test_a_step_of_one_token_crosses_nothing() -> None:
    """Target-only decoding has no bursts, whatever its lengths."""
    alone = Generation(REQUEST.prompt_ids, (6,) * 8, "stop", tuple(Chunk(float(at), 1) for at in range(8)))
    part = exercised_part([REQUEST], [Run((alone,), None, 0.0)], {"block_size": 16}, 24, None)
    assert (part.block_edges, part.context_edges, part.ends_in_burst) == (Figure(0), 0, 0)
    assert part.chunk_edges == Figure(None, NO_SIZE)


def test_an_engine_that_tells_no_context_has_no_edge_of_it() -> None:
    """A server may not; a gate that demands the edge is then not green."""
    part = exercised_part([REQUEST], [RUN], {}, 0, 3)
    assert part.context_edges == 0
    assert len(unmet(["context_edge"], part)) == 1


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


BATCHES = {"num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 64, 0]]}
WORKED = Speculation(10, 30, 20, (9, 7, 4))
OF_TWO = Speculation(20, 60, 40, (18, 14, 8))
SILENT = Speculation(0, 0, 0)
REJECTED = Speculation(30, 90, 0, (0, 0, 0))
SHORT = Speculation(30, 30, 20, (20,))
PLAIN = Request((5,), 31)
MASKED = replace(PLAIN, sampling={"structured_outputs": {"choice": ["a"]}})


def run(counted: Speculation, steps: Sequence[int] = (1,) + (3,) * 10, drafted: int | None = None) -> Run:
    """One answer in so many steps."""
    chunks = tuple(Chunk(float(at), tokens) for at, tokens in enumerate(steps))
    answer = Generation((5,), (6,) * sum(steps), "length", chunks, draft_tokens=drafted)
    return Run((answer,), counted, 0.0)


def round_of(counted: Speculation, *drafted: int | None, steps: Sequence[int] = (1,) + (3,) * 10) -> Run:
    """As many answers in so many steps each."""
    return Run(tuple(run(counted, steps, each).generations[0] for each in drafted), counted, 0.0)


def of(method: str, *runs: Run, before: float | None = None, **options: Any) -> Drafting:
    """Rounds of an engine of this method at γ = 3, the first of them for warming up."""
    spec = EngineSpec(backend="fake", target="t", method=method, gamma=3, speculative_options=options)
    return Drafting(spec, dict(enumerate(runs, -1)), 1, before)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ((run(WORKED), run(WORKED)), []),
        ((run(WORKED), run(SILENT)), ["nothing was drafted in round 0, in 31 tokens"]),
        ((run(SILENT), run(WORKED)), ["nothing was drafted in warm-up round -1, in 31 tokens"]),
        (
            (run(WORKED), run(WORKED, drafted=0)),
            ["nothing was drafted for 1 requests of round 0, 0 the first, in 31 tokens"],
        ),
        (
            (run(WORKED), run(WORKED, (3,) * 11 + (1,) * 20)),
            ["21 of 31 steps of round 0 drafted nothing: did drafting stop midway?"],
        ),
        ((run(SHORT), run(SHORT)), ["1 tokens were drafted a step, throughout, where γ = 3"]),
        (
            (run(WORKED), run(REJECTED)),
            [
                "nothing of 90 drafted tokens was accepted in round 0, where 67% were in other rounds: "
                "is the drafter's state right after the engine woke?"
            ],
        ),
    ],
)
def test_a_draft_model_drafts_in_every_round_and_request(runs: Sequence[Run], said: list[str]) -> None:
    """Silence, short drafts, and drafts that are suddenly never right are failures."""
    assert of("draft_model", *runs).failures == said


def whole(run: Run) -> Run:
    """The same answers, told at once."""
    return replace(run, generations=tuple(replace(each, chunks=()) for each in run.generations))


def test_drafting_that_stops_is_seen_where_answers_come_whole() -> None:
    """Tokens that no draft brought are the steps."""
    sound, stopped = whole(run(WORKED)), whole(run(WORKED, (3,) * 11 + (1,) * 20))
    assert of("draft_model", sound, sound).failures == []
    assert of("draft_model", sound, stopped).failures == [
        "23 of 33 steps of round 0 drafted nothing: did drafting stop midway?"
    ]


def test_what_was_accepted_in_an_earlier_gate_counts() -> None:
    """An engine that is never right from its first round on is poor, and not stale."""
    assert of("draft_model", run(REJECTED), run(REJECTED)).failures == []
    assert len(of("draft_model", run(REJECTED), run(REJECTED), before=0.6).failures) == 2


def test_a_grammar_may_permit_no_drafts() -> None:
    """That most steps of a draft model have none is told, and not red; that no step has one is."""
    runs = (run(WORKED), run(WORKED, (3,) * 11 + (1,) * 20))
    masked = replace(of("draft_model", *runs), requests=[MASKED])
    assert (masked.failures, masked.warnings) == ([], of("draft_model", *runs).failures)
    dead = replace(of("draft_model", run(SILENT)), requests=[MASKED])
    assert (len(dead.failures), dead.warnings) == (1, [])


def test_a_grammar_may_cut_drafts_short() -> None:
    """That is told, and not red."""
    short = of("draft_model", run(SHORT), run(SHORT))
    masked = replace(short, requests=[MASKED])
    assert (masked.failures, masked.warnings) == ([], short.failures)


def test_a_grammar_explains_no_round_in_which_nothing_is_accepted() -> None:
    """What it takes away is not drafted; what is left is as right as before."""
    stale = of("draft_model", run(WORKED), run(REJECTED))
    masked = replace(stale, requests=[MASKED])
    assert (len(stale.failures), masked.failures, masked.warnings) == (1, stale.failures, [])


def test_the_silence_of_a_grammar_s_request_is_told_where_drafts_are_counted_together() -> None:
    """All drafts may be of the other request."""
    answers = (run(OF_TWO, (2,) * 20).generations[0], run(OF_TWO, (1,) * 31).generations[0])
    mixed = replace(of("draft_model", round_of(OF_TWO, 20, 20), Run(answers, OF_TWO, 0.0)), requests=[PLAIN, MASKED])
    assert (mixed.failures, mixed.warnings) == ([], [f"31 of 51 {STOPPED}"])


STOPPED = "steps of round 0 drafted nothing: did drafting stop midway?"
MIXED = {
    "none": (round_of(OF_TWO, 20, 20), [], []),
    "a request": (
        round_of(OF_TWO, 0, 20),
        ["nothing was drafted for 1 requests of round 0, 0 the first, in 31 tokens"],
        [],
    ),
    "a masked request": (
        round_of(OF_TWO, 20, 0),
        [],
        ["nothing was drafted for 1 requests of round 0, 1 the first, in 31 tokens"],
    ),
    "a round": (round_of(SILENT, None, None), ["nothing was drafted in round 0, in 62 tokens"], []),
    "most steps": (round_of(WORKED, None, None, steps=(1,) * 31), [f"21 of 31 {STOPPED}"], []),
    "both requests": (
        round_of(WORKED, 0, 0),
        ["nothing was drafted for 1 requests of round 0, 0 the first, in 31 tokens"],
        ["nothing was drafted for 1 requests of round 0, 1 the first, in 31 tokens"],
    ),
}


@pytest.mark.parametrize(("silent", "failures", "warnings"), MIXED.values(), ids=MIXED)
def test_a_grammar_excuses_its_own_requests_alone(silent: Run, failures: list[str], warnings: list[str]) -> None:
    """Of two requests the second has one; that nothing is drafted for the first is red, and told once."""
    mixed = replace(of("draft_model", round_of(OF_TWO, 20, 20), silent), requests=[PLAIN, MASKED])
    assert (mixed.failures, mixed.warnings) == (failures, warnings)


@pytest.mark.parametrize("method", ["ngram", "ngram-simple"])
def test_a_lookup_may_find_nothing(method: str) -> None:
    """That is a warning, unless it never found anything."""
    drafting = of(method, run(WORKED), run(SILENT))
    assert (drafting.failures, drafting.warnings) == ([], ["nothing was drafted in round 0, in 31 tokens"])
    dead = of(method, run(SILENT), run(SILENT))
    assert (dead.failures[0].partition(":")[0], dead.warnings) == ("nothing was drafted in 62 tokens", [])


def test_no_draft_at_some_size_of_the_batch_may_be_asked_for() -> None:
    """γ = 0 on purpose is no dead drafter, where so many requests are under way; that nothing was drafted is told."""
    for method in ("draft_model", "ngram"):
        fewer = of(method, run(SILENT), run(SILENT), **BATCHES)
        for at_once in (3, 100, None):  # beyond the last range its γ goes on, and an open load may have any batch
            many = replace(fewer, at_once=at_once)
            assert (many.failures, len(many.warnings)) == ([], 1)
            assert many.warnings[0].startswith("nothing was drafted in 62 tokens")
        assert (len(fewer.failures), fewer.warnings) == (1, [])


def test_a_zero_that_the_engine_has_no_places_for_excuses_nothing() -> None:
    """Its batch never has as many requests, whatever is asked at once, or by an open load."""
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 0]]}
    silent = of("draft_model", run(SILENT), run(SILENT), **schedule)
    for at_once in (64, None):
        assert replace(silent, at_once=at_once).failures == []
        few = replace(silent, at_once=at_once, spec=replace(silent.spec, options={"max_num_seqs": 8}))
        assert len(few.failures) == 1


@pytest.mark.parametrize(("at_once", "none"), [(4, False), (5, False), (8, True), (12, True), (16, False), (99, False)])
def test_a_schedule_is_read_as_vllm_reads_it(at_once: int, none: bool) -> None:
    """In a gap, and beyond the last range, the γ before goes on; entries may be in any order."""
    schedule = {"num_speculative_tokens_per_batch_size": [[8, 8, 0], [16, 32, 3], [1, 4, 3]]}
    silent = replace(of("draft_model", run(SILENT), run(SILENT), **schedule), at_once=at_once)
    assert (silent.failures == []) == none


def test_a_lookup_of_which_nothing_is_accepted_is_told() -> None:
    """On a GPU vLLM drafts γ tokens a step whether or not it finds any."""
    told = "nothing of 180 drafted tokens was accepted: "
    assert of("ngram", run(REJECTED), run(REJECTED)).warnings == [f"{told}did lookup find anything?"]
    assert of("served", run(REJECTED), run(REJECTED)).warnings == [f"{told}is it the right drafter?"]
    assert of("ngram", run(WORKED), run(REJECTED)).warnings == []


def test_drafts_whose_length_an_option_varies_are_not_called_short() -> None:
    """A confidence threshold ends drafts early on purpose."""
    assert of("draft_model", run(SHORT), run(SHORT), assistant_confidence_threshold=0.4).failures == []


def test_acceptance_that_rises_from_round_to_round_is_told() -> None:
    """Suffix decoding remembers the answers of earlier rounds, which no user's first request has."""
    assert of("suffix", run(Speculation(10, 30, 3, ())), run(WORKED)).warnings == [
        "acceptance rose from 10.0% in the first round to 66.7%: the method remembers answers"
    ]
