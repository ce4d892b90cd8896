"""Which γ to use, with what certainty, at what latency and energy: one sentence for each target, scenario and device.

Of the exact gates whose gain over the target alone is sure, whose whole 95 % interval lies above it, the one is taken
whose interval begins highest: the best estimate of a few rounds is often luck.
Gates that differ in concurrency have one decision: up to how many requests speculation pays, and the best γ at each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from textwrap import wrap

from pytest_specdec.history.compare import FEWEST, compare_figure, figure_of, latency_of
from pytest_specdec.metrics.rounds import MOST_ROUNDS, rounds_to_decide
from pytest_specdec.metrics.speedup import NO_GAIN, BreakEven, Gain, break_even_concurrency
from pytest_specdec.progress import count
from pytest_specdec.record import CONSISTENT, PASSING, REGRESSED, Record
from pytest_specdec.record.parts import ChangePart, LatencyPart
from pytest_specdec.report.gates import Gate, group_by
from pytest_specdec.report.notes import name_few, waited_long
from pytest_specdec.report.rates import saturations
from pytest_specdec.thresholds import METRICS, Metric, Threshold, shown

USE, NOT_TO, UNDECIDED = "use", "do not speculate", "not decided"
NEVER_JUDGED = ("engine error", "inputs differ", "")
SAYS_NOTHING = (*PASSING, "undecidable", *NEVER_JUDGED)  # of the tokens, that they are wrong
SHORT_NAMES = {"itl": "ITL", "ttft": "TTFT", "tpot": "TPOT", "e2e": "whole request"}


@dataclass(frozen=True)
class Decision:
    """`place`: of which scenario, engine, target and device. `gate`: the chosen one's name, empty if there is none.

    Where concurrency was swept: `at_each`: what is best at each value, a line each, `break_even`: of each figure that
    is gained by speculation.
    """

    place: str
    outcome: str
    gate: str
    words: str
    at_each: Sequence[str] = ()
    break_even: Mapping[str, BreakEven] = field(default_factory=dict)


def parse_limit(name: str, written: str) -> Threshold:
    """The most that a latency may be, from "itl_p95" and "8ms". Raises ValueError with the remedy."""
    with suppress(ValueError):
        threshold = Threshold.parse(f"{name}:{written}")
        if not threshold.relative:
            return threshold
    raise ValueError(f"{written!r} is no limit of {name}: give a time, e.g. 8ms")


def _tell_miss(limit: Threshold, record: Record) -> str:
    value = figure_of(record, limit.metric).value
    if value is not None and value <= limit.most:
        return ""
    told = "not known" if value is None else f"{_milliseconds(value)} over {_milliseconds(limit.most)}"
    return f"{_name(limit.metric)} {told}"


def _rate(gate: Gate, _: Gate | None) -> Gain | None:
    told = gate.record.speedup
    return None if told.ratio.value is None else Gain(told.ratio.value, *(told.interval.value or ()))


def _energy(gate: Gate, _: Gate | None) -> Gain | None:
    told = gate.record.energy
    over = told.over_target.value
    return Gain(over, *(told.over_target_interval.value or ())).inverse if over else None


def _less(metric: Metric, gate: Gate, target: Gate | None) -> Gain | None:
    if target is None:
        told = [latency_of(each, metric).value for each in (gate.record.latency, gate.record.target_alone.latency)]
        return Gain(told[1] / told[0]) if told[0] and told[1] else None
    change = compare_figure(gate.record, target.record, shown(metric.name))
    if change is None or change.change is None:
        return None
    ratio, known = 1 + change.change, None not in (change.low, change.high)
    return Gain(ratio, *(_with_sessions(change) if known else ())).inverse


def _with_sessions(change: ChangePart) -> tuple[float, float]:
    """The interval, wider by what gates at two times differ in, since the target's is another gate than this."""
    ratio, low, high = (math.log1p(each or 0.0) for each in (change.change, change.low, change.high))
    differ = change.sessions_differ or 0.0
    return math.exp(ratio - math.hypot(ratio - low, differ)), math.exp(ratio + math.hypot(high - ratio, differ))


