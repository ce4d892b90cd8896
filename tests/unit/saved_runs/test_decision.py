"""The decision: which γ, how surely, at what latency and energy; or not to speculate; or how many rounds would tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.saved_runs.made import figure, merge, record

from pytest_specdec.history.saved import SavedRun
from pytest_specdec.record import Record, from_json, to_json
from pytest_specdec.report.content import gather
from pytest_specdec.report.decision import UNDECIDED, Decision, headline, parse_limit, write_lines
from pytest_specdec.report.findings import decisions_on, markdown
from pytest_specdec.report.notes import footnotes
from pytest_specdec.thresholds import Threshold

TARGET = {"method": "none", "draft": None, "gamma": None, "engine_key": "target"}
TARGET_LATENCY = {"itl_s": {"p95": 0.0053, "n": 9}, "ttft_s": {"p95": 0.016, "n": 9}}


def target() -> Record:
    """The target alone."""
    return record(asked=TARGET, latency=TARGET_LATENCY)


def arm(gamma: int, ratio: float, low: float, high: float, **changes: Any) -> Record:
    """A gate at this γ, with its speed-up and interval."""
    told = {"ratio": figure(ratio), "interval": figure([low, high]), **changes.pop("speedup", {})}
    return record(speedup=told, asked={"gamma": gamma, "engine_key": f"key{gamma}"}, **changes)


def run(*records: Record, number: int = 1, time: str = "") -> SavedRun:
    """With these gates."""
    return SavedRun(f"{number:04}", Path(f"{number:04}_x.json"), time, {}, {}, records)


def decision(*records: Record, by: str = "throughput", limits: tuple[Threshold, ...] = ()) -> Decision:
    """The only one on these."""
    (found,) = decisions_on([run(*records)], by, limits)
    return found


def words(*records: Record, by: str = "throughput", limits: tuple[Threshold, ...] = ()) -> str:
    return decision(*records, by=by, limits=limits).words


def test_the_best_that_is_sure_is_named_with_its_price() -> None:
    """Speed-up with its interval, energy, latencies beside the target's, exactness, and what the model expects."""
    model = {"best_gamma_latency": figure(6), "predicted_with_verify_cost": figure(3.1)}
    latency = {"itl_s": {"p95": 0.0066, "n": 9}, "ttft_s": {"p95": 0.021, "n": 9}}
    more = {"energy": {"over_target": figure(0.43)}, "verdict": {"counts": {"identical": 1152}}}
    best = arm(4, 2.43, 2.39, 2.47, speedup={"model": model}, latency=latency, **more)
    assert words(target(), arm(3, 2.40, 2.36, 2.44), best, arm(8, 1.2, 1.1, 1.3)) == (
        "use γ = 4 (draft_model d): 2.43× [2.39, 2.47], J/token 0.43× of the target's; p95 ITL 6.6 ms against 5.3 ms, "
        "p95 TTFT 21 ms against 16 ms; exact (1,152 answers identical); not told apart from γ = 3 (draft_model d), "
        "2.40× [2.36, 2.44]; the performance model predicts 3.10×, outside that interval; the performance model "
        "expects γ = 6 to be best: measure it"
    )


def test_what_is_red_in_one_test_is_not_advised_for_anothers_sake() -> None:
    """The same drafter and γ, green where the fault does not show."""
    green, red = arm(4, 2.0, 1.9, 2.1), arm(4, 2.0, 1.9, 2.1, gate="red", verdict={"outcome": "divergent"})
    assert words(target(), green).startswith("use γ = 4")
    assert words(target(), green, red).startswith("do not speculate here: no gate that speculates is green")
    told = words(target(), green, red, arm(2, 1.5, 1.4, 1.6))
    assert told.startswith("γ = 4 (draft_model d) is red: divergent; use γ = 2 (draft_model d): 1.50×")


