"""Every state that a run goes through, on each engine and method, on a pair whose right answer is known.

Each gate must end as its row of docs/states.md says: judged, refused by the engine, not reached, or red.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeAlias

import pytest
from tests.engines.adapters import write_adapter
from tests.states.page import FOLDER, ROOT, read, rewrite_if_asked, row_of

from pytest_specdec.engines.server.process import AS_IT_IS_WRITTEN
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.record import Figure, Record
from pytest_specdec.run.gate import Gate
from pytest_specdec.workloads.scenario import Scenario

REACH = 12
TARGET = f"constructed:tiny?memory={REACH}&ends=24"
CROWDED = {"num_gpu_blocks_override": 13}
OF_VLLM = ("vllm", "server")
WARNED = r"had no effect|log-probabilities were asked|go in circles|after an end|acceptance rose"
HELD = rf"tokens known|[a-z_]+(?= \d)|{WARNED}"  # of what is told of a judged row
UNMET = (" was demanded and did not happen", " is below min_acceptance_rate", "nothing was drafted in ")
Reach: TypeAlias = Callable[[EngineSpec], None]
Told: TypeAlias = Callable[[Record], Iterator[str]]

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.specdec(
        target=TARGET,
        dtype="float32",
        gamma=4,
        max_model_len=384,
        options={"block_size": 32, "enable_prefix_caching": True, "max_num_seqs": 8},
        environment={"OMP_NUM_THREADS": "1"},
        scenario=str(FOLDER),
    ),
]
DRAFTER = {"draft": f"constructed:tiny:draft?memory={REACH}", "method": "draft_model"}
IN_TRANSFORMERS = {"options": {"device": "cpu"}}


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A LoRA adapter for the target."""
    return write_adapter(TARGET, tmp_path_factory.mktemp("lora"))


def in_state(spec: EngineSpec, state: str, adapter: str) -> EngineSpec:
    """The engine with the options that bring it into the state, where no scenario can."""
    if state == "adapter":
        reference = spec.reference and with_options(spec.reference, adapter=adapter)
        return replace(with_options(spec, adapter=adapter), reference=reference)
    return with_options(spec, **CROWDED) if state == "preempted" and spec.backend in OF_VLLM else spec


def with_options(spec: EngineSpec, **options: Any) -> EngineSpec:
    """The engine with these options too."""
    return replace(spec, options={**spec.options, **options})


@pytest.fixture
def reach(request: pytest.FixtureRequest, specdec: Gate, scenario: Scenario, adapter: str) -> Reach:
    """Put an engine through the state, and hold what became of it against the page."""

    def run(spec: EngineSpec) -> None:
        words = outcome_of(specdec, in_state(spec, scenario.name, adapter), scenario, figures)
        hold_against_the_page(scenario.name, row_of(request.node.originalname), words)

    return run


def hold_against_the_page(state: str, row: str, words: str) -> None:
    """What became of the gate must be of the kind that the page tells, which is written anew where that is asked."""
    rewrite_if_asked(state, row, words)
    told = read().get((state, row), "nothing: STATES=write tox -e states")
    assert kind(words) == kind(told), words


def kind(words: str) -> str:
    """Judged or red with the outcome, and what was exercised or which exception it was; refused, or not reached."""
    what, _, more = words.partition(": ")
    outcome = re.split("[:,;]", more)[0]
    if what == "judged":
        return " ".join([what, outcome, *re.findall(HELD, more)])
    error = re.search(r"[A-Z]\w+(?=:)", more) if " failed while " in more else None
    return f"red {outcome}{f' {error.group()}' if error else ''}" if what == "red" else what


def outcome_of(gate: Gate, spec: EngineSpec, scenario: Scenario, told: Told) -> str:
    """What became of the gate, in words; `told`: what is said of one that is judged."""
    try:
        return f"judged: {', '.join(told(gate(spec, scenario)))}"
    except pytest.skip.Exception as refusal:
        return f"refused: {first_line(str(refusal).partition(' refuses: ')[2] or str(refusal))}"
    except pytest.fail.Exception as red:
        first = first_line(str(red))  # what is wrong stands before a limit that is missed
        if any(words in first for words in UNMET):
            return f"not reached: {first}"
        return f"red: {first_line(str(red), 1 if ' failed while ' in first else 2)}"


def first_line(words: str, lines: int = 1) -> str:
    """What fits into a cell."""
    told = [line for line in words.strip().splitlines() if not line.startswith("last lines of ")]
    return "; ".join(told[:lines]).replace("|", "/").replace(f"{ROOT}/", "")


def figures(record: Record) -> Iterator[str]:
    """The outcome, how many tokens were known, and what was exercised, as far as it was told and occurred."""
    known, exercised = record.verdict.known_truth.tokens, record.coverage.exercised
    yield f"{record.verdict.outcome}, {known.value} tokens known" if known.value else f"{record.verdict.outcome}"
    for field in fields(exercised):
        told = getattr(exercised, field.name)
        value = told.value if isinstance(told, Figure) else told
        if value and field.name not in ("drafted_share", "longest_prompt", "longest_output"):
            yield f"{field.name} {' '.join(value) if isinstance(value, tuple) else value}"
    yield from (each for each in record.warnings if "had no effect" in each or "log-probabilities" in each)


def test_vllm_target_only(reach: Reach, vllm_ar: EngineSpec) -> None:
    """vLLM's baseline."""
    reach(vllm_ar)


@pytest.mark.specdec(**DRAFTER)
def test_vllm_draft_model(reach: Reach, vllm_spec: EngineSpec) -> None:
    """Drafts rejected and accepted."""
    reach(vllm_spec)


@pytest.mark.specdec(method="ngram", speculative_options={"prompt_lookup_min": 1, "prompt_lookup_max": 2})
def test_vllm_ngram(reach: Reach, vllm_spec: EngineSpec) -> None:
    """One token is enough to look up what followed it, which is seldom right."""
    reach(vllm_spec)


@pytest.mark.specdec(draft=f"constructed:tiny:eagle?memory={REACH}&alpha=0.8", method="eagle")
def test_vllm_eagle(reach: Reach, vllm_spec: EngineSpec) -> None:
    """A head with a cache of its own."""
    reach(vllm_spec)


@pytest.mark.specdec(**IN_TRANSFORMERS)
def test_transformers_target_only(reach: Reach, transformers_ar: EngineSpec) -> None:
    """The baseline of Transformers, one request after another."""
    reach(transformers_ar)


@pytest.mark.specdec(**IN_TRANSFORMERS, **DRAFTER)
def test_transformers_draft_model(reach: Reach, transformers_spec: EngineSpec) -> None:
    """Assisted generation."""
    reach(transformers_spec)


@pytest.mark.specdec(**IN_TRANSFORMERS, method="prompt_lookup", speculative_options={"max_matching_ngram_size": 1})
def test_transformers_prompt_lookup(reach: Reach, transformers_spec: EngineSpec) -> None:
    """As n-grams in vLLM."""
    reach(transformers_spec)


@pytest.mark.engine("vllm")
@pytest.mark.specdec(
    **DRAFTER,
    server={"protocol": "vllm"},
    reference={"engine": "vllm", "environment": {"OMP_NUM_THREADS": "1"}},
    options={"block_size": 32, "enable_prefix_caching": True, "chat_template": AS_IT_IS_WRITTEN},
    environment={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
)
def test_served_draft_model(reach: Reach, openai_server: EngineSpec) -> None:
    """vLLM behind its server: what of a state can be told over HTTP."""
    reach(openai_server)
