"""The gate tested by mutation: an engine with a fault must be named by the right outcome, its sound twin must pass.

A mutant that survives, or that is killed under another name than its own, fails its test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mutants.cases import CASES, PLAIN, Case
from tests.mutants.kills import Kill, read_committed, read_shipped, rewrite_if_asked, rewriting, section
from tests.mutants.trial import RED, SURVIVED, Trial, run_trial
from tests.states.test_states import in_state

from pytest_specdec.engines.fake import FAULTS, clock
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.run.session import Session
from pytest_specdec.verdict.equivalence import Outcome
from pytest_specdec.workloads.scenario import Scenario, discover, load_scenario

TITLE = "On the fake engine"
NOT_THE_GATES = {"does not load", "unsupported"}
# No shipped scenario samples past 256 tokens or has a third round without a first: a greedy one calls them divergent.
NAMED_BY_GREEDY = {"wrong past position 256, at a temperature", "wrong in the third pass"}
OF_SEVERAL_GATES = {"nothing accepted after a wake"}
SCENARIOS = Path(__file__).parents[2] / "scenarios"
STATES = {path.stem: path for path in discover([SCENARIOS / "states"])}
SHIPPED = {"short": SCENARIOS / "short.toml", **STATES}
Try = Callable[[Case, bool], Trial]


@pytest.fixture(scope="session")
def run_on(fake_session: Session) -> Callable[[EngineSpec, Scenario], Trial]:
    """Put an engine to the gate on a scenario; each once, as many cases have the same sound twin."""
    trials: dict[tuple[str, str], Trial] = {}

    def once(spec: EngineSpec, scenario: Scenario) -> Trial:
        key = spec.key, scenario.model_dump_json()  # rounds and limits too, which are not in the digest
        if key not in trials:
            trials[key] = run_trial(fake_session, spec, scenario, clock)
        return trials[key]

    return once


@pytest.fixture(scope="session")
def run_case(run_on: Callable[[EngineSpec, Scenario], Trial], tmp_path_factory: pytest.TempPathFactory) -> Try:
    """Put a case's mutant, or its sound twin, to the gate."""
    path = tmp_path_factory.mktemp("scenarios") / "s.toml"

    def run(case: Case, faulty: bool) -> Trial:
        path.write_text(case.toml(), "utf-8")
        return run_on(case.spec(faulty), load_scenario(path))

    return run


@pytest.fixture(scope="session")
def dies_on(run_on: Callable[[EngineSpec, Scenario], Trial]) -> Callable[[Case, str], bool]:
    """Whether a mutant dies by its name on this shipped scenario, where its sound twin passes."""

    def dies(case: Case, name: str) -> bool:
        scenario = load_scenario(SHIPPED[name])
        faulty, sound = (run_on(case.spec(which), scenario) for which in (True, False))
        named = {case.outcome, Outcome.DIVERGENT.value} if case.name in NAMED_BY_GREEDY else {case.outcome}
        return faulty.outcome in named and (sound.outcome, sound.record.gate) == (SURVIVED, "green")

    return dies


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mutant_dies_on_a_shipped_scenario(dies_on: Callable[[Case, str], bool], case: Case) -> None:
    """What the suite ships meets every fault that this project knows: the scenario that the table names kills it."""
    assert dies_on(case, read_shipped(TITLE)[case.name])


def test_each_scenario_of_a_state_is_needed() -> None:
    """A mutant dies on it by the table, or it demands, asks for or is given what no other is."""
    asked = {name: _particular(load_scenario(path)) for name, path in STATES.items()}
    alone = {
        name for name, own in asked.items() if own - set().union(*(asked[other] for other in asked if other != name))
    }
    plain = EngineSpec(backend="vllm", target="t")
    given = {name for name in STATES if in_state(plain, name, "lora") != plain}
    assert set(STATES) - alone - given - set(read_shipped(TITLE).values()) == set()


