"""Only decoding is timed. The fake clock makes it exact: a step of the target takes 1 s, a drafted token 0.25 s, and
what must stay outside (loading 1000 s; preparing, collecting and rescoring 100 s each) would show in any figure.
"""

from __future__ import annotations

import pytest
from tests.plugin.conftest import Project
from tests.plugin.gates import both_arms, own_engine

from pytest_specdec.run import session as run_session

TARGET_ONLY, SPECULATIVE = "test_target_only[t-target-short]", "test_speculative[t-draft_model-g3-short]"
TARGET_SECONDS = 2 * 8 * 1.0
SPECULATIVE_SECONDS = 2 * 2 * (1.0 + 3 * 0.25)
LATER = """
passes = 0

def run(self):
    self.passes += 1
    TIME.advance({seconds})
    super().run()
"""
SLOW_AT_FIRST = own_engine(LATER.format(seconds="500 if self.passes == 1 else 0"))
SCATTERING = own_engine(LATER.format(seconds="16 * (self.passes % 2)"))


def test_a_round_lasts_as_long_as_its_steps(project: Project) -> None:
    """Two prompts of eight tokens: eight steps each, or with γ = 3 and every draft accepted two steps each."""
    project.tests(both_arms())
    data = {name: bench["stats"]["data"] for name, bench in project.benchmarks().items()}
    assert data == {TARGET_ONLY: [TARGET_SECONDS] * 2, SPECULATIVE: [SPECULATIVE_SECONDS] * 2}


def test_what_a_gates_own_time_was_spent_on_is_recorded(project: Project) -> None:
    """Each second once: an engine loads in 1000 s, a round is prepared and collected in 200 s, a rating takes 100 s.

    The target's gate calibrates, with a round at batch 1; the speculative one asks it to rate steps, which takes none.
    """
    project.tests(both_arms())
    target, speculative = (record.times for record in project.records().values())
    plain, steps = 200 + TARGET_SECONDS, 200 + SPECULATIVE_SECONDS
    told = [
        [getattr(each, name).value for name in ("load_s", "warmup_s", "decode_s", "rating_s")]
        for each in (target, speculative)
    ]
    assert told == [[1000, 2 * plain, 2 * plain, 100 + plain], [1000, 2 * steps, 2 * (plain + steps), 0]]
    assert speculative.second_look_s.reason == "the first look decided"


def test_rescoring_is_not_timed(project: Project) -> None:
    """A tie makes the target rate the output, which takes 100 s; the round lasts as long as without."""
    indifferent = """
        def score(self, requests, outputs):
            scores = super().score(requests, outputs)
            return tuple(tuple(replace(score, gap=0.0) for score in row) for row in scores)
    """
    project.conftest(own_engine(indifferent))
    project.tests(
        """
        @pytest.mark.specdec(gamma=3, speculative_options={"alpha": 0.0, "fault": "wrong token"})
        def test_tie(specdec, spec_engine, scenario):
            assert specdec(spec_engine, scenario).verdict.outcome == "tie"
        """
    )
    data = [bench["stats"]["data"] for bench in project.benchmarks().values()]
    assert data == [[2 * 8 * 1.75] * 2]


def test_throughput_and_speedup_are_ratios_of_totals(project: Project) -> None:
    """Delivered tokens over the seconds of decoding, and that over target-only of the same engine."""
    project.tests(both_arms())
    records = project.records()
    speculative = records[SPECULATIVE]
    assert records[TARGET_ONLY].throughput.tokens_per_second.value == 16 / TARGET_SECONDS
    assert speculative.target_alone.tokens_per_second.value == 16 / TARGET_SECONDS
    assert speculative.throughput.tokens_per_second.value == 16 / SPECULATIVE_SECONDS
    assert speculative.speedup.ratio.value == TARGET_SECONDS / SPECULATIVE_SECONDS


def test_warm_up_rounds_are_not_among_the_rounds(project: Project) -> None:
    """An engine that is 500 s slower in its first pass shows it only where no round warms it up."""
    project.conftest(SLOW_AT_FIRST)
    project.tests(both_arms())
    cold = project.benchmarks("--specdec-warmup=0", "-k", "target_only")[TARGET_ONLY]["stats"]["data"]
    warm = project.benchmarks("--specdec-warmup=1", "-k", "target_only")[TARGET_ONLY]["stats"]["data"]
    assert (cold, warm) == ([516.0, 16.0], [16.0, 16.0])


def test_the_reference_is_warmed_up_too(project: Project) -> None:
    """Also without a test of its own: its first slow pass would be a speed-up that nobody earned."""
    project.conftest(SLOW_AT_FIRST)
    project.tests(both_arms())
    speedups = [
        record.speedup.ratio.value for record in project.records("--specdec-warmup=1", "-k", "speculative").values()
    ]
    assert speedups == [TARGET_SECONDS / SPECULATIVE_SECONDS]


def test_both_arms_take_turns_where_both_are_loaded(project: Project) -> None:
    """The target's rounds beside the speculative ones are what the speed-up is taken over; the record says so."""
    project.tests(both_arms())
    record = project.records("-k", "speculative", "--specdec-rounds=3")[SPECULATIVE]
    assert (record.target_alone.rounds, record.target_alone.drift.value) == ("alternated", 1.0)
    assert record.speedup.interval.value == (TARGET_SECONDS / SPECULATIVE_SECONDS,) * 2
    assert (record.throughput.rounds, record.throughput.rounds_ended_by) == (3, "number of rounds")


