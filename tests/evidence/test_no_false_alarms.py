"""No false alarms: the target against itself, at other batch sizes and in another order, must never be red.

Near-ties are real here: a constructed target whose runner-up is close behind on every token, and SmolLM2 on English
prompts, both in bfloat16. What was seen is written to docs/evidence/false-alarms.md.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.hardware import cores, processor
from pytest_specdec.verdict.equivalence import Outcome, Verdict, judge
from pytest_specdec.verdict.reference import Reference, Sample, calibrate
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


@pytest.mark.specdec(target="constructed:small?margin=0.003&layers_share=4")
def test_a_thousand_prompts_with_close_runners_up(specdec_session, vllm_ar):
    """Zero red over all variations of 1,000 prompts of a constructed target."""
    never_red(specdec_session, vllm_ar, partial(random_prompts, 1000), max_tokens=16, concurrency=48)


@pytest.mark.specdec(target="smollm2")
def test_two_hundred_english_prompts(specdec_session, vllm_ar):
    """Zero red over all variations of 200 prompts of SmolLM2."""
    never_red(specdec_session, vllm_ar, partial(english_prompts, 200), max_tokens=32, concurrency=8)


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


def judge_variation(engine, variation: Workload, reference: Reference, workload: Workload) -> Verdict:
    """At a batch size of its own each is held against near-ties of that, as a gate would be."""
    order = [workload.requests.index(request) for request in variation.requests]
    run = one_pass(engine, variation)
    floor = reference.calibration.floor
    if variation.concurrency != workload.concurrency:
        floor = calibrate(engine, variation, run, Sample(0), time.perf_counter).calibration.floor
    certified = tuple(reference.calibration.certified[at] for at in order)
    return judge(variation, replace(reference.calibration, certified=certified, floor=floor), [run], engine.score)


def tell(label: str, workload: Workload, reference: Reference, verdicts: dict[str, Verdict]) -> None:
    """Write or replace this workload's section of the page."""
    floor = reference.calibration.floor
    section = SECTION.format(
        label=label,
        requests=len(workload.requests),
        max_tokens=workload.requests[0].max_tokens,
        concurrency=workload.concurrency,
        floor=floor,
        versions=", ".join(f"{name} {version}" for name, version in sorted(reference.versions.items())),
        machine=f"{processor()}, {cores()} cores",
        histogram=", ".join(f"{ulps}: {tokens}" for ulps, tokens in floor.histogram),
        rows="\n".join(row(name, verdict) for name, verdict in verdicts.items()),
    )
    sections = re.split(r"(?m)^(?=## )", PAGE.read_text()) if PAGE.exists() else [INTRODUCTION]
    kept = [each for each in sections if not each.startswith(f"## {label}\n")]
    PAGE.write_text("\n".join(f"{each.rstrip()}\n" for each in [*kept, section]))


def row(name: str, verdict: Verdict) -> str:
    ties = f"{verdict.near_ties.judged} of {verdict.near_ties.judged_tokens} | {verdict.near_ties.p_value:.2g}"
    return f"| {name} | {verdict.outcome.value} | {count_outcomes(verdict)} | {verdict.max_gap:.4g} | {ties} |"


def count_outcomes(verdict: Verdict) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(verdict.counts).items() if count)


INTRODUCTION = """# No false alarms

The target against itself: other batch sizes and another order change the arithmetic, never the model, so no verdict may
be red. Written by `tox -e evidence`.

"""
SECTION = """## {label}

{requests} prompts of {max_tokens} tokens, concurrency {concurrency}, {floor.dtype}; {versions}; {machine}.

Calibration: {floor.tokens} tokens, {floor.near_ties} of them not the argmax, largest gap {floor.largest:.4g} ULPs;
{floor.disagreements} of {floor.compared} prompts differ at batch 1; tokens by gap in ULPs: {histogram}.

| target-only against itself | verdict | answers | largest gap | near-ties | p |
|---|---|---|---|---|---|
{rows}

"""
