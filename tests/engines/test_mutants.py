"""The gate tested by mutation on a real engine: Transformers, with its own code changed in one place.

The pair is random, not constructed: in a constructed pair the next token depends on the last one only, so that a fault
of the cache or of positions would change nothing. Weights are drawn wide, so that attention looks at single tokens and
every position matters. The drafter is the target with noise on its weights: some of its drafts are right, some not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.engines.mutations import MUTATIONS
from tests.mutants.kills import Kill, read_committed, rewrite_if_asked, section
from tests.mutants.trial import RED, SURVIVED, Trial, run_trial

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.run.session import Session
from pytest_specdec.verdict.equivalence import Outcome
from pytest_specdec.workloads.scenario import load_scenario

pytestmark = [pytest.mark.thorough, pytest.mark.engine("transformers")]

TITLE = "On Transformers"
VOCABULARY, CONTEXT, GAMMA = 96, 320, 3
PROMPTS = [[5, 9, 23, 4], [8, 12, 4, 61], [40, 41, 77, 3], [90, 14, 6, 30]]
SHORT: Mapping[str, Any] = {"max_tokens": 24}
LONG: Mapping[str, Any] = {"max_tokens": 280, "count": 1}
ENDS: Mapping[str, Any] = {"max_tokens": 48, "ignore_eos": "false"}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # matrices this small are not worth a second
PENALISED: Mapping[str, Any] = {"max_tokens": 48, "sampling": "{ repetition_penalty = 1.5 }"}
DRAFTER_NOISE = 0.01
BEYOND = "tokens are beyond the floor"
Try = Callable[[str | None, Mapping[str, Any]], Trial]


@dataclass(frozen=True)
class Case:
    """A mutant and its demand: the outcome, and a fragment of the message."""

    fault: str
    outcome: str
    says: str
    scenario: Mapping[str, Any] = field(default_factory=lambda: SHORT)


CASES = (
    Case("all accepted", Outcome.DIVERGENT.value, BEYOND),
    Case("draft instead of target", Outcome.DIVERGENT.value, BEYOND),
    Case("rollback off by one", Outcome.DIVERGENT.value, BEYOND),
    Case("bonus token dropped", Outcome.LENGTH.value, "where 24 were asked for and no end was allowed"),
    Case("EOS passed over", Outcome.LENGTH.value, "continued past EOS at", ENDS),
    Case("answers swapped", Outcome.DIVERGENT.value, BEYOND),
    Case("wrong past position 256", Outcome.DIVERGENT.value, BEYOND, LONG),
    Case("BOS doubled", Outcome.INPUTS_DIFFER.value, "the engine put token 1 before the prompt"),
    Case("penalties blind to a block", Outcome.DIVERGENT.value, "under repetition_penalty", PENALISED),
    Case("dead drafter", RED, "nothing was drafted in"),
    Case("nothing accepted", RED, "acceptance_rate 0 is below", {**SHORT, "min_acceptance_rate": 0.2}),
)


def tiny_llama() -> Any:
    """A random Llama whose attention is sharp."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False}
    return LlamaForCausalLM(LlamaConfig(**shape, **heads, **ids, initializer_range=0.4)).eval()


def frequent_token(model: Any) -> int:
    """A token that most answers hold, and none begins with: as EOS, it ends them in the middle."""
    import torch

    answers: list[list[int]] = [
        model.generate(torch.tensor([prompt]), max_new_tokens=40, min_new_tokens=40, do_sample=False)[0].tolist()
        for prompt in PROMPTS
    ]
    later = Counter(token for answer in answers for token in set(answer[len(PROMPTS[0]) + 4 :]))
    early = {token for answer in answers for token in answer[: len(PROMPTS[0]) + 4]}
    return max((token for token in later if token not in early), key=lambda token: (later[token], token))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of target and drafter."""
    import torch

    folder, model = tmp_path_factory.mktemp("pair"), tiny_llama()
    model.generation_config.eos_token_id = model.config.eos_token_id = frequent_token(model)
    model.save_pretrained(folder / "target")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(DRAFTER_NOISE * torch.randn_like(weight))
    model.save_pretrained(folder / "draft")
    return str(folder / "target"), str(folder / "draft")


@pytest.fixture(scope="module")
def run_case(specdec_session: Session, pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Try:
    """Put a mutant, or the sound engine, to the gate on a scenario; each once."""
    folder = tmp_path_factory.mktemp("scenarios")
    trials: dict[tuple[str | None, str], Trial] = {}

    def once(fault: str | None, scenario: Mapping[str, Any]) -> Trial:
        text = toml(scenario)
        if (fault, text) not in trials:
            path = folder / f"s{len(trials)}.toml"
            path.write_text(text, "utf-8")
            trials[fault, text] = run_trial(specdec_session, mutant(pair, fault), load_scenario(path))
        return trials[fault, text]

    return once


def mutant(pair: tuple[str, str], fault: str | None) -> EngineSpec:
    """The mutant's specification; the sound engine's without a fault."""
    return EngineSpec(
        backend="mutant",
        target=pair[0],
        draft=pair[1],
        method="draft_model",
        gamma=GAMMA,
        dtype="float32",
        options={"device": "cpu"},
        environment=ONE_THREAD,
        speculative_options={} if fault is None else {"fault": fault},
    )


def toml(scenario: Mapping[str, Any]) -> str:
    """The scenario file."""
    source = f'source = {{ format = "ids", prompts = {PROMPTS} }}'
    return "\n".join(
        [source, "rounds = 1", "warmup_rounds = 0", *(f"{key} = {value}" for key, value in scenario.items())]
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault)
def test_a_mutant_is_killed_under_its_own_name(run_case: Try, case: Case) -> None:
    """The outcome is the one demanded, and the message says what is wrong."""
    trial = run_case(case.fault, case.scenario)
    assert (trial.outcome, case.says in trial.message) == (case.outcome, True), trial.message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault)
def test_the_sound_engine_passes_on_its_scenario(run_case: Try, case: Case) -> None:
    """The same worker without the fault: else the kill would prove nothing. Some drafts are accepted, and some not."""
    trial = run_case(None, case.scenario)
    assert trial.outcome == SURVIVED, trial.message
    assert 0 < trial.record.acceptance.rate.value < 1


def test_a_wrong_position_is_right_before_it(run_case: Try) -> None:
    """The mutant of position 256 passes where no answer reaches it."""
    assert run_case("wrong past position 256", SHORT).outcome == SURVIVED


def test_every_mutation_is_tried() -> None:
    """A mutation that nobody puts to the gate is no test of it."""
    assert {case.fault for case in CASES} == set(MUTATIONS)


def test_the_table_of_kills_is_up_to_date(run_case: Try) -> None:
    """docs/evidence/mutants.md has what this suite found; MUTANTS=write rewrites it."""
    rows = [(case, run_case(case.fault, case.scenario).outcome) for case in CASES]
    table = section(Kill(case.fault, describe_mutation(case), "speculation", case.outcome, got) for case, got in rows)
    rewrite_if_asked(TITLE, table)
    assert table == read_committed(TITLE)


def describe_mutation(case: Case) -> str:
    """What is broken, in the words of the mutation itself."""
    return (MUTATIONS[case.fault].__doc__ or "").partition("\n")[0]
