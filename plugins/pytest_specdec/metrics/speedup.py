"""The speed-up over the target alone: measured, predicted by the model of speculative decoding, and taken apart.

By the model (Leviathan et al. 2023, arXiv 2211.17192, section 3) a step of γ drafts gives (1-α^(γ+1))/(1-α) tokens on
average and costs c·γ + 1 steps of the target. c cannot be read off one arm; a sweep over γ tells drafting and verifying
apart, by a line through what a step costs on the whole: the rounds' seconds over their steps. A median step would leave
out those that read a prompt among decoding requests, those that no CUDA graph covers, and places that stand empty.
Arms that differ in anything but speculation have no speed-up. Where speculation stops to pay, a straight line joins the
logarithms of gain and concurrency between two measured values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import linear_regression
from typing import Any

from pytest_specdec.generation import count_steps
from pytest_specdec.metrics.acceptance import per_token
from pytest_specdec.metrics.base import FEW_ROUNDS, TARGET_NOT_TIMED, ratio_over, why_no_ratio
from pytest_specdec.metrics.load import rate_bound
from pytest_specdec.metrics.rounds import (
    FEW_BESIDE,
    IS_BASELINE,
    NO_STEPS,
    NOT_TIMED,
    Contradiction,
    Drift,
    Rounds,
    bounds_in_words,
    bounds_of,
    ratio_interval,
)
from pytest_specdec.metrics.speed import median_chunk_gap_s
from pytest_specdec.record import Figure, Record, missing
from pytest_specdec.record.parts import Decomposition, EnergyPart, ModelPart, SpeedupPart

LARGEST_GAMMA = 16
ONE_GAMMA = "draft and verify steps cannot be told apart by one γ: measure at least two, with the same target and draft"
NO_ALPHA = "the engine does not count accepted drafts by position"
NO_STEP = "no answer came in more than one chunk, so a step's time is not known"
NOISY_FIT = "by the γ sweep a step would cost nothing or less: noise is larger than the effect, so measure more rounds"
NO_ENERGY = "energy was not measured at two γ and for the target beside them"
NO_BREAK_EVEN = "no acceptance pays for this γ"
OF_ONE_GAMMA = ("acceptance_per_token", "expected_tokens_per_step", "target_step_s", "step_s")  # known without a sweep


@dataclass(frozen=True)
class Arm:
    """One side of a comparison. `gamma`: draft tokens a step, 0 for the target alone."""

    rounds: Rounds
    gamma: int
    dtype: str


@dataclass(frozen=True)
class Pace:
    """What a run's duration is made of: requests, delivered tokens, the steps (chunks) they came in, and seconds."""

    requests: int
    tokens: int
    steps: int
    seconds: float

    @classmethod
    def of(cls, rounds: Rounds) -> Pace | None:
        """None where no chunk times are told, or no token came, or no seconds are known."""
        steps = count_steps(rounds.answers)
        seconds = sum(rounds.seconds) if rounds.measured else sum(run.engine_seconds for run in rounds.runs)
        return cls(len(rounds.answers), rounds.tokens, steps, seconds) if steps and seconds > 0 else None

    @property
    def length(self) -> float:
        """Delivered tokens a step."""
        return self.tokens / self.steps

    @property
    def step_s(self) -> float:
        """Seconds a step, all requests taken together: of four at once a quarter of what each of them sees."""
        return self.seconds / self.steps


def decompose(before: Pace, after: Pace) -> Decomposition:
    """The change of seconds a request as a product of three factors, exactly."""
    length = (after.tokens / after.requests) / (before.tokens / before.requests)
    tokens = before.length / after.length
    step = after.step_s / before.step_s
    return Decomposition(
        output_length=length, tokens_per_step=tokens, step_time=step, seconds_per_request=length * tokens * step
    )


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a step, the target's own included: 1 + α + … + α^γ."""
    return float(sum(alpha**position for position in range(gamma + 1)))


