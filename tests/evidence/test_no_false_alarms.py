"""No false alarms: the target against itself, at other batch sizes and in another order, must never be red.

Near-ties are real here: a constructed target whose runner-up is close behind on every token, and SmolLM2 on English
prompts, both in bfloat16. What was seen is written to docs/evidence/false-alarms.md.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.generation import Run
from pytest_specdec.hardware import cores, emulates_bfloat16, processor
from pytest_specdec.verdict.equivalence import Outcome, Verdict, judge
from pytest_specdec.verdict.noise import ROWS, VERIFYING
from pytest_specdec.verdict.reference import Reference, Sample, calibrate, verify_itself
from pytest_specdec.workloads.workload import Request, Workload

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "false-alarms.md"
TOPICS = (
    *("the sea", "a bicycle", "winter", "an old clock", "bread", "a library", "the moon", "a garden", "rain", "honey"),
    *("a violin", "chess", "a lighthouse", "a market", "a bridge", "tea", "a map", "a mountain", "a letter", "a train"),
)
ALONE = 50
REQUESTS = (
    "Write two sentences about {}.",
    "List five words that go with {}.",
    "Explain to a child what is special about {}.",
    "Tell a short story that begins with {}.",
    "What would you ask someone who knows all about {}?",
    "Describe {} without naming it.",
    "Give three facts about {}.",
    "Write a short poem about {}.",
    "Compare {} with a cloud.",
    "Why do people like {}?",
)


has_near_ties = pytest.mark.skipif(
    emulates_bfloat16(), reason="this processor emulates bfloat16 and rounds alike at every batch size: no near-ties"
)


def random_prompts(count: int, engine) -> list[tuple[int, ...]]:
    draw = random.Random(7)
    return [tuple(draw.randrange(3, engine.description.vocabulary) for _ in range(8)) for _ in range(count)]


def english_prompts(count: int, engine) -> list[tuple[int, ...]]:
    texts = [request.format(topic) for topic in TOPICS for request in REQUESTS][:count]
    return [tuple(ids) for ids in engine.encode(texts)]


def variations(workload: Workload) -> dict[str, Workload]:
    """The same requests at other batch sizes, and backwards, where each meets other neighbours."""
    backwards = replace(workload, requests=workload.requests[::-1])
    first = replace(workload, requests=workload.requests[:ALONE])
    return {
        "the same again": workload,
        f"one at a time, the first {ALONE}": replace(first, concurrency=1),
        "three at a time": replace(workload, concurrency=3),
        "twice the batch": replace(workload, concurrency=2 * workload.concurrency),
        "backwards": backwards,
    }


@has_near_ties
@pytest.mark.specdec(target="constructed:small?margin=0.003&layers_share=4", dtype="bfloat16")
def test_a_thousand_prompts_with_close_runners_up(specdec_session, vllm_ar):
    """Zero red over all variations of 1,000 prompts of a constructed target."""
    never_red(specdec_session, vllm_ar, partial(random_prompts, 1000), max_tokens=16, concurrency=48)


@has_near_ties
@pytest.mark.specdec(target="smollm2", dtype="bfloat16")
def test_two_hundred_english_prompts(specdec_session, vllm_ar):
    """Zero red over all variations of 200 prompts of SmolLM2."""
    never_red(specdec_session, vllm_ar, partial(english_prompts, 200), max_tokens=32, concurrency=8)


@pytest.mark.specdec(
    target="smollm2?layers=4", draft="smollm2?layers=2", method="draft_model", gamma=4, dtype="bfloat16"
)
def test_english_prompts_verified(specdec_session, vllm_ar, vllm_spec, monkeypatch):
    """A sound engine whose drafts are mostly wrong, beside either null: that of steps, and that of as many rows."""
    pool, gamma = specdec_session.pool, vllm_spec.gamma
    with pool.using(vllm_ar) as engine:
        requests = tuple(Request(ids, 32) for ids in english_prompts(60, engine))
        workload = Workload("verified", requests, concurrency=8)
        began = time.perf_counter()
        together = one_pass(engine, workload)
        decoding = time.perf_counter() - began
        reference = calibrate(engine, workload, together, Sample(8), time.perf_counter)
        nulls = [timed(partial(verify_itself, reference, engine, workload, gamma))]
        monkeypatch.setattr(type(engine), "score_in_steps", lambda *_: None)
        nulls.append(timed(partial(verify_itself, reference, engine, workload, gamma)))
    with pool.using(vllm_spec) as speculating:
        run = one_pass(speculating, workload)
    with pool.using(vllm_ar) as engine:
        verdicts = [judge(workload, each.calibration, {0: run}, engine.score) for each, _ in nulls]
    costs = [seconds / decoding for _, seconds in nulls]
    add_section(f"{vllm_spec.label} beside each null", beside_nulls(workload, reference, run, verdicts, costs))
    assert [each.near_ties.null.shape for each in verdicts] == [VERIFYING, ROWS]
    assert all(each.passes for each in verdicts)


def never_red(session, spec, prompts, max_tokens: int, concurrency: int) -> None:
    with session.pool.using(spec) as engine:
        requests = tuple(Request(ids, max_tokens) for ids in prompts(engine))
        workload = Workload("false alarms", requests, concurrency)
        reference = calibrate(engine, workload, one_pass(engine, workload), Sample(8), time.perf_counter)
        verdicts = {
            name: judge_variation(engine, other, reference, workload) for name, other in variations(workload).items()
        }
    tell(spec.label, workload, reference, verdicts)
    assert {name: verdict.outcome for name, verdict in verdicts.items() if not verdict.passes} == {}
    assert sum(verdict.counts.get(Outcome.TIE.value, 0) for verdict in verdicts.values()) > 0


def timed(make):
    """What it makes, and the seconds that it took."""
    began = time.perf_counter()
    return make(), time.perf_counter() - began


def judge_variation(engine, variation: Workload, reference: Reference, workload: Workload) -> Verdict:
    """At a batch size of its own each is held against near-ties of that, as a gate would be."""
    order = [workload.requests.index(request) for request in variation.requests]
    run = one_pass(engine, variation)
    floor = reference.calibration.floor
    if variation.concurrency != workload.concurrency:
        floor = calibrate(engine, variation, run, Sample(0), time.perf_counter).calibration.floor
    certified = tuple(reference.calibration.certified[at] for at in order)
    return judge(variation, replace(reference.calibration, certified=certified, floor=floor), {0: run}, engine.score)


def tell(label: str, workload: Workload, reference: Reference, verdicts: dict[str, Verdict]) -> None:
    """Write or replace this workload's section of the page."""
    floor = reference.calibration.floor
    section = SECTION.format(
        about=about(workload, reference),
        floor=floor,
        bound=verdicts["the same again"].floor.bound,
        histogram=", ".join(f"{ulps}: {tokens}" for ulps, tokens in floor.histogram),
        rows="\n".join(row(name, verdict) for name, verdict in verdicts.items()),
    )
    add_section(label, section)


