"""On a GPU: SGLang behind its own HTTP server, held against what must follow and against its own target alone.

Both arms are started by commands, and stand beside each other on one card. SGLang gives an EAGLE head the target's
embedding, so the heads here are wrong by a reduced draft vocabulary, which is SGLang's token map. Its lookup keeps
what it has seen of earlier answers, and no prompts, so it is asked for the same twice.

SGLANG_FLAGS holds further words of both commands, for a machine that lacks what SGLang takes by default.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib.util import find_spec

import pytest

from pytest_specdec.generation import Speculation
from pytest_specdec.models.truth import COUNTINGS, expected_counters

TINY = "constructed:tiny?memory=24"
TINY_DRAFT = "constructed:tiny:draft?memory=24&alpha=0.8"
TINY_HEAD = "constructed:tiny:eagle?memory=24&engine=sglang"
TINY_PARTIAL_HEAD = "constructed:tiny:eagle?memory=24&engine=sglang&draft_vocab=816"
LARGE = "constructed:llama-8b?memory=48"
LARGE_DRAFT = "constructed:llama-8b:draft?memory=48&alpha=0.8&layers=2"
LARGE_HEAD = "constructed:llama-8b:eagle?memory=48&engine=sglang&draft_vocab=102602"
TOKENS = 65
CONTEXT = 2048
COMMAND = [
    *(sys.executable, "-m", "sglang.launch_server", "--model-path", "{model}", "--host", "{host}", "--port", "{port}"),
    *("--dtype", "bfloat16", "--context-length", str(CONTEXT), "--mem-fraction-static", "0.4"),
    *("--max-total-tokens", "65536", "--max-running-requests", "32", "--cuda-graph-max-bs-decode", "32"),
    *("--attention-backend", "triton", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
    *("--disable-radix-cache", "--disable-prefill-cuda-graph", "--incremental-streaming-output"),
    *os.environ.get("SGLANG_FLAGS", "").split(),
]
ALONE = {"protocol": "sglang", "command": COMMAND}
SIMULATED = {"SGLANG_SIMULATE_ACC_LEN": "3", "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}


def chain(algorithm: str, gamma: int, *words: str) -> dict[str, object]:
    """A server that drafts a chain of γ tokens."""
    steps = ["--speculative-num-steps", str(gamma), "--speculative-num-draft-tokens", str(gamma + 1)]
    said = ["--speculative-algorithm", algorithm, "--speculative-eagle-topk", "1", *steps, *words]
    return {**ALONE, "speculation": said}


def drafter(algorithm: str, gamma: int, *words: str) -> dict[str, object]:
    """The same with a model that drafts."""
    return chain(algorithm, gamma, "--speculative-draft-model-path", "{draft}", *words)


def lookup(gamma: int) -> dict[str, object]:
    """A server that looks up one continuation of γ tokens."""
    breadth = ["--speculative-ngram-max-bfs-breadth", "1", "--speculative-num-draft-tokens", str(gamma + 1)]
    return {**ALONE, "speculation": ["--speculative-algorithm", "NGRAM", *breadth]}


TOKEN_MAP = ("--speculative-token-map", "{draft}/token_map.pt")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed"),
    pytest.mark.specdec(dtype="bfloat16", max_model_len=CONTEXT, reference=ALONE),
]
tiny = partial(pytest.mark.specdec, target=TINY)
large = partial(pytest.mark.specdec, target=LARGE, scenario="scenarios/gpu/thirty-two.toml")


@pytest.fixture
def walks(walks_of):
    """Six prompts, four answers at once, two rounds."""
    return walks_of(TINY, (7, 90, 311, 555, 702, 960), TOKENS, concurrency=4, rounds=2)


def expected_of(session, engine, scenario, rounds) -> Speculation:
    """What SGLang counts in so many rounds: it does so as vLLM does."""
    asked = [(request.prompt_ids, request.max_tokens) for request in session.workload(engine, scenario).requests]
    return expected_counters(COUNTINGS["vllm"], (engine.target, engine.draft), asked * rounds, engine.gamma)


def gate_what_is_known(specdec, session, engine, scenario) -> None:
    """Every token is the known one, and every counter of the rounds that were measured."""
    record = specdec(engine, scenario)
    told, rounds = record.acceptance, record.throughput.rounds
    counts = (told.drafts, told.draft_tokens, told.accepted_tokens, told.accepted_per_position)
    assert (record.verdict.outcome, record.verdict.known_truth.wrong.value) == ("identical", 0)
    assert Speculation(*(each.value for each in counts)) == expected_of(session, engine, scenario, rounds)


def gate_lookup(specdec, engine, scenario) -> None:
    """Every token is the known one, and what was answered before is found again."""
    record = specdec(engine, scenario.model_copy(update={"prefix_cache": "keep"}))
    assert (record.verdict.outcome, record.verdict.known_truth.wrong.value) == ("identical", 0)
    assert record.acceptance.accepted_tokens.value > 0


@tiny(method="eagle", draft=TINY_HEAD, gamma=4, server=drafter("EAGLE", 4))
def test_target_only(specdec, openai_server, walks):
    """Every token is the known one, and no prompt was in the cache."""
    record = specdec(openai_server.target_only(), walks)
    assert record.verdict.known_truth.wrong.value == 0
    assert record.throughput.prefix_cache_hits.value in (0, None)


@tiny(method="eagle", draft=TINY_HEAD, gamma=4, server=drafter("EAGLE", 4))
def test_a_head_that_is_always_right(specdec, specdec_session, openai_server, walks):
    """All that it proposes is accepted."""
    gate_what_is_known(specdec, specdec_session, openai_server, walks)


@tiny(method="eagle", draft=TINY_PARTIAL_HEAD, gamma=2, server=drafter("EAGLE", 2, *TOKEN_MAP))
@tiny(method="eagle", draft=TINY_PARTIAL_HEAD, gamma=4, server=drafter("EAGLE", 4, *TOKEN_MAP))
def test_a_head_that_lacks_tokens(specdec, specdec_session, openai_server, walks):
    """One token in five is never proposed."""
    gate_what_is_known(specdec, specdec_session, openai_server, walks)


@tiny(method="draft_model", draft=TINY_DRAFT, gamma=4, server=drafter("STANDALONE", 4))
def test_draft_model(specdec, specdec_session, openai_server, walks):
    """A draft model that is wrong on one token in five."""
    gate_what_is_known(specdec, specdec_session, openai_server, walks)


@tiny(method="ngram", draft=None, gamma=4, server=lookup(4))
def test_ngram(specdec, openai_server, walks):
    """Lookup in what was answered before."""
    gate_lookup(specdec, openai_server, walks)


@tiny(method="draft_model", draft=TINY_DRAFT, gamma=4, server=drafter("STANDALONE", 4), environment=SIMULATED)
def test_simulated_acceptance_is_red(specdec, openai_server, walks):
    """Three tokens a step are taken, whatever the target says."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)^divergent: "):
        specdec(openai_server, walks)


@pytest.mark.thorough
@large(method="eagle", draft=LARGE_HEAD, gamma=4, server=drafter("EAGLE", 4, *TOKEN_MAP))
@large(method="eagle", draft=LARGE_HEAD, gamma=2, server=drafter("EAGLE", 2, *TOKEN_MAP))
@large(method="draft_model", draft=LARGE_DRAFT, gamma=4, server=drafter("STANDALONE", 4))
def test_a_drafter_of_eight_billion(specdec, specdec_session, openai_server, scenario):
    """Thirty-two answers at once."""
    gate_what_is_known(specdec, specdec_session, openai_server, scenario)


@pytest.mark.thorough
@large(method="ngram", draft=None, gamma=4, server=lookup(4))
def test_lookup_for_eight_billion(specdec, openai_server, scenario):
    """The same without a drafter."""
    gate_lookup(specdec, openai_server, scenario)