def test_latencies_are_held_against_the_targets_in_the_same_rounds() -> None:
    """Those are in the record; of older runs those of the target's own gate, but of no other run's."""
    told = {"itl_s": {"p95": 0.0066, "n": 9}}
    beside = arm(4, 2.0, 1.9, 2.1, latency=told, target_alone={"latency": {"itl_s": {"p95": 0.004, "n": 9}}})
    older = arm(4, 2.0, 1.9, 2.1, latency=told)
    assert "p95 ITL 6.6 ms against 4 ms;" in words(target(), beside)
    assert "p95 ITL 6.6 ms against 5.3 ms;" in words(target(), older)
    assert "p95 ITL 6.6 ms; exact" in decisions_on([run(older), run(target(), number=2)])[0].words


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, "; consistent"),
        ({"identical": 12, "tie": 1}, "; consistent; beside them greedily 12 answers identical, 1 answers tie"),
    ],
)
def test_a_decision_at_a_temperature_counts_the_greedy_answers_beside(counts: dict[str, int], said: str) -> None:
    """Of a mix; sampled answers are not counted by outcome."""
    gate = arm(4, 2.0, 1.9, 2.1, verdict={"outcome": "consistent", "counts": counts, "sampling": {}})
    assert words(target(), gate).endswith(said)


def test_a_decision_by_latency_takes_no_other_runs_target() -> None:
    """Without a gate of the target in its run, what was measured beside the rounds, and that has no interval."""
    e2e = {"latency": {"e2e_s": {"p95": 1.0, "n": 9}}}
    beside, older = (
        arm(4, 2.0, 1.9, 2.1, **e2e, **more)
        for more in ({"target_alone": {"latency": {"e2e_s": {"p95": 2.0, "n": 9}}}}, {})
    )
    told = []
    for gate in (beside, older):
        alone = record(asked=TARGET, latency={"e2e_s": {"p95": 9.0, "n": 9}})
        told.append(decisions_on([run(gate), run(alone, number=2)], "latency")[0].words)
    assert told[0].startswith(
        "not decided: γ = 4 (draft_model d): p95 of a whole request 0.50× of the target's, without an interval"
    )
    assert told[1] == "not decided: the latencies of the target alone were not measured beside it"


def test_where_the_load_sets_the_rate_it_is_said_up_to_which_rate_either_keeps_up() -> None:
    """Of a load of several rates, whose figures stand in a table of their own."""
    sweep = {
        "points": [{"asked": 128.0}],
        "saturation_per_second": figure(128.0),
        "target_saturation_per_second": {"value": None, "reason": "not even the lowest rate asked was sustained"},
    }
    more = {"speedup": {"ratio": {"value": None, "reason": "the load sets tokens/s"}}}
    arms = [
        record(asked={"gamma": gamma, "engine_key": f"key{gamma}"}, load={"sweep": {**sweep, **told}}, **more)
        for gamma, told in ((4, {}), (2, {"saturation_per_second": figure(32.0)}))
    ]
    lowest = "target only: not even the lowest rate asked was sustained"
    assert words(target(), *arms) == (
        f"not decided: speed-up: the load sets tokens/s; saturation of γ = 2 (draft_model d): 32 requests/s; {lowest}; "
        f"saturation of γ = 4 (draft_model d): 128 requests/s; {lowest}"
    )


