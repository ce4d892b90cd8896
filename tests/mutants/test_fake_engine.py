"""The fake engine that carries the mutants: its context model is one where faults show, and its sampling is right.

The wrong residual is a fault of sampling alone: its tokens are all likely ones, only too often or too seldom. So it is
told here by the frequencies of first tokens, against the distribution that the model's logits give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from scipy.special import chdtrc
from tests.mutants.faults.near_ties import is_near_tie, ulps_between

from pytest_specdec.engines.fake import FAULTS, Decoder, FakeEngine, Progress, fault
from pytest_specdec.engines.fake.models import (
    EOS,
    ContextModel,
    argmax,
    discourage,
    probabilities,
)
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError
from pytest_specdec.generation import Generation, Run
from pytest_specdec.workloads.workload import Request, Workload

PROMPT = (5, 9, 23)
TARGET = EngineSpec(backend="fake", target="t", options={"model": "context"})
DRAFTED = replace(TARGET, draft="d", method="draft_model", gamma=3)
SAMPLES, TEMPERATURE = 4000, 2.0


def model(
    near_tie_rate: float = 0.0, close_rate: float = 0.0, eos_rate: float = 0.0, vocabulary: int = 103
) -> ContextModel:
    """A context model whose near-ties flip with every shape."""
    return ContextModel(vocabulary, near_tie_rate, close_rate, flip_rate=1.0, eos_rate=eos_rate)


def prefixes(count: int) -> list[tuple[int, ...]]:
    return [(*PROMPT, number) for number in range(count)]


def decode(spec: EngineSpec, *requests: Request, concurrency: int = 1) -> Run:
    """One pass of a fresh engine."""
    engine = FakeEngine(spec)
    engine.prepare(Workload("w", requests, concurrency))
    engine.run()
    return engine.collect()


def answer(spec: EngineSpec, request: Request) -> Generation:
    return decode(spec, request).generations[0]


@pytest.mark.parametrize("other", [(9, 23), (5, 9), (5, 9, 9, 23), (9, 5, 23)], ids=str)
def test_every_token_of_the_prefix_matters(other: tuple[int, ...]) -> None:
    """One too few, one too many, or two in another order: other logits, not only other ones at the top."""
    mine, its = model().logits(PROMPT), model().logits(other)
    assert sum(one != another for one, another in zip(mine, its, strict=True)) > 80


def test_the_same_prefix_has_the_same_logits_in_every_process() -> None:
    """The hash is not Python's, which differs from process to process."""
    assert argmax(model().logits(PROMPT)) == 80


def test_rates_are_what_they_are_called() -> None:
    """Near-ties, close decisions and EOS, within four standard deviations of 2000 draws."""
    rated = [model(0.1, 0.2, 0.3).logits(prefix) for prefix in prefixes(2000)]
    assert abs(sum(map(is_near_tie, rated)) - 200) < 54
    assert abs(sum(ulps_between(logits) == 8 for logits in rated) - 400) < 72
    assert abs(sum(argmax(logits) == EOS for logits in rated) - 600) < 82


def test_rounding_flips_near_ties_and_nothing_else() -> None:
    """With a shape the runner-up of a near-tie wins; by the exact logits it lies one bfloat16 ULP below."""
    wavering = model(near_tie_rate=0.5)
    for prefix in prefixes(100):
        exact, rounded = wavering.logits(prefix), wavering.logits(prefix, "4x3")
        assert (argmax(exact) != argmax(rounded)) == is_near_tie(exact)
        assert exact[argmax(exact)] - exact[argmax(rounded)] in (0.0, 0.0625)


def test_speculation_changes_nothing_without_near_ties() -> None:
    """Both arms give the same tokens, and some drafts are accepted and some not."""
    exact = {"model": "context", "near_tie_rate": 0.0}
    target, drafted = (decode(replace(spec, options=exact), Request(PROMPT, 64)) for spec in (TARGET, DRAFTED))
    assert target.generations[0].token_ids == drafted.generations[0].token_ids
    assert drafted.speculation is not None
    assert 0 < drafted.speculation.accepted_tokens < drafted.speculation.draft_tokens