def expected_speedup(alpha: float, gamma: int, cost_ratio: float) -> float:
    """Speed over the target alone, if a draft step costs `cost_ratio` target steps and verifying costs one."""
    return expected_tokens(alpha, gamma) / (cost_ratio * gamma + 1)


def break_even_alpha(gamma: int, step_cost: float) -> float | None:
    """The acceptance from which a step that costs `step_cost` target steps pays; None if none does, 0 if any does."""
    if expected_tokens(1.0, gamma) < step_cost:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, gamma) >= step_cost else (middle, high)
    return high


@dataclass(frozen=True)
class StepCost:
    """What a step costs by its γ, in target steps or joules: `verify` once, and `draft` for each drafted token."""

    verify: float
    draft: float

    @classmethod
    def fit(cls, points: Sequence[tuple[int, float]]) -> StepCost | None:
        """The least-squares line through (γ, cost of a step); None with fewer than two different γ."""
        if len({gamma for gamma, _ in points}) < 2:
            return None
        draft, verify = linear_regression(*zip(*points, strict=True))
        return cls(verify, draft)

    @property
    def sound(self) -> bool:
        """Whether both parts cost something."""
        return self.verify > 0 and self.draft > 0

    def step(self, gamma: int) -> float:
        """Cost of a step."""
        return self.verify + gamma * self.draft

    def per_token(self, gamma: int, alpha: float) -> float:
        """Cost of a token."""
        return self.step(gamma) / expected_tokens(alpha, gamma)

    def best_gamma(self, alpha: float, target_step: float) -> int:
        """The γ up to LARGEST_GAMMA whose tokens cost least; 0 if those of the target alone do."""
        costs = {0: target_step} | {gamma: self.per_token(gamma, alpha) for gamma in range(1, LARGEST_GAMMA + 1)}
        return min(costs, key=costs.__getitem__)


def _settings_differ(arm: Arm, target: Arm) -> str | None:
    ours, theirs = (sorted({len(run.generations) for run in each.rounds.runs}) for each in (arm, target))
    if ours != theirs:
        raise Contradiction(f"arms of {ours} and {theirs} requests a round do not compare: run one workload on both")
    gpus = [", ".join(each.rounds.energy.scope) or "none" for each in (arm, target)]
    if gpus[0] != gpus[1]:
        return f"the arms ran on different GPUs: {gpus[0]}, and {gpus[1]} for target-only"
    if arm.dtype != target.dtype:
        return f"the arms have different dtypes: {arm.dtype}, and {target.dtype} for target-only"
    return None


def _tokens_differ(arm: Arm, target: Arm) -> str | None:
    arms = [each.rounds.runs for each in (arm, target)]
    counts = [{tuple(len(answer.token_ids) for answer in run.generations) for run in runs} for runs in arms]
    if counts[0] == counts[1] and len(counts[0]) == 1:
        return None
    told = [" or ".join(str(sum(each)) for each in sorted(arm)) for arm in counts]
    return f"the arms delivered different numbers of tokens to the same requests: {told[0]}, and {told[1]} a round"


def speedup_part(arm: Arm, target: Arm | None, drift: Drift | None = None) -> SpeedupPart:
    """The record's speed-up and what explains it without other γ; every null has a reason.

    `arm`: the gate's own. `target`: target-only, None if the gate's own is it. `drift`: of the target over its rounds,
    which took turns with these. Raises Contradiction.
    """
    if target is None:
        return missing(SpeedupPart, IS_BASELINE)
    differ = _settings_differ(arm, target) or rate_bound(arm.rounds, target.rounds) or _tokens_differ(arm, target)
    if differ := differ or (drift.too_far if drift is not None else None):
        return missing(SpeedupPart, differ)
    ours, theirs = arm.rounds.tokens_per_second, target.rounds.tokens_per_second
    ratio = Figure(ours / theirs if ours and theirs else None, TARGET_NOT_TIMED if ours else NOT_TIMED)
    known = ratio_interval(arm.rounds.rates, target.rounds.rates, drift)
    before, after = Pace.of(target.rounds), Pace.of(arm.rounds)
    return SpeedupPart(
        ratio=ratio,
        interval=bounds_of(known, FEW_BESIDE) if ratio.value else Figure(None, ratio.reason),
        model=_model_of_one_gamma(arm, target),
        decomposition=Figure(decompose(before, after) if before and after else None, NO_STEPS),
    )


