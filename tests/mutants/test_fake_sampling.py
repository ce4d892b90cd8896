"""The gate at a temperature, on the fake engine: what it says it would have found, and what a scenario may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.mutants.cases import SAMPLED, SMALL, SOME_SAMPLED, Case
from tests.mutants.trial import SURVIVED, Trial, run_trial

from pytest_specdec.engines.fake import FAULTS, FakeEngine, Progress, clock
from pytest_specdec.record.parts import RatedPart
from pytest_specdec.run.session import Session
from pytest_specdec.verdict.rated import MOST, OTHER_MODE
from pytest_specdec.verdict.sampling import is_sampled
from pytest_specdec.workloads.scenario import load_scenario
from pytest_specdec.workloads.workload import Request, Workload

Try = Callable[..., Trial]
FEW = {**SAMPLED, "count": 8, "max_tokens": 32, "rounds": 1}


@pytest.fixture
def run_fake(fake_session: Session, tmp_path: Path) -> Try:
    """Put an engine whose likeliest token has 0.7 of the probability to the gate; a sound one, if no fault is named."""

    def once(scenario: Mapping[str, Any], fault: str = "", **options: Any) -> Trial:
        case = Case(fault, "", "", scenario, options={**SMALL, **options}, alpha=0.3)
        (tmp_path / "s.toml").write_text(case.toml(), "utf-8")
        return run_trial(fake_session, case.spec(bool(fault)), load_scenario(tmp_path / "s.toml"), clock)

    return once


def rated_in(trial: Trial) -> RatedPart:
    """What the record says of measured tokens."""
    sampling = trial.record.verdict.sampling
    assert sampling is not None
    assert sampling.rated is not None
    return sampling.rated


def test_a_green_gate_says_what_it_would_have_found(run_fake: Try) -> None:
    """As total variation and as a share of tokens from the draft, in message and record alike."""
    trial = run_fake(FEW)
    assert (trial.outcome, trial.record.verdict.outcome) == (SURVIVED, "consistent")
    rated = rated_in(trial)
    assert (rated.tokens, rated.unrated) == (256, 0)
    assert 0.1 < rated.detects_total_variation.value < 0.3
    assert f"in 256 measured tokens: a total variation of {rated.detects_total_variation.value:.3f}" in rated.statement


def test_greedy_requests_among_sampled_ones_are_compared_and_named_by_their_own_numbers(run_fake: Try) -> None:
    """Every second request is greedy; the sound twin is consistent, with its greedy answers counted."""
    sound, faulty = run_fake(SOME_SAMPLED), run_fake(SOME_SAMPLED, "fields of a neighbour")
    assert (sound.outcome, sound.record.verdict.outcome) == (SURVIVED, "consistent")
    assert sum(sound.record.verdict.counts.values()) == 8 * 2
    assert rated_in(sound).tokens == 8 * 64 * 2
    assert faulty.outcome == "divergent"
    assert {each.request % 2 for each in faulty.record.verdict.findings} == {1}
    assert "s, greedy requests" in faulty.message


class BothWrong(FAULTS["lossy acceptance"], FAULTS["log-probabilities of 0"]):  # type: ignore[misc]
    """Tokens, and log-probabilities."""


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [("lossy acceptance", "divergent"), ("log-probabilities of 0", "logprobs"), ("both", "divergent")],
)
def test_wrong_greedy_tokens_are_the_outcome_where_the_sampled_ones_decide_nothing(
    run_fake: Try, monkeypatch: pytest.MonkeyPatch, fault: str, outcome: str
) -> None:
    """Too few sampled tokens for what is asked, or enough; wrong log-probabilities alone are told as such."""
    monkeypatch.setitem(FAULTS, "both", BothWrong)
    asked = {**SAMPLED, "sampling_in_turn": [{}, {"temperature": 0.0}], "detects": {"total_variation": 0.01}}
    asked["sampling"] = {"temperature": 1.0, "logprobs": 1}
    trial = run_fake(asked, fault)
    assert trial.outcome == outcome
    del asked["detects"]
    assert run_fake(asked, fault).outcome == outcome
    asked["detects"] = {"total_variation": 0.01}
    assert run_fake(asked).outcome == "undecidable"


def test_the_second_look_at_greedy_requests_has_the_same_company(
    run_fake: Try, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in their near-ties that comes with sampled neighbours is there at fresh prompts too."""
    flipped: type[Any] = FAULTS["every near-tie flipped"]

    class InCompany(flipped):
        """Near-ties of greedy requests are flipped while others are sampled."""

        def decode(self, workload: Workload, index: int, start: float) -> Any:
            """Note the company that a pass has."""
            self.company = any(map(is_sampled, workload.requests))
            return super().decode(workload, index, start)

        def choice(self, progress: Progress, burst: Sequence[int]) -> int:
            """Sound for all others."""
            wrong = self.company and not progress.temperature
            told: int = super().choice(progress, burst) if wrong else super(flipped, self).choice(progress, burst)
            return told

    monkeypatch.setitem(FAULTS, "in company", InCompany)
    asked = {**SOME_SAMPLED, "count": 80, "max_tokens": 128, "rounds": 1}
    assert run_fake(asked, "in company").outcome == "divergent"
    assert run_fake(asked).outcome == SURVIVED


def test_warm_up_is_rated_too(run_fake: Try) -> None:
    """Every token that was decoded is judged; a round more, untimed, is as many tokens more."""
    assert rated_in(run_fake({**FEW, "warmup_rounds": 1})).tokens == 512