def _particular(scenario: Scenario) -> set[str]:
    return {
        *scenario.demand,
        *scenario.sampling,
        scenario.load.kind,
        scenario.output_length,
        *map(str, scenario.stop_token_ids),
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mutant_is_killed_under_its_own_name(run_case: Try, case: Case) -> None:
    """The outcome is the one demanded, and the message says what is wrong."""
    trial = run_case(case, True)
    assert (trial.outcome, case.says in trial.message) == (case.outcome, True), trial.message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_its_sound_twin_passes(run_case: Try, case: Case) -> None:
    """The same engine on the same scenario without the fault: else the kill would prove nothing."""
    trial = run_case(case, False)
    assert (trial.outcome, trial.record.gate) == (SURVIVED, "green"), trial.message


def test_every_fault_is_tried() -> None:
    """A fault that nobody puts to the gate is no test of it."""
    assert {case.fault for case in CASES} == set(FAULTS) - NOT_THE_GATES - OF_SEVERAL_GATES


def test_a_drafter_that_is_never_right_is_seen_in_the_record(run_case: Try) -> None:
    """Slow and right is green where the scenario sets no limit, and the record says that nothing was accepted."""
    case = replace(case_of("nothing accepted"), scenario=PLAIN)
    trial = run_case(case, True)
    assert (trial.outcome, trial.record.acceptance.rate.value) == (SURVIVED, 0.0)
    assert trial.record.acceptance.drafts.value > 0


def test_a_drafter_that_is_stale_after_a_wake_is_seen_in_the_next_gate(run_case: Try, fake_session: Session) -> None:
    """The engine accepts in the first gate; the target is awake in between; then nothing of the same is accepted."""
    case = Case("nothing accepted after a wake", RED, "", {**PLAIN, "seed": 1})
    fake_session.pool.close()
    assert run_case(case, True).outcome == SURVIVED
    trial = run_case(replace(case, scenario={**PLAIN, "seed": 1, "rounds": 4}), True)
    assert trial.outcome == RED
    assert "drafted tokens was accepted in round 0, where" in trial.message


def test_a_drafter_that_is_stale_is_only_recorded_on_another_workload(run_case: Try, fake_session: Session) -> None:
    """Nothing says that it should be accepted there: the gate is green, and the record has a rate of 0."""
    case = Case("nothing accepted after a wake", RED, "", {**PLAIN, "seed": 3})
    fake_session.pool.close()
    assert run_case(case, True).outcome == SURVIVED
    trial = run_case(replace(case, scenario={**PLAIN, "seed": 4}), True)
    assert (trial.outcome, trial.record.acceptance.rate.value) == (SURVIVED, 0.0)


def test_company_alone_is_what_corrupts(run_case: Try) -> None:
    """At concurrency 1 the same engine passes."""
    assert (
        run_case(replace(case_of("wrong in company"), scenario={**PLAIN, "concurrency": 1}), True).outcome == SURVIVED
    )


def test_a_first_round_is_not_enough(run_case: Try, fake_session: Session) -> None:
    """The stale cache is right as long as nothing is in it: every finding is of the second round."""
    case = case_of("stale prefix cache")
    assert "round 0: divergent" not in run_case(case, True).message
    fake_session.pool.close()  # the next engine begins with an empty cache
    assert run_case(replace(case, scenario={**PLAIN, "rounds": 1}), True).outcome == SURVIVED


def test_a_further_turn_reads_what_the_one_before_wrote(run_case: Try) -> None:
    """Each request twice, the second time after the target's own answer: of 8 + 48 tokens three blocks are found."""
    record = run_case(case_of("rejected drafts read in the next turn"), False).record
    assert record.workload.requests == 2 * 8
    assert (record.workload.prompt_tokens.min, record.workload.prompt_tokens.max) == (8, 8 + 48 + 1)
    assert record.coverage.exercised.cached_answers.value == record.throughput.rounds * 8 * (48 - 8)


def test_a_single_token_in_ten_thousand_is_found(run_case: Try) -> None:
    """Ten thousand tokens, all within the floor but one."""
    trial = run_case(case_of("runner-up once"), True)
    assert trial.record.throughput.tokens == 10_000
    assert trial.record.verdict.counts["divergent"] == 1
    assert "; 1 of 250 tokens are beyond the floor" in trial.message


def test_flipped_near_ties_are_each_within_the_floor(run_case: Try) -> None:
    """No token alone convicts this mutant; their number does."""
    counts = run_case(case_of("every near-tie flipped"), True).record.verdict.counts
    assert set(counts) <= {"identical", "tie"}
    assert counts["tie"] > 0


def test_the_noise_is_noise(run_case: Try) -> None:
    """The sound engine disagrees with the target at some near-ties, and passes by the floor, not by being identical."""
    counts = run_case(case_of("every near-tie flipped"), False).record.verdict.counts
    assert counts["tie"] > 0


def test_flips_among_few_tokens_cannot_be_told_from_noise(run_case: Try) -> None:
    """What the count of near-ties does not show: at 512 tokens the same mutant stays within what chance allows."""
    case = case_of("every near-tie flipped")
    few = replace(case, scenario={**case.scenario, "count": 8})
    assert run_case(few, True).outcome == SURVIVED


def test_the_table_of_kills_is_up_to_date(run_case: Try, dies_on: Callable[[Case, str], bool]) -> None:
    """docs/evidence/mutants.md has what each mutant was killed by; MUTANTS=write looks the scenarios up anew."""

    def shipped(case: Case) -> str:
        if not rewriting():
            return read_shipped(TITLE).get(case.name, "none")
        return next((name for name in SHIPPED if dies_on(case, name)), "none")

    table = section(
        Kill(case.name, case.broken, case.where, case.outcome, run_case(case, True).outcome, shipped(case))
        for case in CASES
    )
    rewrite_if_asked(TITLE, table)
    assert table == read_committed(TITLE)


def case_of(fault: str) -> Case:
    """The case of this fault."""
    return next(case for case in CASES if case.fault == fault)