BY: dict[str, Callable[[Gate, Gate | None], Gain | None]] = {
    "throughput": _rate,
    "latency": partial(_less, METRICS["e2e_p95"]),
    "energy": _energy,
}


@dataclass(frozen=True)
class Candidate:
    """An exact gate, with its gain in what is asked for."""

    gate: Gate
    gain: Gain


def decide(gates: Sequence[Gate], by: str = "throughput", limits: Sequence[Threshold] = ()) -> list[Decision]:
    """The decision for each target, scenario and device that has a gate which speculates. `by`: a key of BY.

    What was measured and not judged is no candidate.
    """
    gates = [gate for gate in gates if gate.record.asked.unjudged is None]
    places = group_by(gates, lambda gate: gate.place).items()
    return [each for name, of in places for each in _decide_place(name, of, by, limits) if each is not None]


def _decide_place(place: str, gates: Sequence[Gate], by: str, limits: Sequence[Threshold]) -> Iterator[Decision | None]:
    """For each workload; a gate whose engine failed before it decoded any goes with the first."""
    if any(gate.swept for gate in gates):
        yield _decide_sweep(place, gates, by, limits)
        return
    named = group_by(gates, lambda gate: gate.record.workload.digest)
    failed = named.pop("", []) if len(named) > 1 else []
    for at, (digest, members) in enumerate(named.items()):
        name = f"{place} · workload {digest[:6]}" if len(named) > 1 else place
        yield _decide(name, members if at else members + failed, by, limits)


@dataclass(frozen=True)
class Weighed:
    """Gates of one workload, held against the target alone: the outcome, whom it is about, and the first words."""

    targets: Sequence[Gate]
    arms: Sequence[Gate]
    gains: Sequence[Candidate]
    outcome: str
    best: Candidate | None
    words: str


def _weigh(gates: Sequence[Gate], by: str, limits: Sequence[Threshold], wrong: Collection[str] = ()) -> Weighed | None:
    """None where none speculates, or nothing was timed. `wrong`: names of what is wrong at another concurrency."""
    targets = [gate for gate in gates if not gate.record.asked.speculates and not gate.red]
    arms = [gate for gate in gates if gate.record.asked.speculates]
    reds = {*wrong, *(gate.name for gate in arms if gate.red)}  # red in one test is not advised for another's sake
    exact = [gate for gate in arms if gate.name not in reds]
    if not arms or (exact and not any(gate.record.throughput.tokens_per_second.value for gate in exact)):
        return None
    kept = [gate for gate in exact if not any(_tell_miss(limit, gate.record) for limit in limits)]
    gains = [Candidate(gate, gain) for gate in kept if (gain := BY[by](gate, _target_of(gate, targets))) is not None]
    outcome, best, words = _best(gains, kept, by)
    words += ", and nothing else was measured" * (outcome == NOT_TO and best is not None and len(arms) == 1)
    if all(gate.red and gate.record.verdict.outcome in NEVER_JUDGED for gate in arms):
        outcome, words = UNDECIDED, "not decided: no gate that speculates was judged"
    elsewhere = sorted({gate.name for gate in arms if not gate.red} & {*wrong})
    if best is None and elsewhere:
        words = f"do not speculate here: wrong at another concurrency: {name_few(elsewhere)}"
    return Weighed(targets, arms, gains, outcome, best, words)


def _target_of(gate: Gate, targets: Sequence[Gate]) -> Gate | None:
    return next((target for target in reversed(targets) if target.run.path == gate.run.path), None)


def _decide(place: str, gates: Sequence[Gate], by: str, limits: Sequence[Threshold]) -> Decision | None:
    weighed = _weigh(gates, by, limits)
    if weighed is None:
        return None
    best, passed_over = weighed.best, _passed_over(weighed.arms, limits)
    warns = weighed.outcome == USE and any(gate.red for gate in weighed.arms)  # so it is said before the advice
    told = [
        *(passed_over if warns else ()),
        weighed.words + _cost(best.gate, by, " of the target's") if best else weighed.words,
        *filter(None, (best.gate.record.target_alone.caution if best else "",)),
        *(_about(best, weighed, by) if best and weighed.outcome == USE else ()),
        *(() if warns else passed_over),
    ]
    return Decision(place, weighed.outcome, best.gate.name if best else "", "; ".join(told))