def test_a_gate_that_cannot_see_what_is_asked_is_undecidable(run_fake: Try) -> None:
    """And says how many tokens are missing; with more of them it is green."""
    trial = run_fake({**FEW, "detects": {"total_variation": 0.1}})
    assert trial.outcome == "undecidable"
    assert "detects.total_variation = 0.1 is asked" in trial.message
    assert "too few tokens: about" in trial.message
    assert run_fake({**SAMPLED, "detects": {"total_variation": 0.1}}).outcome == SURVIVED


def test_what_rounding_hides_is_not_promised_of_more_tokens(run_fake: Try) -> None:
    assert "rounding hides so little" in run_fake({**FEW, "detects": {"total_variation": 0.001}}).message


@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.05}, {"seed": 11}], ids=str)
def test_a_token_that_a_filter_does_not_let_pass_is_seen(run_fake: Try, filters: Any) -> None:
    """The fake knows no filters, in neither arm, so its tokens are impossible where one is asked for."""
    trial = run_fake({**FEW, "sampling": {"temperature": 1.0, **filters}})
    passes = "seed" in filters
    assert trial.outcome == (SURVIVED if passes else "undecidable"), trial.message
    assert passes or "has no probability under the request's temperature and filters" in trial.message


def test_other_fields_leave_the_samples_drawn_anew(run_fake: Try) -> None:
    """Without power they decide nothing, unless the scenario asks for no more than they see."""
    biased = {**FEW, "sampling": {"temperature": 1.0, "logit_bias": {"17": 1.0}}}
    trial = run_fake(biased)
    assert trial.outcome == "undecidable"
    assert "ask for a larger total_variation (in a scenario, detects.total_variation)" in trial.message
    trial = run_fake({**biased, "detects": {"total_variation": 0.4}})
    assert (trial.outcome, trial.record.verdict.sampling.rated) == (SURVIVED, None)


def test_where_no_token_could_be_rated_the_samples_decide(run_fake: Try, monkeypatch: pytest.MonkeyPatch) -> None:
    """And they see nothing where next to all the probability lies on one token, however many are drawn."""
    told = FakeEngine.rank

    def rank(self: FakeEngine, requests: Sequence[Request], outputs: Sequence[Sequence[int]], most: int) -> Any:
        rows = told(self, requests, outputs, most)
        return [[replace(each, place=None, whole=False) for each in row] for row in rows] if most == MOST else rows

    monkeypatch.setattr(FakeEngine, "rank", rank)
    trial = run_fake({**FEW, "sampling": {"temperature": 0.01}})
    assert (rated_in(trial).tokens, rated_in(trial).unrated) == (0, 256)
    assert (trial.outcome, trial.record.verdict.outcome) == ("undecidable", "undecidable")
    assert "cannot be tested: no prefix came often enough" in trial.message


def test_where_no_difference_would_have_been_found_the_samples_decide(run_fake: Try) -> None:
    """Two measured tokens are too few; samples see what is asked."""
    trial = run_fake({**FEW, "count": 1, "concurrency": 1, "max_tokens": 2, "detects": {"total_variation": 0.3}})
    assert rated_in(trial).statement.endswith("no difference of distribution would have been found with 95%")
    assert (trial.outcome, trial.message) == (SURVIVED, "")


def test_log_probabilities_are_judged_at_a_temperature_as_tokens_are_rated(
    run_fake: Try, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong names its round, warm-up below 0, beside what the tokens say; the sound engine is green. Both are
    told by one pass of the target."""
    told, ranked = FakeEngine.rank, []

    def rank(self: FakeEngine, requests: Sequence[Request], outputs: Sequence[Sequence[int]], most: int) -> Any:
        ranked.extend(outputs if most == MOST else ())
        return told(self, requests, outputs, most)

    monkeypatch.setattr(FakeEngine, "rank", rank)
    logged = {**FEW, "warmup_rounds": 1, "sampling": {"temperature": 1.0, "logprobs": 1}}
    sound, wrong = run_fake(logged), run_fake(logged, "log-probabilities of the token before")
    assert (sound.outcome, sound.record.warnings) == (SURVIVED, ())
    assert (wrong.outcome, wrong.record.verdict.counts) == ("logprobs", {"logprobs": 16})
    assert "where the target has" in wrong.message
    assert wrong.record.verdict.findings[0].round == -1
    assert (len(ranked), sum(map(len, ranked))) == (32, 1024)
    other = run_fake(logged, "log-probabilities of the token before", logprobs_mode="processed_logprobs")
    assert (other.outcome, other.record.warnings) == (SURVIVED, (OTHER_MODE,))
    assert [rated_in(trial).tokens for trial in (sound, wrong)] == [512, 512]


def test_text_and_structure_are_judged_at_a_temperature(run_fake: Try) -> None:
    """As under greedy decoding; the fake keeps to no grammar, in neither arm."""
    stopped = {**FEW, "stop": ["7>"]}
    assert run_fake(stopped).outcome == SURVIVED
    assert run_fake(stopped, "text alone wrong").outcome == "text"
    assert "text differs from that of its ids" in run_fake(stopped, "stop text in the text").message
    grammar = {"temperature": 1.0, "structured_outputs": {"choice": ["yes"]}}
    ended = {**FEW, "ignore_eos": False, "sampling": grammar}
    assert "is none of the choices" in run_fake(ended, eos_rate=0.04).message
    cut_off = {**stopped, "sampling": grammar, "detects": {"total_variation": 0.4}}
    assert run_fake(cut_off).outcome == SURVIVED  # so it need not be whole
