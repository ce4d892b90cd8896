"""Faults of the KV cache in running engines: unseen on the pair without memory, seen on the pair with it.

Each fault is planted into the target of both pairs, in the same way and for the same prompts. Answers are held against
the known ones, so a pair is green where no token is wrong. A few are planted into both arms of a gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.engines.faulty_worker import OPTIONS, PROMPT, TOKENS, FaultyWorker

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.models.truth import reads_of
from pytest_specdec.run.gate import Gate
from pytest_specdec.run.session import Session
from pytest_specdec.settings import Settings
from pytest_specdec.workloads.scenario import Scenario, load_scenario

PLAIN, MEMORY = "", "?memory=24"
GAMMA = 4
BACKENDS = ("transformers", "vllm")
DECODED = {"position": PROMPT + 2, "length": PROMPT + 4}  # an entry of the answers
Pairs = tuple[FaultyWorker, FaultyWorker]

pytestmark = pytest.mark.cpu


def pair_in(backend: str, memory: str) -> EngineSpec:
    """An engine with a pair."""
    return EngineSpec(
        backend=backend,
        target=f"constructed:tiny{memory}",
        draft=f"constructed:tiny:draft{memory}",
        method="draft_model",
        gamma=GAMMA,
        dtype="float32",
        max_model_len=128,
        options=OPTIONS[backend],
        environment={"OMP_NUM_THREADS": "1"},
    )


@dataclass(frozen=True)
class FaultyEngines:
    """Answers to the engine of this name: a worker with a fault, with a drafter and without."""

    name: str
    backend: str
    where: Mapping[str, Any]

    def pytest_specdec_start_engine(self, spec: EngineSpec, settings: Settings) -> FaultyWorker | None:
        """Start one."""
        if spec.backend != self.name:
            return None
        worker = FaultyWorker(replace(spec, backend=self.backend), settings)
        worker.plant("zeroed", self.where)
        worker.spec = spec
        return worker


@pytest.fixture(scope="module")
def pairs(request: pytest.FixtureRequest, specdec_session: Session) -> Iterator[Pairs]:
    """The pair without memory and the pair with it, in a worker of this backend each."""
    with ExitStack() as workers:
        plain, memory = (
            workers.enter_context(closing(FaultyWorker(pair_in(request.param, query), specdec_session.settings)))
            for query in (PLAIN, MEMORY)
        )
        yield plain, memory


on_both = pytest.mark.parametrize("pairs", BACKENDS, indirect=True)


def wrong_in_both(pairs: Pairs, fault: str | None, where: Mapping[str, Any]) -> tuple[int, bool]:
    """How many tokens are wrong without memory, and whether any is with it."""
    plain, memory = pairs
    return plain.wrong_tokens(fault, where), memory.wrong_tokens(fault, where) > 0


FAULTS: dict[str, dict[str, tuple[str, dict[str, int]]]] = {}
FAULTS["transformers"] = {
    "a stale entry": ("stale", {}),
    "a stale entry of one layer": ("stale", {"layer": 3}),
    "a zeroed entry": ("zeroed", {}),
    "a zeroed entry of one head of one layer": ("zeroed", {"layer": 2, "head": 1}),
    "the entry of another position": ("of another position", {"layer": 1}),
    "entries shifted by a slot": ("shifted by a slot", {}),
    "an entry dropped": ("dropped", {"layer": 1}),
    "positions off by one from a token on": ("positions off by one", {"position": PROMPT + 4}),
    "a rejected entry kept": ("rollback one too few", {}),
    "an accepted entry dropped": ("rollback one too many", {}),
}
FAULTS["vllm"] = {
    "a stale entry": ("of another request", {}),
    "a stale entry of one layer": ("of another request", {"layer": 3}),
    "a zeroed entry": ("zeroed", {}),
    "a zeroed entry of one layer": ("zeroed", {"layer": 2}),
    "a stale entry of the answers in one layer": ("of another request", {"layer": 1, **DECODED}),
    "a zeroed entry of one head of one layer": ("zeroed", {"layer": 1, "head": 0, **DECODED}),
    "a foreign block": ("block of another request", {"length": PROMPT + 4}),
    "positions off by one from a token on": ("positions off by one", {"position": PROMPT + 4}),
    "a rejected entry kept": ("rollback one too few", {}),
}
UNSEEN, SEEN = (0, False), (0, True)


@pytest.mark.parametrize(
    ("pairs", "fault", "where"),
    [pytest.param(each, *FAULTS[each][name], id=f"{each}-{name}") for each in BACKENDS for name in FAULTS[each]],
    indirect=["pairs"],
)
def test_a_fault_is_seen_with_memory_alone(pairs: Pairs, fault: str, where: Mapping[str, Any]) -> None:
    """The pair without memory stays green, the pair with it turns red; vLLM's cache is the paged one."""
    assert wrong_in_both(pairs, fault, where) == SEEN


@on_both
def test_without_a_fault_both_are_green(pairs: Pairs) -> None:
    """After all faults, too: each was undone."""
    assert wrong_in_both(pairs, None, {}) == UNSEEN


@on_both
@pytest.mark.parametrize("fault", ["noisy", "keys in fp8"])
def test_noise_is_seen_by_neither(pairs: Pairs, fault: str) -> None:
    """A step of bfloat16 in an entry changes no sign, nor do e4m3 keys: docs/models.md says so of the pair."""
    assert wrong_in_both(pairs, fault, {}) == UNSEEN


@pytest.mark.parametrize("pairs", ["transformers"], indirect=True)
def test_an_entry_that_is_read_no_more_is_seen_by_neither(pairs: Pairs) -> None:
    """`reads_of` knows which entries these are."""
    assert sum(layer[PROMPT - 26] for layer in reads_of("constructed:tiny?memory=24", PROMPT, TOKENS).prompt) == 0
    assert wrong_in_both(pairs, "zeroed", {"position": PROMPT - 26}) == UNSEEN


@pytest.fixture
def asked(tmp_path: Path) -> Scenario:
    """Prompts of the length that the faults are made for."""
    path = tmp_path / "faults.toml"
    path.write_text(
        f'source = {{ format = "random", length = {PROMPT} }}\ncount = 4\nseed = 11\nmax_tokens = {TOKENS}\n'
        "concurrency = 4\nrounds = 1\nwarmup_rounds = 0\n"
    )
    return load_scenario(path)


def faulty(request: pytest.FixtureRequest, backend: str, **where: bool) -> EngineSpec:
    """An engine of which both arms have a zeroed entry."""
    engines = FaultyEngines(f"{backend}, {'drafter ' if where else ''}faulty", backend, where)
    plugins = request.config.pluginmanager
    plugins.register(engines)
    request.addfinalizer(partial(plugins.unregister, engines))
    return replace(pair_in(backend, MEMORY), backend=engines.name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_of_both_arms_is_red(
    request: pytest.FixtureRequest, specdec: Gate, asked: Scenario, backend: str
) -> None:
    """The gate itself holds both against the known truth: the target's cache is faulty with a drafter and without."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)^divergent: .*from the known truth, both arms: token "):
        specdec(faulty(request, backend), asked)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_of_the_drafters_cache_is_draft_state(
    request: pytest.FixtureRequest, specdec: Gate, asked: Scenario, backend: str
) -> None:
    """Every token is right, and fewer drafts are accepted than foretold."""
    with pytest.raises(
        pytest.fail.Exception, match=r"(?s)^draft state: .* identical of .*round 0: foretold .*; counted "
    ):
        specdec(faulty(request, backend, drafter=True), asked)