def test_the_drafter_agrees_as_often_as_alpha_says() -> None:
    """Within four standard deviations of 2000 prefixes."""
    assert abs(sum(model().agrees(prefix, 0.7) for prefix in prefixes(2000)) - 1400) < 82


def test_min_tokens_holds_ends_back() -> None:
    """A model that always wants to end does so as soon as it may."""
    eager = replace(TARGET, options={"model": "context", "eos_rate": 1.0})
    request = Request(PROMPT, 20, min_tokens=7, ignore_eos=False)
    assert (len(answer(eager, request).token_ids), answer(eager, request).token_ids[-1]) == (8, EOS)


def test_a_bias_decides() -> None:
    """A hundred logits more, and nothing else is said."""
    assert set(answer(DRAFTED, Request(PROMPT, 9, sampling={"logit_bias": {"17": 100.0}})).token_ids) == {17}


def test_a_penalty_forbids_repetition() -> None:
    """With a penalty above every gap, twenty tokens of a vocabulary of twenty-three are all different."""
    few = replace(DRAFTED, options={"model": "context", "vocabulary": 23})
    tokens = answer(few, Request(PROMPT, 20, sampling={"presence_penalty": 50.0})).token_ids
    assert len(set(tokens)) == 20


def test_a_repetition_penalty_counts_each_token_once() -> None:
    """What is above 0 is divided, what is below multiplied."""
    assert discourage([2.0, -2.0, 1.0], [0, 1, 1], 2.0) == [1.0, -4.0, 1.0]


def test_a_stop_text_ends_ids_and_text() -> None:
    """The ids hold the token that completed it, the text ends before it."""
    plain = answer(DRAFTED, Request(PROMPT, 40)).token_ids
    stopped = answer(DRAFTED, Request(PROMPT, 40, stop=(f"<{plain[6]}>",)))
    end = plain.index(plain[6]) + 1
    assert (stopped.token_ids, stopped.finish_reason) == (plain[:end], "stop")
    assert stopped.text == "".join(f"<{token}>" for token in plain[: end - 1])


def test_a_fault_of_ones_own_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subclass of the decoder, entered by `fault`, is what the option of that name gives."""
    monkeypatch.setitem(FAULTS, "says 17", Decoder)

    @fault("says 17")
    class Says17(Decoder):
        def emit(self, progress: Progress, burst: Sequence[int], token: int) -> int:
            return 17

    faulty = replace(DRAFTED, speculative_options={"fault": "says 17"})
    assert set(answer(faulty, Request(PROMPT, 9)).token_ids) == {17}


def test_an_unknown_model_is_refused_by_name() -> None:
    """The error lists the models there are."""
    with pytest.raises(EngineError, match="no model 'contxt'; it has: map, context"):
        FakeEngine(replace(TARGET, options={"model": "contxt"}))


def test_speculative_sampling_has_the_targets_distribution() -> None:
    """First tokens of 4000 seeds, with a drafter that is wrong everywhere, pass a chi-square test at level 10^-3."""
    assert first_tokens_p_value(None) > 1e-3


def test_a_wrong_residual_has_another_distribution() -> None:
    """Sampling a rejected draft's place from p instead of norm(max(p - q, 0)) fails it by far."""
    assert first_tokens_p_value("wrong residual") < 1e-12


def first_tokens_p_value(fault: str | None) -> float:
    """Chi-square test of first tokens against the softmax of the model's logits."""
    options = {"model": "context", "vocabulary": 8, "near_tie_rate": 0.0}
    spec = replace(DRAFTED, gamma=1, options=options, speculative_options={"alpha": 0.0, "fault": fault})
    requests = [Request(PROMPT, 2, sampling={"temperature": TEMPERATURE, "seed": seed}) for seed in range(SAMPLES)]
    seen = Counter(each.token_ids[0] for each in decode(spec, *requests).generations)
    expected = [share * SAMPLES for share in probabilities(model(vocabulary=8).logits(PROMPT), TEMPERATURE)]
    assert min(expected) >= 5, "too few for a chi-square test"
    statistic = sum((seen[token] - often) ** 2 / often for token, often in enumerate(expected))
    return float(chdtrc(len(expected) - 1, statistic))
