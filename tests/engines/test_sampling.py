"""Sampling on real engines: where the target's distribution is known, an exact loop is consistent, a lossy one is not.

The pair is constructed, in float32, over 64 tokens: at temperature 1.5 the token of the map has 0.62 of the
probability, its runner-up 0.32, and the drafter is right on 80 % of the tokens. So drafts are accepted and rejected at
every position. The target alone, run by Transformers, rates all 64 tokens after each prefix, which gives both engines
one truth.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import pytest

from pytest_specdec.engines.engine import Engine, one_pass
from pytest_specdec.engines.host import WorkerEngine, backend_source
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.models import expected_continuation, resolve
from pytest_specdec.run.session import Session
from pytest_specdec.verdict.equivalence import Outcome, answers_of
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.rated import MOST, look_at
from pytest_specdec.verdict.sampling import (
    Drawing,
    KnownTarget,
    SamplingVerdict,
    judge_sampling,
    rescore,
)
from pytest_specdec.verdict.sampling_evidence import RatedVerdict
from pytest_specdec.verdict.sampling_statistics import SamplingPlan
from pytest_specdec.workloads.workload import Request, Workload

VOCABULARY = 64
TEMPERATURE = 1.5
CONCURRENCY = 64
PROMPT = tuple(random.Random(0).choices(range(3, VOCABULARY), k=8))
REQUEST = Request(PROMPT, max_tokens=1, sampling={"temperature": TEMPERATURE})
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # matrices this small are not worth a second
REPAIR = """
def load_stock(config, load=load):
    return load(config)

def load(config):
    import torch
    import vllm.utils.cpu_triton_utils as kernels

    def expand(output, values, ends, replace_from, replace_to, MAX_NUM_TOKENS=None):
        kept = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
        output.copy_(torch.repeat_interleave(kept, torch.diff(ends, prepend=ends.new_zeros(1))))

    kernels._expand_kernel_impl = expand
    return load_stock(config)
"""

FILLED = """
def load_as_it_comes(config, load=load):
    return load(config)

def load(config):
    import vllm.utils.cpu_triton_utils as kernels
    own = kernels._expand_kernel_impl

    def expand(output, *arguments, **options):
        output.fill_(-1.0)
        return own(output, *arguments, **options)

    kernels._expand_kernel_impl = expand
    return load_as_it_comes(config)
"""

SPECULATIVE_SAMPLING = """
def load_stock(config, load=load):
    return load(config)

def load(config):
    import transformers.generation.utils as utils

    source, (old, new) = inspect.getsource(utils._speculative_sampling), {change!r}
    if source.count(old) != 1:
        raise ValueError(f"this version has {{source.count(old)}} times {{old!r}}; adapt the fault")
    exec(source.replace(old, new), utils.__dict__)
    return load_stock(config)
"""
FAULTS = {
    "acceptance too lax": ("is_accepted = r_i <= probability_ratio", "is_accepted = r_i / 2 <= probability_ratio"),
    "residual from the target": ("torch.clamp((p_n_plus_1 - q_n_plus_1), min=0)", "p_n_plus_1.clone()"),
    "bonus token from the drafter": ("        p_prime = p_n_plus_1\n    t =", "        p_prime = q[:, -1]\n    t ="),
    "temperature ignored in verification": ("p = new_logits.softmax(dim=-1)", "p = (1.5 * new_logits).softmax(dim=-1)"),
}

pytestmark = [
    pytest.mark.specdec(
        target=f"constructed:tiny?vocab={VOCABULARY}&margin=0.1&dtype=float32",
        draft=f"constructed:tiny:draft?vocab={VOCABULARY}&dtype=float32",
        method="draft_model",
        dtype="float32",
        max_model_len=64,
        environment=ONE_THREAD,
    )
]

known: dict[float, KnownTarget] = {}


def known_target(session: Session, target: EngineSpec, temperature: float = TEMPERATURE) -> KnownTarget:
    """The target's distribution at a temperature; kept, since each prefix costs a rating of every token."""
    if temperature not in known:
        request = replace(REQUEST, sampling={"temperature": temperature})
        known[temperature] = KnownTarget(rescore(partial(session.pool.using, target), request, VOCABULARY))
    return known[temperature]


