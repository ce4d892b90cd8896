"""Engines against the pair with memory, whose every token depends on what stands up to 24 positions back in the cache.

Tokens are equal to the known ones and counters to the foretold ones: no tie, no tolerance. Thorough runs ask for ten
thousand tokens of every engine in both dtypes, after prompts that end in every place of a block.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.engines.test_sampling import changed

from pytest_specdec.engines.engine import one_pass
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Run
from pytest_specdec.models import expected_assistance, expected_continuation, expected_speculation
from pytest_specdec.run.session import Session
from pytest_specdec.workloads.workload import Request, Workload

REACH = 24
TARGET = f"constructed:tiny?memory={REACH}"
DRAFT = f"constructed:tiny:draft?memory={REACH}&alpha=0.8"
HEAD = f"constructed:tiny:eagle?memory={REACH}&alpha=0.9"
HEAD_3 = f"constructed:tiny:eagle3?memory={REACH}&alpha=0.9"
QWEN3 = f"constructed:tiny-qwen3?memory={REACH}"
QWEN3_HEAD = f"constructed:tiny-qwen3:eagle?memory={REACH}&alpha=0.9"
REDUCED_HEAD_3 = f"constructed:tiny-qwen3:eagle3?memory={REACH}&draft_vocab=896"
MEDUSA = "constructed:tiny:medusa?alpha=0.9"
DFLASH = "constructed:tiny:dflash?alpha=0.9"
MIMO = f"constructed:tiny-mimo?memory={REACH}"
OWN_MODULES = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
GAMMA = 4
TOKENS = 65  # of each answer; whole steps, where everything is accepted

PAIR = {
    "target": TARGET,
    "draft": DRAFT,
    "method": "draft_model",
    "gamma": GAMMA,
    "max_model_len": 512,
    "environment": {"OMP_NUM_THREADS": "1"},
}

pytestmark = [pytest.mark.cpu, pytest.mark.specdec(**PAIR)]


def random_prompts(lengths: Sequence[int]) -> list[list[int]]:
    """Prompts of random tokens."""
    drawn = random.Random(7)
    return [[drawn.randrange(3, 1024) for _ in range(length)] for length in lengths]


def prompts_that_hold_their_answers(count: int) -> list[list[int]]:
    """A beginning, what follows it, and the beginning again: lookup in the prompt finds what comes next."""
    begun = random_prompts([REACH + 1] * count)
    return [[*ids, *expected_continuation(TARGET, ids, TOKENS + GAMMA), *ids] for ids in begun]


class Asked(NamedTuple):
    """How many prompts, and in which dtype."""

    count: int
    dtype: str

    @property
    def prompts(self) -> list[list[int]]:
        """From the shortest that there may be on; many are each a token longer, few reach over several blocks."""
        step = 1 if self.count > 16 else 9
        return random_prompts([REACH + 1 + step * number for number in range(self.count)])


SIZES = [
    Asked(16, "float32"),
    *(pytest.param(Asked(160, dtype), marks=pytest.mark.thorough) for dtype in ("float32", "bfloat16")),
]


@pytest.fixture(params=SIZES, ids=lambda asked: f"{asked.count}-{asked.dtype}")
def asked(request: pytest.FixtureRequest) -> Asked:
    """A few prompts, and in thorough runs many."""
    return Asked(*request.param)


def decode_known(session: Session, engine: EngineSpec, dtype: str, prompts: Sequence[Sequence[int]]) -> Run:
    """A run of which every token is the known one."""
    asked = Workload("memory", tuple(Request(tuple(ids), TOKENS) for ids in prompts), concurrency=8)
    with session.pool.using(replace(engine, dtype=dtype)) as loaded:
        run = one_pass(loaded, asked)
    known = [tuple(expected_continuation(engine.target, ids, TOKENS)) for ids in prompts]
    assert [generation.token_ids for generation in run.generations] == known
    return run


def test_vllm_alone(specdec_session: Session, vllm_ar: EngineSpec, asked: Asked) -> None:
    """Every one of the tokens."""
    decode_known(specdec_session, vllm_ar, asked.dtype, asked.prompts)


def test_vllm_with_a_drafter(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """Every counter too."""
    run = decode_known(specdec_session, vllm_spec, asked.dtype, asked.prompts)
    assert run.speculation == expected_speculation(TARGET, DRAFT, asked.prompts, TOKENS, GAMMA)


@pytest.mark.specdec(method="ngram", draft=None)
def test_vllm_by_ngrams(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """What is looked up is always right."""
    prompts = prompts_that_hold_their_answers(asked.count)
    run = decode_known(specdec_session, vllm_spec, asked.dtype, prompts)
    assert run.speculation == expected_speculation(TARGET, TARGET, prompts, TOKENS, GAMMA)


@pytest.mark.thorough
@pytest.mark.specdec(method="custom_class", draft="custom_drafter.Again", environment=OWN_MODULES)
def test_vllm_with_a_class_of_the_user(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """The same lookup, as a class that vLLM imports by its name."""
    prompts = prompts_that_hold_their_answers(asked.count)
    run = decode_known(specdec_session, vllm_spec, asked.dtype, prompts)
    assert run.speculation == expected_speculation(TARGET, TARGET, prompts, TOKENS, GAMMA)


@pytest.mark.skipif(find_spec("arctic_inference") is None, reason="arctic-inference is not here: docs/methods.md")
@pytest.mark.specdec(method="suffix", draft=None)
def test_vllm_by_suffixes(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """What is looked up is always right, and a round finds none of the answers of the round before."""
    prompts = prompts_that_hold_their_answers(asked.count)
    first, second = (decode_known(specdec_session, vllm_spec, asked.dtype, prompts).speculation for _ in range(2))
    assert first is not None
    assert (first.draft_tokens > 0, second) == (True, first)


@pytest.mark.thorough
@pytest.mark.specdec(method="eagle", draft=HEAD)
def test_vllm_with_an_eagle_head(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """The head's acceptance shows that its own cache is right."""
    run = decode_known(specdec_session, vllm_spec, asked.dtype, asked.prompts)
    assert run.speculation == expected_speculation(TARGET, HEAD, asked.prompts, TOKENS, GAMMA)