def add_section(label: str, section: str) -> None:
    """The page with this section at its end."""
    _, *sections = re.split(r"(?m)^(?=## )", PAGE.read_text("utf-8"))
    kept = [each for each in sections if not each.startswith(f"## {label}\n")]
    made = f"## {label}\n\n{section}"
    PAGE.write_text("\n".join(f"{each.rstrip()}\n" for each in [INTRODUCTION, *kept, made]), "utf-8")


def beside_nulls(
    workload: Workload, reference: Reference, run: Run, verdicts: Sequence[Verdict], costs: Sequence[float]
):
    """How often the target's own choices are near-ties in each shape, what it costs to know, and what is judged."""
    seen, counted = verdicts[0].near_ties, run.speculation
    rows = [
        f"| {each.null.shape} | {each.null.near_ties} of {each.null.tokens} | {cost:.2f} | {each.null.margin:g} | "
        f"{each.p_value:.2g} |"
        for each, cost in zip([verdict.near_ties for verdict in verdicts], costs, strict=True)
    ]
    return VERIFIED.format(
        about=about(workload, reference),
        counted=counted,
        seen=seen,
        outcome=count_outcomes(verdicts[0]),
        rows="\n".join(rows),
    )


def about(workload: Workload, reference: Reference) -> str:
    """Workload, versions and machine."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(reference.versions.items()))
    asked = f"{len(workload.requests)} prompts of {workload.requests[0].max_tokens} tokens"
    dtype = reference.calibration.floor.dtype
    return f"{asked}, concurrency {workload.concurrency}, {dtype}; {versions}; {processor()}, {cores()} cores."


def row(name: str, verdict: Verdict) -> str:
    ties = f"{verdict.near_ties.judged} of {verdict.near_ties.judged_tokens} | {verdict.near_ties.p_value:.2g}"
    return f"| {name} | {verdict.outcome.value} | {count_outcomes(verdict)} | {verdict.max_gap:.4g} | {ties} |"


def count_outcomes(verdict: Verdict) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(verdict.counts).items() if count)


INTRODUCTION = """# No false alarms

The target against itself: other batch sizes and another order change the arithmetic, never the model, so no verdict may
be red. Written by `tox -e evidence -- -k false_alarms`. Each is judged as the first gate of a session, against
near-ties of plain decoding at its own batch size, every answer rated. Larger samples, a verification that rounds twice
as often, and whole sessions are simulated: [greedy.md](greedy.md).

Near-ties need a processor that computes in bfloat16 (AVX512_BF16 or AMX). One that emulates it rounds alike at every
batch size, so the first two are skipped there.

"""
SECTION = """{about}

Calibration: {floor.tokens} tokens, {floor.near_ties} of them not the argmax, largest gap {floor.largest:.4g} ULPs, at
most {bound} are a tie; {floor.disagreements} of {floor.compared} prompts differ at batch 1;
tokens by gap in ULPs: {histogram}.

| target-only against itself | verdict | answers | largest gap in logits | near-ties | p |
|---|---|---|---|---|---|
{rows}

"""
VERIFIED = """{about}

{counted.accepted_tokens} of {counted.draft_tokens} drafts accepted; {seen.judged} of {seen.judged_tokens} tokens are
near-ties; answers: {outcome}. What the target's own output shows in each shape, what that costs beside decoding, how
many times as often near-ties may come, and how likely so many are then:

| null | near-ties | cost over decoding | margin | p |
|---|---|---|---|---|
{rows}
"""