def verdict_on(
    enter: Callable[[], AbstractContextManager[Engine]], target: KnownTarget, plan: SamplingPlan
) -> SamplingVerdict:
    """The verdict, after making sure that drafts were accepted and rejected."""
    draw = Drawing(enter, REQUEST, plan.tokens, CONCURRENCY)
    verdict = judge_sampling(draw, target, plan)
    assert draw.speculation is not None
    assert 0 < draw.speculation.accepted_tokens < draw.speculation.draft_tokens
    return verdict


def of_measured_tokens(
    session: Session,
    enter: Callable[[], AbstractContextManager[Engine]],
    target: EngineSpec,
    tokens: int = 48,
    **filters: float,
) -> RatedVerdict:
    """What 16 answers of this engine say, rated by the target alone."""
    sampling = {"temperature": TEMPERATURE, **filters}
    requests = [Request((3 + first, *PROMPT[1:]), tokens, sampling={**sampling, "seed": first}) for first in range(16)]
    with enter() as engine:
        run = one_pass(engine, Workload("w", tuple(requests), CONCURRENCY))
    with session.pool.using(target) as alone:
        seen = look_at(partial(alone.rank, most=MOST), answers_of(requests, {0: run}), (), target.dtype, Facts())
    assert seen is not None
    return RatedVerdict.of(seen[0], repeats=False)


@contextmanager
def changed(session: Session, spec: EngineSpec, change: str) -> Iterator[WorkerEngine]:
    """This engine with a change to its source, in a worker of its own."""
    settings = session.settings
    find, source = partial(resolve, cache=settings.cache), backend_source(spec.backend) + change
    engine = WorkerEngine(spec, settings.load_timeout, settings.timeout, find, source)
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.specdec(gamma=2)
def test_measured_tokens_of_transformers_are_the_targets(
    specdec_session: Session, transformers_ar: EngineSpec, transformers_spec: EngineSpec
) -> None:
    """All of them are rated, and a drafter that is wrong on a fifth of the tokens changes nothing."""
    enter = partial(specdec_session.pool.using, transformers_spec)
    verdict = of_measured_tokens(specdec_session, enter, transformers_ar)
    assert verdict.outcome.passes, verdict.in_words()
    assert (verdict.evidence.tokens, verdict.unrated) == (16 * 48, ())
    assert verdict.detects is not None
    assert verdict.detects < 0.2