@pytest.mark.specdec(target=QWEN3, method="eagle", draft=QWEN3_HEAD)
def test_vllm_with_an_eagle_head_for_qwen3(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """A head of Llama's architecture on a target of another."""
    run = decode_known(specdec_session, vllm_spec, asked.dtype, asked.prompts)
    assert run.speculation == expected_speculation(QWEN3, QWEN3_HEAD, asked.prompts, TOKENS, GAMMA)


@pytest.mark.thorough
@pytest.mark.specdec(method="eagle3", draft=HEAD_3)
def test_vllm_with_an_eagle3_head(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """Three hidden states of the target, then its own, and its own cache are right."""
    run = decode_known(specdec_session, vllm_spec, asked.dtype, asked.prompts)
    assert run.speculation == expected_speculation(TARGET, HEAD_3, asked.prompts, TOKENS, GAMMA)


@pytest.mark.specdec(target=QWEN3, method="eagle3", draft=REDUCED_HEAD_3)
def test_vllm_with_a_reduced_draft_vocabulary(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """An EAGLE-3 head with 896 output rows: of the 1,021 ordinary tokens 125 are never proposed."""
    run = decode_known(specdec_session, vllm_spec, asked.dtype, asked.prompts)
    assert run.speculation == expected_speculation(QWEN3, REDUCED_HEAD_3, asked.prompts, TOKENS, GAMMA)


@pytest.mark.thorough
@pytest.mark.specdec(target="constructed:tiny", method="medusa", draft=MEDUSA)
def test_vllm_with_medusas_heads(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """Which attend to nothing, so the pair has no memory."""
    run = decode_known(specdec_session, vllm_spec, asked.dtype, asked.prompts)
    assert run.speculation == expected_speculation(vllm_spec.target, MEDUSA, asked.prompts, TOKENS, GAMMA)


@pytest.mark.thorough
@pytest.mark.specdec(target="constructed:tiny", method="dflash", draft=DFLASH)
def test_vllm_with_a_dflash_drafter(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """Each place of a block reads the target's states, kept for the token eight positions back."""
    run = decode_known(specdec_session, vllm_spec, asked.dtype, asked.prompts)
    assert run.speculation == expected_speculation(vllm_spec.target, DFLASH, asked.prompts, TOKENS, GAMMA)


@pytest.mark.specdec(target=MIMO, method="mtp", draft=None)
def test_vllm_with_multi_token_prediction(specdec_session: Session, vllm_spec: EngineSpec, asked: Asked) -> None:
    """By the target's own layer, right on every token; vLLM masks the first token that it takes in."""
    prompts = random_prompts([len(ids) + 1 for ids in asked.prompts])
    run = decode_known(specdec_session, vllm_spec, asked.dtype, prompts)
    assert run.speculation == expected_speculation(MIMO, MIMO, prompts, TOKENS, GAMMA)


def test_transformers_alone(specdec_session: Session, transformers_ar: EngineSpec, asked: Asked) -> None:
    """Every one of the tokens."""
    decode_known(specdec_session, transformers_ar, asked.dtype, asked.prompts)


def test_transformers_with_a_drafter(specdec_session: Session, transformers_spec: EngineSpec, asked: Asked) -> None:
    """Every counter too, as Transformers counts."""
    run = decode_known(specdec_session, transformers_spec, asked.dtype, asked.prompts)
    assert run.speculation == expected_assistance(TARGET, DRAFT, asked.prompts, TOKENS, GAMMA)


@pytest.mark.specdec(method="prompt_lookup", draft=None, speculative_options={"max_matching_ngram_size": 5})
def test_transformers_by_lookup(specdec_session: Session, transformers_spec: EngineSpec, asked: Asked) -> None:
    """What is looked up is always right; the answer ends with a whole step."""
    prompts = prompts_that_hold_their_answers(asked.count)
    run = decode_known(specdec_session, transformers_spec, asked.dtype, prompts)
    assert run.speculation == expected_assistance(TARGET, TARGET, prompts, TOKENS, GAMMA)


def words(tokens: Sequence[int]) -> str:
    """What ordinary tokens read as after a prompt."""
    return "".join(f" t{token}" for token in tokens)


def test_vllm_stops_at_a_text_within_a_step(specdec_session: Session, vllm_spec: EngineSpec) -> None:
    """Ids end with the token that completes the stop text, the text before it; the tokenizer reads the same."""
    prompts = Asked(16, "float32").prompts
    known = [expected_continuation(TARGET, ids, TOKENS) for ids in prompts]
    stops = [f"t{answer[10 + number]}" for number, answer in enumerate(known)]
    asked = [Request(tuple(ids), TOKENS, stop=(stop,)) for ids, stop in zip(prompts, stops, strict=True)]
    with specdec_session.pool.using(replace(vllm_spec, dtype="float32")) as engine:
        answers = one_pass(engine, Workload("stopped", tuple(asked), concurrency=8)).generations
        read = engine.decode(asked, [answer.token_ids for answer in answers])
    ends = [next(n for n in range(1, TOKENS) if stop in words(ids[:n])) for ids, stop in zip(known, stops, strict=True)]
    right = [tuple(ids[:end]) for ids, end in zip(known, ends, strict=True)]
    assert [(each.token_ids, each.finish_reason) for each in answers] == [(ids, "stop") for ids in right]
    assert list(read) == [words(ids) for ids in right]
    assert [each.text for each in answers] == [text.partition(stop)[0] for text, stop in zip(read, stops, strict=True)]


COUNTS_DRAFTS = """
def load_stock(config, load=load):
    return load(config)

def load(config):
    from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    drafted, stock = [], RejectionSampler.forward

    def forward(self, metadata, *rest, **named):
        drafted[:] = metadata.num_draft_tokens
        output = stock(self, metadata, *rest, **named)
        drafted.clear()
        return output

    def apply(self, logits):
        for row, (least, before, ends, _) in self.min_toks.items():
            if len(before) + (drafted[row] if drafted else 0) < least:
                logits[row, list(ends)] = float("-inf")
        return logits

    RejectionSampler.forward, MinTokensLogitsProcessor.apply = forward, apply
    return load_stock(config)
"""
COUNTS_NONE = "vLLM 0.32: min_tokens withholds an end from a bonus token without counting the drafts before it"
REPAIRS = [
    pytest.param("", marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=COUNTS_NONE)),
    pytest.param(COUNTS_DRAFTS, marks=pytest.mark.thorough),
]


@pytest.mark.parametrize("repair", REPAIRS, ids=["as it is", "repaired"])
@pytest.mark.specdec(draft=f"{DRAFT.partition('&')[0]}&alpha=1", dtype="float32")
def test_vllm_permits_an_end_from_min_tokens_on(specdec_session: Session, vllm_spec: EngineSpec, repair: str) -> None:
    """Also to a bonus token: where every draft is right, the sixth step has 21 tokens before it and a 26th as bonus."""
    prompts = random_prompts([REACH + 1] * 4)
    right = [tuple(expected_continuation(TARGET, ids, 26)) for ids in prompts]
    ends = [(tuple(ids), answer[-1]) for ids, answer in zip(prompts, right, strict=True)]
    asked = [Request(ids, TOKENS, min_tokens=24, stop_token_ids=(end,)) for ids, end in ends]
    with changed(specdec_session, vllm_spec, repair) as engine:
        answers = one_pass(engine, Workload("late", tuple(asked), concurrency=4)).generations
    assert [answer.token_ids for answer in answers] == right