def test_a_decision_by_latency_allows_for_what_two_gates_differ_by() -> None:
    """The target's is another gate, at another time: 4 % less is no gain there, though rounds are known to 1 %."""
    alone, slower, quicker = (
        record(
            [each * took for each in (1.0, 1.004, 0.996, 1.0, 1.003, 0.997)],
            latency={"e2e_s": {"p95": 0.0165 * took, "n": 48}},
            **told,
        )
        for took, told in ((1.0, {"asked": TARGET}), (0.96, {}), (0.8, {}))
    )
    assert decisions_on([run(slower, alone)], "latency")[0].words.startswith("not decided: γ = ")
    assert decisions_on([run(quicker, alone)], "latency")[0].words.startswith("use γ = ")


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (
            arm(4, 0.97, 0.93, 1.01),
            "do not speculate here: at best 0.97× [0.93, 1.01], γ = 4 (draft_model d), and nothing else was measured",
        ),
        (
            arm(4, 1.02, 0.66, 1.57),
            "not decided: γ = 4 (draft_model d): 1.02× [0.66, 1.57], by this estimate too near the target alone for "
            "1,000 rounds to decide",
        ),
        (
            arm(4, 1.2, 0.95, 1.5),
            "not decided: γ = 4 (draft_model d): 1.20× [0.95, 1.50], about 4 more rounds would decide "
            "(--specdec-rounds=10)",
        ),
        (
            arm(4, 1.2, 0.95, 1.5, throughput={"waited_for_cores": figure(0.5)}),
            "not decided: γ = 4 (draft_model d): 1.20× [0.95, 1.50], about 4 more rounds would decide "
            "(--specdec-rounds=10); its engine waited for a core 50% of the time that it wanted one",
        ),
        (
            arm(4, 12.95, 0.95, 150, target_alone={"waited_for_cores": figure(0.6)}),
            "not decided: γ = 4 (draft_model d): 12.95× [0.95, >100], about 1 more rounds would decide "
            "(--specdec-rounds=7); the target waited for a core 60% of the time that it wanted one",
        ),
        (
            arm(4, 2.0, 1.9, 2.1, gate="red", verdict={"outcome": "divergent"}),
            "do not speculate here: no gate that speculates is green and within the limits; γ = 4 (draft_model d) is "
            "red: divergent",
        ),
    ],
    ids=["slower", "too near", "more rounds", "busy machine", "busy beside", "red"],
)
def test_what_is_not_sure_is_not_advised(gate: Record, expected: str) -> None:
    """An interval that ends at a gain that does not count, one that decides nothing, a red gate."""
    assert words(target(), gate) == expected


def test_beside_a_red_gate_something_else_was_measured() -> None:
    """So it is not said that nothing was."""
    red = arm(2, 2.0, 1.9, 2.1, gate="red", verdict={"outcome": "divergent"})
    told = words(target(), arm(8, 0.39, 0.38, 0.40), red)
    assert told.startswith("do not speculate here: at best 0.39× [0.38, 0.40], γ = 8 (draft_model d); γ = 2")


def test_bounds_that_are_no_figures_are_not_told_as_such() -> None:
    """Two rounds leave everything open; hundredths of that say nothing."""
    told = words(target(), arm(4, 1.1, 0.0001, 703139.48))
    assert told.startswith("not decided: γ = 4 (draft_model d): 1.10× [<0.01, >100], ")


def test_of_two_sure_gains_the_one_that_is_surely_larger_is_used() -> None:
    """The larger estimate is often that of the gate whose rounds scatter most."""
    told = words(target(), arm(8, 2.34, 1.75, 3.12), arm(6, 2.30, 2.21, 2.39))
    assert told.startswith("use γ = 6 (draft_model d): 2.30× [2.21, 2.39]")
    assert "not told apart from γ = 8" in told


def test_of_what_is_open_the_largest_estimate_is_named() -> None:
    """One that may pay, not one whose interval is narrow and holds 1."""
    told = words(target(), arm(8, 0.99, 0.97, 1.03), arm(4, 1.5, 0.9, 2.5))
    assert told.startswith("not decided: γ = 4 (draft_model d): 1.50× [0.90, 2.50]")


def test_engines_that_failed_are_no_advice() -> None:
    """A mistake in an option says nothing of whether to speculate; a wrong token beside it does."""
    failed = arm(4, 2.0, 1.9, 2.1, gate="red", verdict={"outcome": "engine error"})
    wrong = arm(2, 2.0, 1.9, 2.1, gate="red", verdict={"outcome": "divergent"})
    assert decision(target(), failed).outcome == UNDECIDED
    assert words(target(), failed) == (
        "not decided: no gate that speculates was judged; γ = 4 (draft_model d) is red: engine error"
    )
    assert words(target(), failed, wrong).startswith("do not speculate here: no gate that speculates is green")