NO_LATENCIES = "the latencies of the target alone were not measured beside it"
OF_WHAT = {"throughput": "", "latency": "p95 of a whole request", "energy": "J/token"}
EXCEPT = {NOT_TO: "but not", UNDECIDED: "not decided"}
Sweep = Mapping[int, Weighed]


def _decide_sweep(place: str, gates: Sequence[Gate], by: str, limits: Sequence[Threshold]) -> Decision | None:
    sweep, beside = _weigh_sweep(gates, by, limits), "throughput" if by == "energy" else "energy"
    if not sweep:
        return None
    other = _weigh_sweep(gates, beside, limits)
    of_rate = "tokens/s: " if beside == "throughput" else ""
    told = [_pays(sweep, by), *([of_rate + _pays(other, beside)] if any(each.gains for each in other.values()) else [])]
    at_each = [f"at {at}: {_best_at(weighed, by)}" for at, weighed in sweep.items()]
    told += [f"at {at}: {words}" for at, weighed in sweep.items() for words in _passed_over(weighed.arms, limits)]
    outcomes = [weighed.outcome for weighed in sweep.values()]
    outcome = next((each for each in (USE, UNDECIDED) if each in outcomes), NOT_TO)
    words, families = "; ".join(told), {gate.family for gate in gates if gate.record.asked.speculates}
    if len(families) == 1:  # a method and draft that all gates share are said once, before everything else
        (family,) = families
        words, *at_each = (line.replace(f" ({family})", "") for line in (f"{family}: {words}", *at_each))
    even = {name: _break_even(of) for name, of in ((by, sweep), (beside, other))}
    return Decision(place, outcome, "", words, at_each, even)


def _weigh_sweep(gates: Sequence[Gate], by: str, limits: Sequence[Threshold]) -> Sweep:
    wrong = {gate.name for gate in gates if gate.red and gate.record.verdict.outcome not in SAYS_NOTHING}
    found = {
        at: _weigh([gate for gate in gates if gate.concurrency == at], by, limits, wrong)
        for at in sorted({gate.concurrency for gate in gates})
    }
    return {at: weighed for at, weighed in found.items() if weighed is not None}


def _break_even(sweep: Sweep) -> BreakEven:
    return break_even_concurrency({at: each.best.gain for at, each in sweep.items() if each.best is not None})


def _pays(sweep: Sweep, by: str) -> str:
    """E.g. "pays up to 64 requests (γ = 4 (eagle)), break-even between 64 and 128, at about 83"."""
    of = f"{OF_WHAT[by]}: " if OF_WHAT[by] else ""
    found, paying = _break_even(sweep), [at for at, each in sweep.items() if each.outcome == USE]
    best = sweep[paying[-1]].best if paying else None
    if found.concurrency.value is None or best is None:
        without = ", ".join(str(at) for at, each in sweep.items() if each.best is None)
        return f"{of}{found.in_words()}" + (f", and nothing is advised at {without}" if without else "")
    since, but = f"from {paying[0]} " if paying[0] != min(sweep) else "", ""
    between = [(at, each.outcome) for at, each in sweep.items() if paying[0] < at < paying[-1]]
    for outcome, words in EXCEPT.items():
        if here := ", ".join(str(at) for at, found_there in between if found_there == outcome):
            but += f", {words} at {here}"
    return f"{of}pays {since}up to {paying[-1]} requests ({best.gate.name}){but}, {found.in_words()}"


def _best_at(weighed: Weighed, by: str) -> str:
    if weighed.best is None:
        return weighed.words
    best = weighed.best
    unsure = {USE: "", NOT_TO: ", which does not pay", UNDECIDED: ", not decided"}[weighed.outcome]
    family = best.gate.family  # which the line has said
    others = sorted(_others(best, weighed), key=lambda each: each.gate.family != family)
    alike = name_few([each.gate.name.removesuffix(f" ({family})") for each in others])
    told = f", not told apart from {alike}" if alike else ""
    return f"{best.gate.name}: {_in_words(best.gain, by)}{_cost(best.gate, by)}{unsure}{told}"