def _model_of_one_gamma(arm: Arm, target: Arm) -> ModelPart:
    alpha = per_token(arm.rounds.speculation)
    step, whole = (median_chunk_gap_s(each.rounds.runs) for each in (target, arm))
    why = NO_STEP if not step or not whole else NO_ALPHA if alpha is None else ONE_GAMMA
    return replace(
        missing(ModelPart, why),
        acceptance_per_token=Figure(alpha, NO_ALPHA),
        expected_tokens_per_step=Figure(None if alpha is None else expected_tokens(alpha, arm.gamma), NO_ALPHA),
        target_step_s=Figure(step, NO_STEP),
        step_s=Figure(whole, NO_STEP),
    )


def advice(model: ModelPart) -> str:
    """What the model says of a speed-up that is too low, in one sentence."""
    predicted, alpha = model.predicted_with_verify_cost.value, model.acceptance_per_token.value
    cost = model.draft_cost_ratio.value
    best = model.best_gamma_latency.value
    if predicted is None or alpha is None or cost is None or best is None:
        return f"the model gives no advice: {model.predicted.reason}"
    known = f"at acceptance {alpha:.2f} and a draft step of c = {cost:.3g} target steps"
    told = [f"{known} the model predicts {predicted:.3g}×", best_for("latency", best)]
    if model.best_gamma_energy.value is not None:
        told.append(best_for("energy", model.best_gamma_energy.value))
    if model.break_even_acceptance.value is not None:
        told.append(f"this γ pays from acceptance {model.break_even_acceptance.value:.2f} on")
    return "; ".join(told)


def best_for(purpose: str, gamma: int) -> str:
    """Which γ is best, in words."""
    return f"best for {purpose} is γ = {gamma}" if gamma else f"best for {purpose} is not to speculate"


def explain_in_hindsight(records: Sequence[Record]) -> list[Record]:
    """The same records; what one could not yet predict, when it was the first γ of a sweep, all γ of it tell.

    `records`: those of a session. Records of one sweep differ in γ alone; target-only's is among them or not.
    """
    sweeps: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if record.speedup.ratio.value is not None:
            sweeps.setdefault(_sweep_of(record), []).append(record)
    return [_in_hindsight(record, sweeps.get(_sweep_of(record), [])) for record in records]


def _in_hindsight(record: Record, sweep: Sequence[Record]) -> Record:
    changes = [(each.asked.gamma or 0, each.speedup.decomposition.value) for each in sweep]
    times = StepCost.fit([(gamma, change.step_time) for gamma, change in changes if change is not None])
    model, alpha = record.speedup.model, record.speedup.model.acceptance_per_token.value
    if record.speedup.ratio.value is None or times is None or alpha is None:
        return record
    told = replace(missing(ModelPart, NOISY_FIT), **{name: getattr(model, name) for name in OF_ONE_GAMMA})
    if times.sound:
        told = replace(_by_time(record, alpha, times), best_gamma_energy=_by_energy(record, alpha, sweep))
    return replace(record, speedup=replace(record.speedup, model=told))