def test_a_wide_interval_gives_way_to_a_sure_gain() -> None:
    """A larger figure that may be none at all is only mentioned."""
    told = words(target(), arm(4, 2.0, 0.5, 8.0), arm(2, 1.5, 1.4, 1.6))
    assert told.startswith("use γ = 2 (draft_model d): 1.50× [1.40, 1.60]")
    assert "not told apart from γ = 4 (draft_model d), 2.00× [0.50, 8.00]" in told


def test_energy_has_the_interval_that_is_recorded() -> None:
    """Pair by pair with the target alone, as `max_energy_ratio` is judged; beside a speed-up too."""
    half = {"over_target": figure(0.5), "over_target_interval": figure([0.47, 0.53])}
    told = words(target(), arm(4, 0.9, 0.8, 1.0, energy=half), by="energy")
    assert told.startswith("use γ = 4 (draft_model d): J/token 0.50× [0.47, 0.53]")
    assert "J/token 0.50× [0.47, 0.53]" in words(target(), arm(4, 2.0, 1.9, 2.1, energy=half))
    assert ", tokens/s 0.90× [0.80, 1.00]; " in told


def test_older_runs_are_read_with_a_word_on_their_intervals() -> None:
    """Their arms took no turns: the interval lacks what the target drifted by, as the decision says, or else a note."""
    older = arm(4, 2.0, 1.9, 2.1, target_alone={"rounds": "before and after", "drift": figure(1.028)})
    slower = arm(2, 1.0, 0.9, 1.1, target_alone={"rounds": "before and after", "drift": figure(1.099)})
    word = "the target was timed before and after, and its drift of +2.8% is not in the interval"
    assert f"[1.90, 2.10]; {word}; exact" in words(target(), older)
    assert f"older run: short, t bfloat16 vllm draft_model: {word}" in footnotes([older], [])
    assert not any(word in note for note in footnotes([older], [], words(target(), older)))
    assert [note for note in gather([run(target(), older, slower)]).notes if "drift" in note] == [
        f"draft_model d γ=2: {word.replace('+2.8%', '+9.9%')}"
    ]
    assert "drift" not in words(target(), arm(4, 2.0, 1.9, 2.1, target_alone={"rounds": "alternated"}))


@pytest.mark.parametrize("written", ["8", "8%", "fast"])
def test_a_limit_without_a_unit_of_time_is_refused(written: str) -> None:
    """A share is none either: it has nothing to be a share of."""
    with pytest.raises(ValueError, match=rf"'{written}' is no limit of itl_p95: give a time, e.g. 8ms"):
        parse_limit("itl_p95", written)


def test_a_limit_passes_over_what_misses_it() -> None:
    """And names what it would have been."""
    slow = arm(4, 2.0, 1.9, 2.1, latency={"itl_s": {"p95": 0.009, "n": 9}})
    quick = arm(2, 1.5, 1.4, 1.6, latency={"itl_s": {"p95": 0.004, "n": 9}})
    told = words(target(), slow, quick, limits=(parse_limit("itl_p95", "8ms"),))
    assert told.startswith("use γ = 2 (draft_model d)")
    assert told.endswith("; γ = 4 (draft_model d): p95 ITL 9 ms over 8 ms")


def at(concurrency: int, *gates: Record) -> list[Record]:
    """Gates of a swept scenario at one of its values."""
    workload = {"concurrency": concurrency, "digest": f"digest{concurrency}"}
    return [from_json(merge(to_json(gate), {"workload": workload})) for gate in gates]


def saving(over: float) -> dict[str, Any]:
    return {"over_target": figure(over), "over_target_interval": figure([over - 0.02, over + 0.02])}


def swept() -> list[SavedRun]:
    """γ = 4 is best at 1 and 16, γ = 2 at 64, none at 128; each concurrency in a run of its own, one of them twice."""
    told = [
        at(16, target(), arm(4, 9.9, 9.8, 10.0)),
        at(1, target(), arm(2, 1.8, 1.7, 1.9), arm(4, 2.4, 2.3, 2.5, energy=saving(0.4))),
        at(16, target(), arm(2, 1.6, 1.5, 1.7), arm(4, 2.0, 1.9, 2.1, energy=saving(0.5))),
        at(64, target(), arm(2, 1.2, 1.1, 1.3, energy=saving(0.8)), arm(4, 1.1, 1.05, 1.15)),
        at(128, target(), arm(2, 0.8, 0.75, 0.85, energy=saving(1.2)), arm(4, 0.7, 0.6, 0.8, gate="red")),
    ]
    times = [f"2026-11-2{number}T00:00:00" for number in range(5)]
    return [
        run(*records, number=number, time=time)
        for number, (time, records) in enumerate(zip(times, told, strict=True), 1)
    ]