def _others(best: Candidate, weighed: Weighed) -> list[Candidate]:
    """What the best one is not told apart from: their intervals have something in common, or one has none."""
    low, high = best.gain.low or 0.0, best.gain.high or math.inf
    others = (each for each in weighed.gains if each is not best)
    return [each for each in others if (each.gain.low or 0.0) <= high and low <= (each.gain.high or math.inf)]


def _best(candidates: Sequence[Candidate], kept: Sequence[Gate], by: str) -> tuple[str, Candidate | None, str]:
    """The outcome, whom it is about, and the first words."""
    if sure := [each for each in candidates if each.gain.pays]:
        first = max(sure, key=lambda each: each.gain.low or 0.0)
        return USE, first, f"use {first.gate.name}: {_in_words(first.gain, by)}"
    ranked = sorted(candidates, key=lambda each: -each.gain.ratio)
    if not ranked and not kept:
        return NOT_TO, None, "do not speculate here: no gate that speculates is green and within the limits"
    if not ranked:
        energy, speedup = kept[0].record.energy.over_target, kept[0].record.speedup.ratio
        why = {"energy": f"J/token: {energy.reason}", "throughput": f"speed-up: {speedup.reason}"}
        swept = [each for each in kept if each.record.load.sweep.points]
        kept_up = [f"saturation of {each.name}: {saturations(each.record)}" for each in swept]
        return UNDECIDED, None, "; ".join([f"not decided: {why.get(by, NO_LATENCIES)}", *kept_up])
    if open_ones := [each for each in ranked if not each.gain.excluded]:
        first = open_ones[0]
        told = "; ".join(filter(None, (_rounds(first), waited_long(first.gate.record))))
        return UNDECIDED, first, f"not decided: {first.gate.name}: {_in_words(first.gain, by)}, {told}"
    return NOT_TO, ranked[0], f"do not speculate here: at best {_in_words(ranked[0].gain, by)}, {ranked[0].gate.name}"


def _in_words(gain: Gain, by: str) -> str:
    whose = " of the target's" if by == "latency" else ""  # a time, so less is better
    return f"{OF_WHAT[by]} {gain.inverse}{whose}" if OF_WHAT[by] else str(gain)


def _rounds(candidate: Candidate) -> str:
    """How many more rounds would tell it from the target alone: the interval shrinks as 1/√n."""
    gain, rounds = candidate.gain, candidate.gate.record.throughput.rounds
    if not gain.low or not gain.high:
        return f"without an interval, which {FEWEST} rounds on each side give (--specdec-rounds)"
    near = math.log(gain.ratio if gain.ratio >= 1 else NO_GAIN / gain.ratio)  # to 1, or to what is no gain
    wanted = rounds_to_decide(math.log(gain.high / gain.low) / 2, near, rounds)
    if wanted is None:
        return f"by this estimate too near the target alone for {MOST_ROUNDS:,} rounds to decide"
    return f"about {wanted - rounds} more rounds would decide (--specdec-rounds={wanted})"


def _about(best: Candidate, weighed: Weighed, by: str) -> Iterator[str]:
    verdict = best.gate.record.verdict
    answers = ", ".join(f"{number:,} answers {name}" for name, number in verdict.counts.items() if number)
    beside = f"; beside them greedily {answers}" if answers else ""
    exact = f"exact ({answers or verdict.outcome})" if verdict.sampling is None else f"{verdict.outcome}{beside}"
    yield from filter(None, (_latencies(best.gate, weighed.targets), exact))
    if alike := _others(best, weighed):
        yield f"not told apart from {name_few([f'{each.gate.name}, {_in_words(each.gain, by)}' for each in alike])}"
    yield from _model(best, by, weighed.arms)


def _cost(gate: Gate, by: str, whose: str = "") -> str:
    """The other one of rate and energy."""
    energy, rate = _energy(gate, None), _rate(gate, None)
    told = f", tokens/s {rate}" if by != "throughput" and rate else ""
    return f"{told}, J/token {energy.inverse}{whose}" if by != "energy" and energy else told


