"""The faults, and a session of the fake engine, as a test that is not run by the plugin would have it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import tests.mutants.faults  # noqa: F401 - registers them

from pytest_specdec.engines.fake import FakeEngine, clock
from pytest_specdec.engines.pool import Pool
from pytest_specdec.progress import Progress
from pytest_specdec.run.session import Session
from pytest_specdec.settings import Settings
from pytest_specdec.verdict.noise import level_of_gate
from pytest_specdec.verdict.sampling_statistics import SamplingPlan


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a gate's first prompt as many are drawn anew as show a total variation of 0.4; measured tokens show less."""
    monkeypatch.setattr(SamplingPlan, "for_gamma", staticmethod(partial(SamplingPlan.for_gamma, samples=800)))


@pytest.fixture(scope="session")
def fake_session() -> Iterator[Session]:
    """Engines and references of the fake, kept from test to test, and what they announce unheard.

    Each gate is judged as a session's first, whatever was tried before it, and however many workers there are.
    """
    pool = Pool(FakeEngine)
    session = Session(Settings.resolve({}, {}, {}), pool, clock, Progress())
    session.spend_level = lambda: level_of_gate(1)
    yield session
    pool.close()