def test_a_sweep_of_concurrency_has_one_decision() -> None:
    """Up to how many requests speculation pays, in energy too, and the best γ at each, by the newest of all runs."""
    (found,) = decisions_on(swept())
    assert found.words == (
        "draft_model d: pays up to 64 requests (γ = 2), break-even between 64 and 128, at about 87; "
        "J/token: pays up to 64 requests (γ = 2), break-even between 64 and 128, at about 94; "
        "at 128: γ = 4 is red: identical, but it fails otherwise"
    )
    assert found.at_each == [
        "at 1: γ = 4: 2.40× [2.30, 2.50], J/token 0.40× [0.38, 0.42]",
        "at 16: γ = 4: 2.00× [1.90, 2.10], J/token 0.50× [0.48, 0.52]",
        "at 64: γ = 2: 1.20× [1.10, 1.30], J/token 0.80× [0.78, 0.82], not told apart from γ = 4",
        "at 128: γ = 2: 0.80× [0.75, 0.85], J/token 1.20× [1.18, 1.22], which does not pay",
    ]
    assert found.outcome == "use"
    (by_energy,) = decisions_on(swept(), "energy")
    assert "; tokens/s: pays up to 64 requests (γ = 2), break-even between 64 and 128, at about 87" in by_energy.words
    assert found.break_even["throughput"].pays_up_to == 64
    assert ("  at 16: γ = 4: 2.00× [1.90, 2.10], J/token 0.50× [0.48, 0.52]", "use") in write_lines([found], 80)
    assert "\n  - at 16: γ = 4: 2.00×" in markdown([target()], [found])


def test_a_sweep_that_never_breaks_even_says_up_to_where_it_was_measured() -> None:
    """And one in which nothing pays is a decision not to speculate."""
    (found,) = decisions_on(swept()[:4])
    assert found.words.startswith("draft_model d: pays at every concurrency measured, up to 64; J/token: pays at every")
    losing = decision(*at(1, target(), arm(2, 0.9, 0.8, 0.95)), *at(4, target(), arm(2, 0.8, 0.7, 0.9)))
    assert losing.words == "draft_model d: pays at no concurrency measured, from 1 to 4"
    assert losing.at_each[0].startswith("at 1: γ = 2: 0.90×")
    assert losing.outcome == "do not speculate"


def test_of_several_drafts_a_line_names_its_own_once_and_first() -> None:
    """The γ without a name are those of the draft that the line advises."""
    other = from_json(merge(to_json(arm(2, 1.9, 1.7, 2.1)), {"asked": {"draft": "other", "engine_key": "other2"}}))
    gates = (arm(2, 1.9, 1.7, 2.1), other, arm(4, 2.0, 1.8, 2.2))
    found = decision(*at(1, target(), *gates), *at(4, target(), *gates))
    own, others = "γ = 4 (draft_model d): 2.00× [1.80, 2.20]", "γ = 2; γ = 2 (draft_model other)"
    assert found.at_each == [f"at {at}: {own}, not told apart from {others}" for at in (1, 4)]


def test_what_is_wrong_at_one_concurrency_is_advised_at_none() -> None:
    """A fault that depends on the batch comes back whenever as many requests are under way."""
    wrong = at(4, target(), arm(2, 1.7, 1.6, 1.8, gate="red", verdict={"outcome": "divergent"}))
    gates = (*swept()[1].records, *swept()[2].records, *wrong)
    found = decision(*gates)
    assert found.at_each[0].startswith("at 1: γ = 4: ")
    assert found.at_each[1].startswith("at 4: do not speculate here: no gate that speculates is green")
    assert not any("γ = 2: 1" in line for line in found.at_each)
    pays = "draft_model d: pays at every concurrency measured, up to 16, and nothing is advised at 4; "
    assert found.words.startswith(pays)
    green = at(8, target(), arm(2, 1.7, 1.6, 1.8))
    assert "at 8: do not speculate here: wrong at another concurrency: γ = 2" in decision(*gates, *green).at_each