def _latencies(gate: Gate, targets: Sequence[Gate]) -> str:
    """Those of its rounds against the target's: in the rounds beside them, in older runs in that run's own gate."""
    beside, target = gate.record.target_alone.latency, _target_of(gate, targets)
    if beside == LatencyPart() and target is not None:
        beside = target.record.latency
    told = []
    for metric in (METRICS["itl_p95"], METRICS["ttft_p95"]):
        ours, theirs = (latency_of(each, metric).value for each in (gate.record.latency, beside))
        against = "" if theirs is None else f" against {_milliseconds(theirs)}"
        told += [] if ours is None else [f"{_name(metric)} {_milliseconds(ours)}{against}"]
    return ", ".join(told)


def _name(metric: Metric) -> str:
    return f"p{metric.percentile} {SHORT_NAMES[metric.latency]}"


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.3g} ms" if value < 1000 else f"{value:,.0f} ms"


def _model(best: Candidate, by: str, arms: Sequence[Gate]) -> Iterator[str]:
    model, gain = best.gate.record.speedup.model, best.gain
    predicted = model.predicted_with_verify_cost.value
    if by == "throughput" and predicted and gain.low and gain.high and not gain.low <= predicted <= gain.high:
        yield f"the performance model predicts {predicted:.2f}×, outside that interval"
    expected = (model.best_gamma_energy if by == "energy" else model.best_gamma_latency).value
    if expected is None or expected == best.gate.gamma:
        return
    if not expected:
        yield "the performance model expects the target alone to be best"
    elif any((gate.family, gate.gamma) == (best.gate.family, expected) for gate in arms):
        yield f"the performance model expects γ = {expected} to be best, which was measured too"
    else:
        yield f"the performance model expects γ = {expected} to be best: measure it"


def _passed_over(arms: Sequence[Gate], limits: Sequence[Threshold]) -> list[str]:
    reds = [(gate.name, gate.record) for gate in arms if gate.red]
    told = [f"{who} is red: {of.verdict.outcome}{', but it fails otherwise' * of.passes}" for who, of in reds]
    missed = [(gate, _tell_miss(limit, gate.record)) for gate in arms if not gate.red for limit in limits]
    told += [f"{gate.name}: {words}" for gate, words in missed if words]
    return [name_few(told)] if told else []


def in_words(decisions: Sequence[Decision]) -> str:
    """All that they say."""
    return "\n".join(line for decision in decisions for line in (decision.words, *decision.at_each))


def write_lines(decisions: Sequence[Decision], width: int) -> Iterator[tuple[str, str]]:
    """(line, outcome of its decision) of each, the place first and the words below it."""
    for decision in decisions:
        yield f"decision: {decision.place}", ""
        for words in (decision.words, *decision.at_each):
            for line in wrap(words, width - 2, break_long_words=False, break_on_hyphens=False):
                yield f"  {line}", decision.outcome


def headline(records: Sequence[Record]) -> str:
    """How many gates are red, exact, failed against a saved run, not judged, and of those judged, faster or slower."""
    reds = sum(record.red for record in records)
    told = [f"{reds} of {count(len(records), 'gate')} red"] if reds else []
    passing = [record for record in records if record.passes and record.shows_speed]
    consistent = sum(record.verdict.outcome == CONSISTENT for record in passing)
    told += [f"{len(passing) - consistent} exact"] if len(passing) > consistent or not consistent else []
    told += [f"{consistent} consistent"] if consistent else []
    regressed = sum(record.gate == REGRESSED for record in records)
    told += [f"{regressed} failed against the baseline run"] if regressed else []
    unjudged = [record for record in records if record.asked.unjudged is not None and not record.red]
    told += [f"{len(unjudged)} measured, not judged"] if unjudged else []
    stands = Counter(record.speedup.standing for record in records if not record.red and record not in unjudged)
    return ", ".join(told + [f"{stands[name]} {name}" for name in ("faster", "slower", "undecided") if stands[name]])
