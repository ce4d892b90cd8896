"""A sample of the target's own answers is rated, and every answer that differs, and the record says how much."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.mutants.faults.tokens import EveryNearTieFlipped
from tests.mutants.trial import SURVIVED, Trial, run_trial

from pytest_specdec.engines.fake import FAULTS, FakeEngine, clock
from pytest_specdec.engines.pool import Pool
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Generation, Score
from pytest_specdec.progress import Progress
from pytest_specdec.run.session import RATED, Session
from pytest_specdec.settings import Settings
from pytest_specdec.verdict.reference import Sample
from pytest_specdec.workloads.scenario import load_scenario
from pytest_specdec.workloads.workload import Request

TOKENS = 48 * 64
LARGE = """source = { format = "random", length = 4 }
count = 48
max_tokens = 64
concurrency = 4
rounds = 1
warmup_rounds = 0
"""
PAIR = {"target": "constructed:tiny?memory=6&vocab=64", "draft": "constructed:tiny:draft?memory=6&vocab=64&alpha=0.7"}


class Counting(FakeEngine):
    """Counts the tokens that it is asked to rate."""

    rated = 0

    def score(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> tuple[tuple[Score, ...], ...]:
        """All engines together."""
        Counting.rated += sum(map(len, outputs))
        return super().score(requests, outputs)


def gate(folder: Path, rate: str = "sample", scenario: str = LARGE, **spec: Any) -> Trial:
    """The context model, on which one token in fifty is a near-tie, or a pair."""
    Counting.rated = 0
    settings = Settings.resolve({"rate": rate}, {}, {})
    told = {"target": "t", "draft": "d", "options": {"model": "context"}, **spec}
    (folder / "s.toml").write_text(scenario, "utf-8")
    session = Session(settings, Pool(Counting), clock, Progress())
    engine = EngineSpec(backend="fake", method="draft_model", gamma=3, **told)
    return run_trial(session, engine, load_scenario(folder / "s.toml"), clock)


def rated(trial: Trial) -> tuple[int | None, ...]:
    """Judged tokens that were rated, all of them; the calibration's, all of the target's."""
    ties, calibration = trial.record.verdict.near_ties, trial.record.verdict.calibration
    assert ties is not None
    assert calibration is not None
    return ties.rated, ties.tokens, calibration.answers_rated, calibration.answers


def test_a_sample_of_equal_answers_is_rated_and_the_record_says_so(tmp_path: Path) -> None:
    """32 whole answers of 64 tokens; as a limit of what the verdict could have found, too."""
    sampled = gate(tmp_path, options={"model": "map"})
    assert (sampled.outcome, sampled.record.verdict.outcome) == (SURVIVED, "identical")
    assert rated(sampled) == (2048, TOKENS, 2048, TOKENS)
    assert Counting.rated == 2048
    limits = sampled.record.verdict.limits
    assert limits is not None
    assert limits.statement.endswith("; 2,048 of 3,072 tokens were rated")
    assert rated(gate(tmp_path, "all", options={"model": "map"})) == (TOKENS, TOKENS, TOKENS, TOKENS)
    assert Counting.rated == TOKENS


def test_an_answer_that_differs_is_rated_whether_it_was_drawn_or_not(tmp_path: Path) -> None:
    """Ties in many answers, each rated whole; the same outcome as where all are rated."""
    sampled, whole = gate(tmp_path), gate(tmp_path, "all")
    assert sampled.record.verdict.counts == whole.record.verdict.counts
    assert sampled.record.verdict.counts["tie"] > 0
    mine, tokens, *_ = rated(sampled)
    assert RATED < (mine or 0) < tokens == TOKENS
    assert sampled.outcome == whole.outcome == SURVIVED


@pytest.mark.parametrize("fault", ["wrong token", "flips"])
def test_a_fault_of_speculation_is_red_as_where_all_is_rated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """One token far off, and many near-ties each within the floor.

    Nor is a gate red by number alone before all is rated: a sample may have few near-ties by chance.
    """
    monkeypatch.setitem(FAULTS, "flips", EveryNearTieFlipped)
    options = {"model": "context", "near_tie_rate": 0.1, "vocabulary": 31}
    sampled, whole = (
        gate(tmp_path, rate, options=options, speculative_options={"fault": fault}) for rate in ("sample", "all")
    )
    assert (sampled.outcome, whole.outcome) == ("divergent", "divergent")
    if fault == "flips":
        told = rated(sampled)
        assert (told[0], told[2]) == (told[1], told[3])


def test_a_fault_of_both_arms_is_seen_by_the_known_truth_without_rating(tmp_path: Path) -> None:
    """In answers that were not drawn."""
    scenario = LARGE.replace("length = 4", "length = 20")
    trial = gate(tmp_path, scenario=scenario, **PAIR, options={"fault": "wrong token"})
    assert trial.outcome == "divergent"
    assert "from the known truth" in trial.message
    assert (rated(trial)[2] or 0) < TOKENS


def test_what_a_sample_could_not_find_is_told_with_both_remedies(tmp_path: Path) -> None:
    """More tokens, or all of them rated."""
    asked = LARGE + "detects = { near_ties = 0.001 }\n"
    assert ", or all of them rated (--specdec-rate=all); detects.near_ties" in gate(tmp_path, scenario=asked).message
    assert "--specdec-rate" not in gate(tmp_path, "all", asked).message


def test_a_sample_is_spread_over_all_requests_and_has_those_that_are_reshaped() -> None:
    """The first prompts are in it, since they are decoded one at a time as well."""
    requests = [Request((at,), 10, sampling={"frequency_penalty": 1.0} if at == 77 else {}) for at in range(100)]
    answers = [Generation(each.prompt_ids, (5,) * 10, "length") for each in requests]
    drawn = Sample(2, 200).draw(requests, answers)
    assert {0, 1, 77} <= drawn
    assert len(drawn) == 20
    assert [sum(start <= at < start + 25 for at in drawn) for start in (0, 25, 50, 75)] == [5, 5, 5, 5]
    assert Sample(2).draw(requests, answers) == set(range(100))