def _by_time(record: Record, alpha: float, times: StepCost) -> ModelPart:
    """What the line through the sweep tells, beside what is known of this γ. `times`: in target steps."""
    gamma, ratio, known = record.asked.gamma or 0, record.speedup.ratio.value, record.speedup.model
    predicted, step = 1 / times.per_token(gamma, alpha), known.target_step_s.value
    return replace(
        known,
        draft_step_s=Figure(times.draft * step if step else None, NO_STEP),
        verify_step_s=Figure(times.verify * step if step else None, NO_STEP),
        draft_cost_ratio=Figure(times.draft),
        verify_cost_ratio=Figure(times.verify),
        predicted=Figure(expected_speedup(alpha, gamma, times.draft)),
        predicted_with_verify_cost=Figure(predicted),
        residual=Figure(ratio - predicted if ratio is not None else None, NOT_TIMED),
        best_gamma_latency=Figure(times.best_gamma(alpha, 1.0)),
        break_even_acceptance=Figure(break_even_alpha(gamma, times.step(gamma)), NO_BREAK_EVEN),
    )


def _by_energy(record: Record, alpha: float, sweep: Sequence[Record]) -> Figure[int]:
    told = [(each.asked.gamma or 0, _joules_per_step(each)) for each in sweep]
    joules = StepCost.fit([(gamma, cost) for gamma, cost in told if cost is not None])
    step, change = record.target_alone.joules_per_token.value, record.speedup.decomposition.value
    length = record.acceptance.delivered_tokens_per_step.value
    if joules is None or step is None or change is None or length is None:
        return Figure(None, NO_ENERGY)
    whole = step * length * change.tokens_per_step  # the target's tokens a step: more than one where chunks have more
    return Figure(joules.best_gamma(alpha, whole) if joules.sound else None, NOISY_FIT)


def _sweep_of(record: Record) -> tuple[Any, ...]:
    """What records of one sweep have in common, as what changes a step's time or how many tokens it gives.

    Versions, scheduling, CUDA graphs, and whether tokens are judged: a lossy mode takes more of them. Older runs tell
    no `sweep_key`.
    """
    asked, engine = record.asked, record.engine
    stepping = bool(engine.details.get("async_scheduling")), engine.details.get("cuda_graphs") == "NONE"
    place = (
        record.workload.digest,
        engine.device,
        *sorted(asked.parallelism.items()),
        *sorted(engine.versions.items()),
    )
    pair = (asked.engine, asked.target, asked.dtype, asked.draft or "", asked.method, asked.unjudged is None)
    return (*place, *pair, *stepping, asked.sweep_key)


def _joules_per_step(record: Record) -> float | None:
    joules, length = record.energy.joules_per_token.value, record.acceptance.delivered_tokens_per_step.value
    return joules * length if joules is not None and length is not None else None


def over_target(arm: Arm, target: Arm | None) -> EnergyPart:
    """Energy, with joules a token over the target alone's where both were measured alike; below 1 saves energy.

    Raises Contradiction.
    """
    energy, why = arm.rounds.energy, None if target is not None else IS_BASELINE
    if target is not None:
        why = _settings_differ(arm, target) or _tokens_differ(arm, target) or why_no_ratio(arm.rounds, target.rounds)
    if target is None or why is not None:
        return replace(energy, over_target=Figure(None, why), over_target_interval=Figure(None, why))
    mine, its = energy.joules_per_token.value, target.rounds.energy.joules_per_token.value
    return replace(
        energy,
        over_target=Figure(mine / its if mine is not None and its else None),
        over_target_interval=bounds_of(ratio_over(arm.rounds, target.rounds), FEW_ROUNDS),
    )


NO_GAIN = 1.02
NONE_MEASURED = "no gain was measured"
PAYS, LOSES = "pays at every concurrency measured", "pays at no concurrency measured"
GAIN_IN, NO_GAIN_IN = "surely pays", "surely does not pay"