@pytest.mark.parametrize("outcome", ["undecidable", "engine error"])
def test_what_says_nothing_of_the_tokens_condemns_no_other_concurrency(outcome: str) -> None:
    """Too few prompts to decide at one, or out of memory at another."""
    lost = at(4, target(), arm(2, 1.7, 1.6, 1.8, gate="red", verdict={"outcome": outcome}))
    assert "at 1: γ = 2: 1.90× [1.80, 2.00]" in decision(*at(1, target(), arm(2, 1.9, 1.8, 2.0)), *lost).at_each


BETWEEN = {
    "loses": (arm(2, 0.9, 0.8, 0.95), "but not at 4"),
    "open": (arm(2, 1.1, 0.4, 3.5), "not decided at 4"),  # its interval holds 1
}


@pytest.mark.parametrize(("between", "said"), BETWEEN.values(), ids=BETWEEN)
def test_what_does_not_surely_pay_between_is_named(between: Record, said: str) -> None:
    """Up to 16 requests, and at 4 it loses, or nobody knows."""
    told = [*at(1, target(), arm(2, 1.2, 1.1, 1.3)), *at(4, target(), between)]
    told += [*at(16, target(), arm(2, 1.3, 1.2, 1.4)), *at(64, target(), arm(2, 0.8, 0.7, 0.9))]
    assert words(*told) == (
        f"draft_model d: pays up to 16 requests (γ = 2), {said}, break-even between 16 and 64, at about 34"
    )


def test_an_engine_that_decodes_one_by_one_is_not_swept() -> None:
    """Whatever it is asked: each workload has its own decision, and nothing is said of concurrency."""
    alone = {"details": {"concurrency": 1}}
    gates = [gate for requests in (1, 4) for gate in at(requests, target(), arm(2, 1.5, 1.4, 1.6))]
    decisions = decisions_on([run(*(from_json(merge(to_json(gate), {"engine": alone})) for gate in gates))])
    assert [each.words.partition(":")[0] for each in decisions] == ["use γ = 2 (draft_model d)"] * 2


def test_the_report_draws_where_a_sweep_pays() -> None:
    """A line for each γ over concurrency, its break-even marked; figures of one concurrency stand apart."""
    content = gather(swept())
    drawn = {figure.kind: figure for figure in content.figures if figure.x_log}
    assert [(line.name, line.x, line.y) for line in drawn["Speed-up over concurrency"].lines] == [
        ("draft_model d γ=2", (1, 16, 64, 128), (1.8, 1.6, 1.2, 0.8)),
        ("draft_model d γ=4", (1, 16, 64), (2.4, 2.0, 1.1)),
    ]
    words = "draft_model d γ=2: break-even between 64 and 128, at about 87"
    assert drawn["Speed-up over concurrency"].marks == ((87.4, words),)
    assert drawn["J/token over concurrency"].lines[0].y == pytest.approx((0.8, 1.2))
    assert {figure.group.rpartition(" · ")[2] for figure in content.figures if figure.kind == "Speed-up against γ"} == {
        "1 request",
        "16 requests",
        "64 requests",
        "128 requests",
    }


def test_the_headline_counts_what_is_slower() -> None:
    """Green is not the same as worth having."""
    gates = [target(), arm(2, 1.5, 1.4, 1.6), arm(3, 0.9, 0.8, 0.95), arm(4, 0.93, 0.012, 74.4)]
    assert headline(gates) == "4 exact, 1 faster, 1 slower, 1 undecided"
    assert "\n4 exact, 1 faster, 1 slower, 1 undecided\n" in markdown(gates)