@pytest.mark.thorough
@pytest.mark.parametrize(
    "filters", [{"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.05}, {"top_p": 0.9, "min_p": 0.01}], ids=str
)
@pytest.mark.specdec(gamma=2)
def test_filters_of_transformers_are_those_that_are_rated(
    specdec_session: Session, transformers_ar: EngineSpec, transformers_spec: EngineSpec, filters: dict[str, float]
) -> None:
    """No token is impossible, and those that a filter leaves have the probabilities that are expected."""
    enter = partial(specdec_session.pool.using, transformers_spec)
    verdict = of_measured_tokens(specdec_session, enter, transformers_ar, **filters)
    assert verdict.outcome.passes, verdict.in_words()
    assert verdict.evidence.tokens > 700


@pytest.mark.thorough
@pytest.mark.parametrize("change", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.specdec(gamma=2)
def test_faults_of_speculative_sampling_in_transformers_are_different(
    specdec_session: Session, transformers_ar: EngineSpec, transformers_spec: EngineSpec, change: tuple[str, str]
) -> None:
    """Told by measured tokens alone."""
    enter = partial(changed, specdec_session, transformers_spec, SPECULATIVE_SAMPLING.format(change=change))
    verdict = of_measured_tokens(specdec_session, enter, transformers_ar, tokens=54)
    assert verdict.outcome is Outcome.DIFFERENT, verdict.statement()


@pytest.mark.thorough
@pytest.mark.specdec(gamma=2)
def test_measured_tokens_of_vllm_are_the_targets_with_one_kernel_repaired(
    specdec_session: Session, vllm_ar: EngineSpec, vllm_spec: EngineSpec
) -> None:
    """Rated by vLLM itself; as it comes it is different, see below."""
    repaired = partial(changed, specdec_session, vllm_spec, REPAIR)
    verdict = of_measured_tokens(specdec_session, repaired, vllm_ar)
    assert verdict.outcome.passes, verdict.in_words()
    assert verdict.evidence.tokens == 16 * 48
    stock = of_measured_tokens(specdec_session, partial(specdec_session.pool.using, vllm_spec), vllm_ar)
    assert stock.outcome is Outcome.DIFFERENT, stock.statement()


def greedy_among_sampled(engine: Engine) -> list[tuple[int, ...]]:
    """What eight greedy requests are answered while their eight neighbours are sampled."""
    hot = {"temperature": TEMPERATURE}
    asked = [Request((3 + at, *PROMPT[1:]), 24, sampling=hot if at % 2 else {}) for at in range(16)]
    run = one_pass(engine, Workload("w", tuple(asked), CONCURRENCY))
    return [answer.token_ids for answer in run.generations[::2]]


@pytest.mark.thorough
@pytest.mark.specdec(gamma=2)
def test_greedy_requests_of_vllm_beside_sampled_ones_are_right_with_that_kernel_repaired(
    specdec_session: Session, vllm_spec: EngineSpec
) -> None:
    """As it comes their logits too are divided by what lies in memory, here −1, which makes the last the likeliest."""
    prompts = [(3 + at, *PROMPT[1:]) for at in range(0, 16, 2)]
    known = [tuple(expected_continuation(vllm_spec.target, prompt, 24)) for prompt in prompts]
    with changed(specdec_session, vllm_spec, REPAIR) as engine:
        assert greedy_among_sampled(engine) == known
    with changed(specdec_session, vllm_spec, FILLED) as engine:
        assert greedy_among_sampled(engine) != known


SMALL = SamplingPlan.for_gamma(1, samples=500, looks=1, total_variation=0.2)
LARGE = SamplingPlan.for_gamma(2, samples=3000, looks=2)


@pytest.mark.specdec(gamma=1)
def test_transformers_is_consistent(
    specdec_session: Session, transformers_ar: EngineSpec, transformers_spec: EngineSpec
) -> None:
    """Assisted generation by the book."""
    target = known_target(specdec_session, transformers_ar)
    verdict = verdict_on(partial(specdec_session.pool.using, transformers_spec), target, SMALL)
    assert verdict.passes, verdict.in_words()


@pytest.mark.thorough
@pytest.mark.specdec(gamma=1)
def test_another_temperature_is_different(
    specdec_session: Session, transformers_ar: EngineSpec, transformers_spec: EngineSpec
) -> None:
    """The same engine, held against the target at twice the temperature."""
    target = known_target(specdec_session, transformers_ar, 2 * TEMPERATURE)
    verdict = verdict_on(partial(specdec_session.pool.using, transformers_spec), target, SMALL)
    assert verdict.outcome is Outcome.DIFFERENT, verdict.in_words()


@pytest.mark.specdec(gamma=1, speculative_options={"assistant_ensemble_weight": 0.5})
def test_lossy_acceptance_of_transformers_is_different(
    specdec_session: Session, transformers_ar: EngineSpec, transformers_spec: EngineSpec
) -> None:
    """Its own option to accept more drafts than the theorem allows, meant to bias the output."""
    target = known_target(specdec_session, transformers_ar)
    verdict = verdict_on(partial(specdec_session.pool.using, transformers_spec), target, SMALL)
    assert verdict.outcome is Outcome.DIFFERENT, verdict.in_words()


@pytest.mark.thorough
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="vLLM 0.32 on a CPU: expand_kernel fills a copy, so drafts are judged at a random temperature",
)
@pytest.mark.specdec(gamma=2)
def test_vllm_is_consistent(specdec_session: Session, transformers_ar: EngineSpec, vllm_spec: EngineSpec) -> None:
    """Found by this very test; the next one shows that nothing else is wrong."""
    target = known_target(specdec_session, transformers_ar)
    verdict = verdict_on(partial(specdec_session.pool.using, vllm_spec), target, LARGE)
    assert verdict.passes, verdict.in_words()


@pytest.mark.thorough
@pytest.mark.specdec(gamma=2)
def test_vllm_with_that_kernel_repaired_is_consistent(
    specdec_session: Session, transformers_ar: EngineSpec, vllm_spec: EngineSpec
) -> None:
    """With 0.1 of total variation within sight at every position up to the bonus token."""
    target = known_target(specdec_session, transformers_ar)
    with changed(specdec_session, vllm_spec, REPAIR) as engine:
        verdict = verdict_on(lambda: nullcontext(engine), target, LARGE)
    assert verdict.passes, verdict.in_words()