@dataclass(frozen=True)
class Gain:
    """How many times better than the target alone; without bounds where the rounds give no interval."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def pays(self) -> bool:
        """Whether it surely does."""
        return self.low is not None and self.low > 1

    @property
    def loses(self) -> bool:
        """Whether it surely does not pay."""
        return self.high is not None and self.high < 1

    @property
    def excluded(self) -> bool:
        """Whether it is no better, or by less than counts."""
        return self.high is not None and self.ratio < 1 and self.high < NO_GAIN

    @property
    def inverse(self) -> Gain:
        """The same as a share of what the target alone takes."""
        return Gain(1 / self.ratio, self.high and 1 / self.high, self.low and 1 / self.low)

    def __str__(self) -> str:
        """E.g. "2.43× [2.39, 2.47]"."""
        bounds = "" if self.low is None or self.high is None else f" {bounds_in_words((self.low, self.high))}"
        return f"{self.ratio:.2f}×{bounds}"


@dataclass(frozen=True)
class BreakEven:
    """`concurrency`: where the estimate falls through 1. `pays_up_to`, `loses_from`: the measured values around it."""

    concurrency: Figure[float]
    pays_up_to: int | None = None
    loses_from: int | None = None

    def in_words(self) -> str:
        """E.g. "break-even between 64 and 128, at about 83"."""
        if self.concurrency.value is None:
            return str(self.concurrency.reason)
        above = f"above {self.pays_up_to}" if self.pays_up_to is not None else ""
        below = f"below {self.loses_from}" if self.loses_from is not None else ""
        between = f"between {self.pays_up_to} and {self.loses_from}" if above and below else above or below
        about = f"at about {self.concurrency.value:.0f}"
        return f"break-even {between}, {about}" if between else f"break-even {about} by the estimates alone"


def break_even_concurrency(gains: Mapping[int, Gain]) -> BreakEven:
    """By the gain at each concurrency; where it falls through 1 more than once the last one counts.

    The figure is null, with what they say instead, where it does not, or has risen above 1 again at the last of them.
    """
    ordered = sorted(gains.items())
    pays_up_to = max((at for at, gain in ordered if gain.pays), default=None)
    above = (at for at, gain in ordered if gain.loses and at > (pays_up_to or 0))
    ends_below = bool(ordered) and ordered[-1][1].ratio < 1
    falls = [(here, then) for here, then in pairwise(ordered) if ends_below and here[1].ratio >= 1 > then[1].ratio]
    crossing = None
    if falls:
        (first, last_above), (last, first_below) = falls[-1]
        share = math.log(last_above.ratio) / math.log(last_above.ratio / first_below.ratio)
        crossing = float(first * (last / first) ** share)
    return BreakEven(Figure(crossing, _why_none(ordered)), pays_up_to, min(above, default=None))


def _why_none(ordered: Sequence[tuple[int, Gain]]) -> str:
    if not ordered:
        return NONE_MEASURED
    (first, _), (last, at_last) = ordered[0], ordered[-1]
    if at_last.ratio < 1:
        return _where_sure(ordered, lambda gain: gain.excluded, NO_GAIN_IN) or f"{LOSES}, from {first} to {last}"
    rising = [at for (_, here), (at, then) in pairwise(ordered) if here.ratio < 1 <= then.ratio]
    if rising:
        sure = all(gain.pays for at, gain in ordered if at >= rising[-1])
        before = [str(at) for at, gain in ordered if at < rising[-1] and gain.pays]
        told = f"{'pays' if sure else 'seems to pay, not surely,'} from {rising[-1]} on at every concurrency measured"
        return f"{told}, up to {last}" + (f", and at {', '.join(before)}" if before else "")
    return _where_sure(ordered, lambda gain: gain.pays, GAIN_IN) or f"{PAYS}, up to {last}"


def _where_sure(ordered: Sequence[tuple[int, Gain]], sure: Callable[[Gain], bool], surely: str) -> str:
    told, left = ([str(at) for at, gain in ordered if sure(gain) == is_so] for is_so in (True, False))
    decided = f"{surely} at {', '.join(told)}; " if told else ""
    return f"{decided}not decided at {', '.join(left)}" if left else ""
