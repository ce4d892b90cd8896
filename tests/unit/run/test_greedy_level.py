"""A gate in its session: its share of the level, the second look before red by number, and what it must detect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mutants.faults.tokens import EveryNearTieFlipped
from tests.mutants.trial import SURVIVED, Trial, run_trial

from pytest_specdec.engines.fake import FAULTS, Decoder, FakeEngine, Progress, clock
from pytest_specdec.engines.pool import Pool
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Generation
from pytest_specdec.progress import Progress as Told
from pytest_specdec.run.session import Session
from pytest_specdec.settings import Settings
from pytest_specdec.verdict.noise import level_of_gate
from pytest_specdec.workloads.scenario import load_scenario

LENGTH = 8
PROMPTS = f'source = {{ format = "random", length = {LENGTH} }}\nrounds = 1\nwarmup_rounds = 0\nconcurrency = 4\n'


class FlippedAtShortPrompts(EveryNearTieFlipped):
    """Every near-tie is lost at the scenario's own prompts, and at no longer ones."""

    def choice(self, progress: Progress, burst: Sequence[int]) -> int:
        """By the length of the prompt."""
        short = len(progress.request.prompt_ids) <= LENGTH
        return super().choice(progress, burst) if short else Decoder.choice(self, progress, burst)


@pytest.fixture
def session() -> Session:
    return Session(Settings.resolve({}, {}, {}), Pool(FakeEngine), clock, Told())


def gate(session: Session, folder: Path, scenario: str, fault: str | None = None) -> Trial:
    """The context model, on which one token in ten is a near-tie."""
    spec = EngineSpec(
        backend="fake",
        target="t",
        draft="d",
        method="draft_model",
        gamma=3,
        options={"model": "context", "vocabulary": 31, "near_tie_rate": 0.1},
        speculative_options={"fault": fault} if fault else {},
    )
    path = folder / "s.toml"
    path.write_text(PROMPTS + scenario, "utf-8")
    return run_trial(session, spec, load_scenario(path), clock)


def test_each_gate_has_the_next_share_of_the_level(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """And four workers, each with a session of its own, a quarter of it."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    assert [session.spend_level(), session.spend_level()] == [level_of_gate(1), level_of_gate(2)]
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "4")
    assert session.spend_level() == level_of_gate(3) / 4


def test_the_targets_own_rounds_spend_a_share_too(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are judged like an engine's, so they can be red by chance like it."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    gate(session, tmp_path, "count = 4\nmax_tokens = 32\n")
    assert session.spend_level() == level_of_gate(3)


def test_near_ties_that_are_too_many_once_and_not_again_pass(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look is at other prompts; the record has both p-values."""
    monkeypatch.setitem(FAULTS, "at short prompts", FlippedAtShortPrompts)
    trial = gate(session, tmp_path, "count = 20\nmax_tokens = 64\n", "at short prompts")
    ties = trial.record.verdict.near_ties
    assert ties is not None
    assert trial.outcome == SURVIVED, trial.message
    assert ties.p_value < ties.level < (ties.p_value_again.value or 0.0)


class FailingAtLongPrompts(FlippedAtShortPrompts):
    """The same, and no whole answer to longer prompts."""

    def answer(self, progress: Progress, prompt: tuple[int, ...]) -> Generation:
        """By the length of the prompt."""
        made = super().answer(progress, prompt)
        return made if len(prompt) <= LENGTH else replace(made, finish_reason="abort")


def test_a_second_look_that_sees_no_answer_acquits_nobody(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No near-tie among no tokens is no second opinion."""
    monkeypatch.setitem(FAULTS, "at long prompts none", FailingAtLongPrompts)
    trial = gate(session, tmp_path, "count = 20\nmax_tokens = 64\n", "at long prompts none")
    assert trial.outcome == "divergent"


def test_near_ties_that_are_too_many_twice_are_red(session: Session, tmp_path: Path) -> None:
    """The message has both looks."""
    trial = gate(session, tmp_path, "count = 20\nmax_tokens = 64\n", "every near-tie flipped")
    assert trial.outcome == "divergent"
    assert trial.message.count("too many") == 2
    assert "; at fresh prompts " in trial.message


def test_a_gate_that_could_not_find_what_it_must_is_undecidable(session: Session, tmp_path: Path) -> None:
    """It says how many more tokens it takes, and whose wish it is."""
    trial = gate(session, tmp_path, "count = 4\nmax_tokens = 32\ndetects = { near_ties = 0.02 }\n")
    assert trial.outcome == "undecidable"
    assert trial.message.startswith("undecidable: too few tokens to find 2.00% wrong near-ties: ")
    assert trial.message.endswith(f" more; detects.near_ties of {tmp_path / 's.toml'}")


def test_every_record_says_what_its_verdict_could_have_found(session: Session, tmp_path: Path) -> None:
    """A green one too."""
    limits = gate(session, tmp_path, "count = 4\nmax_tokens = 32\n").record.verdict.limits
    assert limits is not None
    assert limits.statement.startswith("would have found, with 95 %: one token beyond ")
