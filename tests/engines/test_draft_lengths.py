"""Transformers with its own ways to draft: by the target's first layers, and by schedules of how many tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.engines.test_memory import DRAFT, GAMMA, PAIR, REACH, TARGET, TOKENS, random_prompts

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Speculation
from pytest_specdec.metrics.acceptance import acceptance_part
from pytest_specdec.metrics.rounds import Rounds
from pytest_specdec.models import expected_assistance, expected_continuation, parse
from pytest_specdec.models.truth import follower
from pytest_specdec.run.session import Session
from pytest_specdec.verdict.coverage import Drafting
from pytest_specdec.workloads.workload import Request, Workload

PROMPTS = random_prompts([REACH + 1] * 2)
ASKED = tuple(Request(tuple(ids), TOKENS) for ids in PROMPTS)
SCHEDULES = ["heuristic", pytest.param("heuristic_transient", marks=pytest.mark.thorough)]
pytestmark = [pytest.mark.cpu, pytest.mark.specdec(**PAIR, dtype="float32")]


def decode(session: Session, spec: EngineSpec, **options: Any) -> Speculation:
    """What is counted while every token is the known one; the same in a second round."""
    drafting = replace(spec, speculative_options=options)
    with session.pool.using(drafting) as engine:
        runs = [one_pass(engine, Workload("lengths", ASKED, concurrency=1)) for _ in range(2)]
    known = [tuple(expected_continuation(TARGET, ids, TOKENS)) for ids in PROMPTS]
    assert [[answer.token_ids for answer in run.generations] for run in runs] == [known, known]
    first, second = (run.speculation for run in runs)
    assert first == second is not None
    part = acceptance_part(Rounds(tuple(runs), (1.0, 1.0)), drafting.most_drafted)
    assert part.rate.value == first.accepted_tokens / first.draft_tokens
    assert Drafting(drafting, dict(enumerate(runs)), at_once=1, requests=ASKED).failures == []
    return first


@pytest.mark.specdec(draft=None, method="early_exit")
def test_the_first_layers_draft(specdec_session: Session, transformers_spec: EngineSpec) -> None:
    """Two of four have not read all that decides the next token, and most is rejected."""
    half = decode(specdec_session, transformers_spec, assistant_early_exit=2)
    assert 0 < half.accepted_tokens < half.draft_tokens / 4


@pytest.mark.thorough
@pytest.mark.specdec(draft=None, method="early_exit")
def test_all_layers_draft(specdec_session: Session, transformers_spec: EngineSpec) -> None:
    """They propose what the target emits, and every counter is foretold."""
    every = decode(specdec_session, transformers_spec, assistant_early_exit=4)
    assert every == expected_assistance(TARGET, TARGET, PROMPTS, TOKENS, GAMMA)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_of_draft_lengths(specdec_session: Session, transformers_spec: EngineSpec, schedule: str) -> None:
    """Two tokens more after a draft that was right, else one less; `heuristic` goes on so in the next request."""
    counted = decode(specdec_session, transformers_spec, num_assistant_tokens_schedule=schedule)
    steps = [step for step in steps_of(schedule) if step[0]]
    longest = max(drafted for drafted, _ in steps)
    assert counted.drafts == len(steps)
    assert counted.drafted == tuple(sum(drafted > at for drafted, _ in steps) for at in range(longest))
    assert counted.tried == tuple(sum(drafted > at <= kept for drafted, kept in steps) for at in range(longest))
    assert counted.accepted_tokens == sum(kept for _, kept in steps)


def steps_of(schedule: str) -> Iterator[tuple[int, int]]:
    """Tokens drafted and accepted, step by step, as transformers/generation/candidate_generator.py says."""
    gamma, drafting = GAMMA, follower(parse(DRAFT))
    for prompt in PROMPTS:
        ids = [*prompt, *expected_continuation(TARGET, prompt, TOKENS)]
        agrees, emitted = [drafting(ids, at) == ids[at] for at in range(len(prompt), len(ids))], 0
        gamma = gamma if schedule == "heuristic" else GAMMA
        while emitted < TOKENS:
            drafted = min(gamma, TOKENS - emitted - 1)
            kept = [*agrees[emitted : emitted + drafted], False].index(False)
            yield drafted, kept
            emitted += kept + 1
            gamma = gamma + 2 if kept == drafted else max(1, gamma - 1)


@pytest.mark.thorough
def test_a_drafter_that_is_not_sure_ends_its_draft(specdec_session: Session, transformers_spec: EngineSpec) -> None:
    """No token of this drafter is likely to 99 %, so each is the last of its draft."""
    counted = decode(specdec_session, transformers_spec, assistant_confidence_threshold=0.99)
    assert counted.draft_tokens == counted.drafts > counted.accepted_tokens > 0
