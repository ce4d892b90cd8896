"""Hints: what stands near a finding, each at its own edge and nowhere else."""

from __future__ import annotations

import pytest

from pytest_specdec.engines.engine import Description
from pytest_specdec.generation import Chunk, Generation
from pytest_specdec.verdict.equivalence import Finding, Outcome
from pytest_specdec.verdict.words import as_text, find_hints, occurs_alone
from pytest_specdec.workloads.workload import Request

PLAIN = Description(vocabulary=100, context=1000, device="cpu")


def finding(at: int, **fields: object) -> Finding:
    return Finding(Outcome.DIVERGENT, 0, 0, "", position=at, seen=tuple(range(3, 43)), **fields)  # type: ignore[arg-type]


def request(prompt: int = 10, **fields: object) -> Request:
    return Request(tuple(range(prompt)), 40, **fields)  # type: ignore[arg-type]


def test_nothing_stands_near_a_plain_token() -> None:
    assert find_hints(finding(5), request(), 4, PLAIN) == ()


@pytest.mark.parametrize(
    ("at", "told"),
    [
        (0, ()),
        (2, ("token 2 is number 2 of 4 in step 1: an accepted draft",)),
        (4, ("token 4 is number 4 of 4 in step 1: the target's own token after the accepted drafts",)),
    ],
)
def test_the_place_within_the_step(at: int, told: tuple[str, ...]) -> None:
    """A step of one token has no places."""
    chunks = (Chunk(0.1, 1), Chunk(0.2, 4), Chunk(0.3, 3))
    assert find_hints(finding(at, chunks=chunks), request(), 3, PLAIN) == told


def test_non_default_sampling_fields_are_named() -> None:
    asked = request(sampling={"min_p": 0.1, "frequency_penalty": 1.0, "seed": 3})
    assert find_hints(finding(5), asked, 4, PLAIN) == ("sampling fields that every token must see: frequency_penalty",)


@pytest.mark.parametrize(
    ("details", "prompt", "at", "told"),
    [
        ({"block_size": 16}, 10, 6, "position 16 is at the edge of a cache block of 16"),
        ({"prefill_chunk": 8}, 10, 5, "the prompt of 10 tokens is longer than a prefill chunk of 8"),
        ({"draft_context": 20}, 10, 6, "position 16 is within a step of the end of the draft's context of 20"),
    ],
)
def test_boundaries(details: dict[str, int], prompt: int, at: int, told: str) -> None:
    near = Description(vocabulary=100, context=1000, device="cpu", details=details)
    assert find_hints(finding(at), request(prompt), 4, near) == (told,)


def test_the_end_of_the_context() -> None:
    short = Description(vocabulary=100, context=50, device="cpu")
    assert find_hints(finding(36), request(), 4, short) == (
        "position 46 is within a step of the end of the context of 50",
    )


def test_a_stop_token_inside_a_step() -> None:
    ends = Description(vocabulary=100, context=1000, device="cpu", details={"eos_token_ids": [5]})
    told = find_hints(finding(9, chunks=(Chunk(0.1, 4), Chunk(0.2, 1))), request(ignore_eos=False), 3, ends)
    assert told == ("EOS or a stop token at 2 stands inside a step, not at its end",)


def test_a_warm_prefix_cache() -> None:
    cached = Description(vocabulary=100, context=1000, device="cpu", details={"prefix_caching": True})
    warm = Finding(Outcome.DIVERGENT, 1, 0, "", position=5)
    assert find_hints(warm, request(), 4, cached) == ("the prefix cache is on and warm in round 1",)
    assert find_hints(finding(5), request(), 4, cached) == ()


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["It is ", "nine", "ten"], ("as text, after 'It is ': target only 'nine', this engine 'ten'",)),
        (["It is ", "ten", "ten"], ()),
        ([None, None, None], ()),
    ],
)
def test_the_difference_as_text(texts: list[str | None], told: tuple[str, ...]) -> None:
    """Where there is a tokenizer, and it does not leave out just the special tokens that differ."""
    seen = Finding(Outcome.DIVERGENT, 0, 0, "", position=1, expected=(1, 2), seen=(1, 9))
    assert as_text(seen, request(), lambda *_: texts) == told


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ((1, 9), "it occurs in the same way with this request alone at batch 1"),
        ((1, 2), "it depends on the batch: alone at batch 1 the request is right"),
        ((1, 8), "alone at batch 1 it is wrong in another way, from token 1 on"),
    ],
)
def test_whether_it_occurs_alone(tokens: tuple[int, ...], told: str) -> None:
    seen = Finding(Outcome.DIVERGENT, 0, 0, "", position=1, expected=(1, 2), seen=(1, 9))
    assert occurs_alone(seen, Generation((5,), tokens, "length")) == told