def test_a_target_that_must_sleep_is_woken_for_its_turn(project: Project) -> None:
    """Parking gives its memory up, so it cannot run beside, and has its rounds around those of the other."""
    sleeper = """
        def __init__(self, spec):
            super().__init__(spec)
            self.description = replace(self.description, parks=True)
    """
    project.conftest(own_engine(sleeper))
    project.tests(both_arms())
    record = project.records("-k", "speculative", "--specdec-rounds=4")[SPECULATIVE]
    assert (record.target_alone.rounds, record.target_alone.drift.value) == ("alternated", 1.0)
    assert record.speedup.interval.value == (TARGET_SECONDS / SPECULATIVE_SECONDS,) * 2


def test_rounds_are_exact_where_they_are_asked_for(project: Project) -> None:
    """The option fixes their number; without it a scattering engine is timed until the budget is spent."""
    project.conftest(SCATTERING)
    project.tests(both_arms())
    fixed = project.records("--specdec-rounds=3", "-k", "target_only")[TARGET_ONLY]
    spent = project.records("--specdec-time-budget=200", "-k", "target_only")[TARGET_ONLY]
    assert (fixed.throughput.rounds, fixed.throughput.rounds_ended_by) == (3, "number of rounds")
    assert spent.throughput.rounds_ended_by == "time budget"
    assert 200 <= spent.throughput.seconds.value < 232


@pytest.mark.parametrize("loops", [1, 3])
def test_what_is_decoded_for_a_profile_is_no_round(project: Project, loops: int) -> None:
    """pytest-benchmark times it by no clock of a round."""
    project.tests(both_arms())
    profile = ("--benchmark-cprofile=tottime", f"--benchmark-cprofile-loops={loops}")
    plain, profiled = (project.records(*options)[SPECULATIVE].throughput for options in ((), profile))
    assert profiled == plain


def test_an_engine_that_sleeps_after_its_rounds_is_woken_for_its_profile(project: Project) -> None:
    """After an even number of rounds the target had the last turn."""
    sleeper = """
        asleep = False

        def __init__(self, spec):
            super().__init__(spec)
            self.description = replace(self.description, parks=True)

        def park(self):
            self.asleep = True

        def wake(self):
            self.asleep = False

        def run(self):
            assert not self.asleep
            return super().run()
    """
    project.conftest(own_engine(sleeper))
    project.tests(both_arms())
    project.run("--specdec-rounds=4", "--benchmark-cprofile=tottime").assert_outcomes(passed=2)


METERED = """
import random

import pytest_specdec.run.session
from pytest_specdec.telemetry.meter import Instruments, RoundsMeter, Watch

class Scattering(RoundsMeter):
    def __init__(self, speculates):
        super().__init__("toy", (), Watch([], Instruments()), Instruments(), 1.0)
        self._source, self._mean, self._spread = random.Random(1), 80.0 if speculates else 100.0, 0.2 * speculates
        self._step_seconds = 0.001

    def _look(self):
        pass

    def end_round(self):
        joules = self._mean * self._source.lognormvariate(0.0, self._spread)
        self._add(1.0, [[(0.0, 0.0), (1.0, joules)]])

pytest_specdec.run.session.meter_for = lambda engine: Scattering(engine.spec.speculates)
"""


def test_rounds_go_on_until_the_limit_on_energy_is_decided(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is known at once; joules scatter by a fifth, around 0.8 of the target's, and 0.9 is the limit."""
    monkeypatch.setattr(run_session, "meter_for", run_session.meter_for)
    project.conftest(METERED)
    project.scenario(scenario_without_rounds(project) + "max_energy_ratio = 0.9\n")
    project.tests(both_arms())
    record = project.records("--specdec-time-budget=100000")[SPECULATIVE]
    assert record.gate == "green"
    assert record.throughput.rounds_ended_by == "interval"
    assert record.throughput.rounds > 4
    assert record.energy.over_target_interval.value[1] <= 0.9


def scenario_without_rounds(project: Project) -> str:
    """The project's own scenario, whose number of rounds is open."""
    return (project.path / "scenarios/short.toml").read_text().replace("rounds = 2\n", "")


def test_the_first_gamma_of_a_sweep_is_explained_by_the_later_ones(project: Project) -> None:
    """Drafts cost a quarter of a step: known when two γ are measured, and then written for both."""
    project.tests(both_arms(gamma=(1, 3)))
    records = project.records()
    costs = {record.asked.gamma: record.speedup.model.draft_cost_ratio.value for record in records.values()}
    assert costs == {None: None, 1: 0.25, 3: 0.25}
    assert all(record.speedup.model.predicted.reason is None for record in records.values() if record.asked.gamma)


def test_one_gamma_alone_stays_unexplained(project: Project) -> None:
    """Null with its reason, in hindsight too."""
    project.tests(both_arms())
    record = project.records()[SPECULATIVE]
    assert record.speedup.model.predicted.value is None
    assert record.speedup.model.predicted.reason.startswith("draft and verify steps cannot be told apart by one γ")


def test_samples_of_the_gpus_are_null_with_a_reason_where_there_are_none(project: Project) -> None:
    """Not asked for, or no GPU: either way the record says which."""
    project.tests(both_arms())
    silent = project.records("-k", "target_only")[TARGET_ONLY]
    asked = project.records("-k", "target_only", "--specdec-monitor=0.5")[TARGET_ONLY]
    assert silent.energy.series.reason == "not asked for: give --specdec-monitor SECONDS"
    assert asked.energy.series.value is None
    assert asked.energy.series.reason != silent.energy.series.reason
