"""The speed-up over the target alone: measured, predicted by the model of speculative decoding, and taken apart.

The model (Leviathan et al. 2023, arXiv 2211.17192, section 3): if each draft token is accepted with chance α, a round
of γ drafts gives (1-α^(γ+1))/(1-α) tokens on average and costs c·γ + 1 steps of the target, where c is a draft step's
time over a target step's. α comes from the engine's counters. c cannot be read off one arm, since a round's time
contains both drafting and verifying; a sweep over γ tells them apart: round = verify + γ · draft, a line through the
median chunk gaps. Target step: the median chunk gap of the target-only arm at the same concurrency.

A speed-up compares two arms that differ in nothing but speculation. Where they differ in GPU, dtype, token counts or
verdict there is none; where one has requests that the other lacks, that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_specdec.generation import Run
from pytest_specdec.measure.acceptance import per_token
from pytest_specdec.measure.contradiction import Contradiction
from pytest_specdec.measure.latency import WITHHELD, median_chunk_gap_s
from pytest_specdec.measure.load import rate_bound
from pytest_specdec.measure.rounds import Rounds

LARGEST_GAMMA = 16
BISECTIONS = 60
SAME_TARGET = ("workload", "engine", "target", "dtype", "device", "parallelism")
SAME_SWEEP = (*SAME_TARGET, "draft", "method")
BASE_LINE = "target-only is the base line"
NOT_TIMED = "pytest-benchmark is disabled (--benchmark-disable, or pytest-xdist), so nothing was timed"
TARGET_NOT_TIMED = "target-only was not timed"
ONE_GAMMA = "draft and verify steps cannot be told apart by one γ: measure at least two, with the same target and draft"
NO_ALPHA = "the engine does not count accepted drafts by position"
NO_STEP = "no answer came in more than one chunk, so a step's time is not known"
NOISY_FIT = "by the γ sweep a step would cost nothing or less: noise is larger than the effect, so measure more rounds"
NO_ENERGY = "energy was not measured at two γ and for the target alone"
NO_CHUNKS = "the engine does not tell in which steps tokens came"


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    `gamma`: draft tokens a round, 0 for the target alone. `gpus`: UUIDs of the engine's GPUs, none on a CPU. `passes`:
    the verdict. `joules_per_token`: None where energy was not measured.
    """

    rounds: Rounds
    gamma: int
    dtype: str
    gpus: tuple[str, ...] = ()
    passes: bool = True
    joules_per_token: float | None = None

    @property
    def alpha(self) -> float | None:
        """The chance that a verified draft token is accepted."""
        return per_token(self.rounds.speculation)

    @property
    def step_s(self) -> float | None:
        """Median seconds from chunk to chunk: a step of the target, or a whole round of drafting and verifying."""
        return median_chunk_gap_s(self.rounds.runs)

    @property
    def joules_per_step(self) -> float | None:
        """Energy of a request's share in one step or round, in joules."""
        pace = Pace.of(self.rounds)
        return self.joules_per_token * pace.length if pace and self.joules_per_token is not None else None


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
        answers = [answer for run in rounds.runs for answer in run.generations]
        steps = sum(len(answer.chunks) for answer in answers)
        seconds = sum(rounds.seconds) if rounds.measured else sum(run.engine_seconds for run in rounds.runs)
        told = steps and seconds > 0 and all(answer.chunks or not answer.token_ids for answer in answers)
        return cls(len(answers), rounds.tokens, steps, seconds) if told else None

    @property
    def length(self) -> float:
        """Delivered tokens a step."""
        return self.tokens / self.steps


def decomposed(before: Pace, after: Pace) -> dict[str, float]:
    """The change of seconds a request as a product of three factors; each is above 1 where it made things slower.

    `output_length`: tokens a request. `tokens_per_step`: fewer tokens a step need more steps. `step_time`: seconds a
    step, all requests taken together. Their product is `seconds_per_request`, exactly.
    """
    parts = {
        "output_length": (after.tokens / after.requests) / (before.tokens / before.requests),
        "tokens_per_step": before.length / after.length,
        "step_time": (after.seconds / after.steps) / (before.seconds / before.steps),
    }
    return {**parts, "seconds_per_request": math.prod(parts.values())}


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a round, the target's own included: 1 + α + … + α^γ."""
    return float(sum(alpha**position for position in range(gamma + 1)))


def expected_speedup(alpha: float, gamma: int, cost_ratio: float) -> float:
    """Speed over the target alone, if a draft step costs `cost_ratio` target steps and verifying costs one."""
    return expected_tokens(alpha, gamma) / (cost_ratio * gamma + 1)


def break_even_alpha(gamma: int, round_cost: float) -> float | None:
    """The acceptance from which a round that costs `round_cost` target steps pays; None if none does, 0 if any does."""
    if expected_tokens(1.0, gamma) < round_cost:
        return None
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, gamma) >= round_cost else (middle, high)
    return high


@dataclass(frozen=True)
class RoundCost:
    """What a round costs by its γ, in seconds or joules: `verify` once, and `draft` for each drafted token."""

    verify: float
    draft: float

    @classmethod
    def fitted(cls, points: Sequence[tuple[int, float]]) -> RoundCost | None:
        """The least-squares line through (γ, cost of a round); None with fewer than two different γ."""
        if len({gamma for gamma, _ in points}) < 2:
            return None
        middle = sum(gamma for gamma, _ in points) / len(points)
        mean = sum(cost for _, cost in points) / len(points)
        rise = sum((gamma - middle) * (cost - mean) for gamma, cost in points)
        draft = rise / sum((gamma - middle) ** 2 for gamma, _ in points)
        return cls(mean - draft * middle, draft)

    @property
    def sound(self) -> bool:
        """Whether both parts cost something."""
        return self.verify > 0 and self.draft > 0

    def round(self, gamma: int) -> float:
        """Cost of a round."""
        return self.verify + gamma * self.draft

    def per_token(self, gamma: int, alpha: float) -> float:
        """Cost of a token."""
        return self.round(gamma) / expected_tokens(alpha, gamma)

    def best_gamma(self, alpha: float, target_step: float) -> int:
        """The γ up to LARGEST_GAMMA whose tokens cost least; 0 if those of the target alone do."""
        costs = {0: target_step} | {gamma: self.per_token(gamma, alpha) for gamma in range(1, LARGEST_GAMMA + 1)}
        return min(costs, key=costs.__getitem__)


def arms_differ(arm: Arm, target: Arm) -> str | None:
    """Why these two give no speed-up, or None. Raises Contradiction where they had not the same requests to answer."""
    ours, theirs = _requests(arm), _requests(target)
    if ours != theirs:
        raise Contradiction(f"arms of {ours} and {theirs} requests a round do not compare: run one workload on both")
    if not (arm.passes and target.passes):
        return WITHHELD
    if arm.gpus != target.gpus:
        return f"the arms ran on different GPUs: {_listed(arm.gpus)}, and {_listed(target.gpus)} for target-only"
    if arm.dtype != target.dtype:
        return f"the arms have different dtypes: {arm.dtype}, and {target.dtype} for target-only"
    return rate_bound(arm.rounds, target.rounds) or _counts_differ(arm.rounds.runs, target.rounds.runs)


def _requests(arm: Arm) -> list[int]:
    return sorted({len(run.generations) for run in arm.rounds.runs})


def _listed(gpus: tuple[str, ...]) -> str:
    return ", ".join(gpus) or "none"


def _counts_differ(ours: Sequence[Run], theirs: Sequence[Run]) -> str | None:
    counts = [{tuple(len(answer.token_ids) for answer in run.generations) for run in runs} for runs in (ours, theirs)]
    if counts[0] == counts[1] and len(counts[0]) == 1:
        return None
    told = [" or ".join(str(sum(each)) for each in sorted(arm)) for arm in counts]
    return f"the arms delivered different numbers of tokens to the same requests: {told[0]}, and {told[1]} a round"


def speedup_part(arm: Arm, target: Arm | None, sweep: Sequence[Arm] = ()) -> dict[str, Any]:
    """The record's speed-up and its explanation; every null has a reason.

    `arm`: the gate's own. `target`: target-only, None if the gate's own is it. `sweep`: arms of the same target, draft,
    workload and machine at other γ, the gate's own among them or not. Raises Contradiction.
    """
    if target is None:
        return _nothing(BASE_LINE)
    differ = arms_differ(arm, target)
    if differ is not None:
        return _nothing(differ)
    ours, base = arm.rounds.tokens_per_second, target.rounds.tokens_per_second
    speedup = ours / base if ours and base else None
    untimed = NOT_TIMED if not ours else TARGET_NOT_TIMED
    return {
        "speedup": speedup,
        "speedup_reason": None if speedup else untimed,
        **_prediction(arm, target, _arms(arm, target, sweep), speedup),
        **_change(target, arm),
    }


def advice(part: Mapping[str, Any]) -> str:
    """What the model says of a speed-up that is too low, in one sentence; `part` is that of `speedup_part`."""
    if part.get("predicted_speedup") is None:
        return f"the model gives no advice: {part['predicted_speedup_reason']}"
    told = [
        f"at acceptance {part['acceptance_per_token']:.2f} and draft cost c = {part['draft_cost_ratio']:.3g} "
        f"the model predicts {part['predicted_speedup']:.3g}"
    ]
    told.append(_best(part["best_gamma_latency"], "latency"))
    if part["best_gamma_energy"] is not None:
        told.append(_best(part["best_gamma_energy"], "energy"))
    if part["break_even_acceptance"] is not None:
        told.append(f"this γ pays from acceptance {part['break_even_acceptance']:.2f} on")
    return "; ".join(told)


def _best(gamma: int, purpose: str) -> str:
    return f"best for {purpose} is γ = {gamma}" if gamma else f"best for {purpose} is not to speculate"


def _arms(arm: Arm, target: Arm, sweep: Sequence[Arm]) -> list[Arm]:
    """The arms that may be fitted together: all that could be compared with the target."""
    others = [other for other in sweep if other is not arm and other.gamma != arm.gamma]
    return [arm, *(other for other in others if arms_differ(other, target) is None)]


EXPLAINED = (
    "acceptance_per_token",
    "expected_tokens_per_round",
    "target_step_s",
    "round_s",
    "draft_step_s",
    "verify_step_s",
    "draft_cost_ratio",
    "verify_cost_ratio",
    "predicted_speedup",
    "predicted_speedup_with_verify_cost",
    "speedup_residual",
    "best_gamma_latency",
    "best_gamma_energy",
    "break_even_acceptance",
)


def _nothing(reason: str) -> dict[str, Any]:
    reasons = ("speedup_reason", "predicted_speedup_reason", "best_gamma_energy_reason", "decomposition_reason")
    return {"speedup": None, **dict.fromkeys(EXPLAINED), "decomposition": None, **dict.fromkeys(reasons, reason)}


def _prediction(arm: Arm, target: Arm, arms: Sequence[Arm], speedup: float | None) -> dict[str, Any]:
    """The model's figures, as far as they go."""
    alpha, step, whole = arm.alpha, target.step_s, arm.step_s
    known = {
        **dict.fromkeys(EXPLAINED),
        "acceptance_per_token": alpha,
        "expected_tokens_per_round": None if alpha is None else expected_tokens(alpha, arm.gamma),
        "target_step_s": step,
        "round_s": whole,
    }
    times = RoundCost.fitted([(each.gamma, each.step_s) for each in arms if each.step_s is not None])
    missing = _unpredictable(alpha, step, whole, times)
    if missing is not None or alpha is None or not step or times is None:
        return {**known, "predicted_speedup_reason": missing, "best_gamma_energy_reason": missing}
    return {
        **known,
        **_by_time(alpha, arm.gamma, step, times, speedup),
        "predicted_speedup_reason": None,
        **_by_energy(alpha, target.joules_per_step, [(each.gamma, each.joules_per_step) for each in arms]),
    }


def _unpredictable(alpha: float | None, step: float | None, whole: float | None, times: RoundCost | None) -> str | None:
    if not step or not whole:
        return NO_STEP
    if alpha is None:
        return NO_ALPHA
    if times is None:
        return ONE_GAMMA
    return None if times.sound else NOISY_FIT


def _by_time(alpha: float, gamma: int, step: float, times: RoundCost, speedup: float | None) -> dict[str, Any]:
    predicted = expected_speedup(alpha, gamma, times.draft / step)
    return {
        "draft_step_s": times.draft,
        "verify_step_s": times.verify,
        "draft_cost_ratio": times.draft / step,
        "verify_cost_ratio": times.verify / step,
        "predicted_speedup": predicted,
        "predicted_speedup_with_verify_cost": step / times.per_token(gamma, alpha),
        "speedup_residual": None if speedup is None else speedup - predicted,
        "best_gamma_latency": times.best_gamma(alpha, step),
        "break_even_acceptance": break_even_alpha(gamma, times.round(gamma) / step),
    }


def _by_energy(alpha: float, step: float | None, rounds: Sequence[tuple[int, float | None]]) -> dict[str, Any]:
    """`step`: joules of a target step; `rounds`: γ and joules of a round; None where they were not measured."""
    joules = RoundCost.fitted([(gamma, cost) for gamma, cost in rounds if cost is not None])
    if step is None or joules is None:
        return {"best_gamma_energy": None, "best_gamma_energy_reason": NO_ENERGY}
    if not joules.sound:
        return {"best_gamma_energy": None, "best_gamma_energy_reason": NOISY_FIT}
    return {"best_gamma_energy": joules.best_gamma(alpha, step), "best_gamma_energy_reason": None}


def explained_in_hindsight(records: Sequence[dict[str, Any]]) -> None:
    """Fill in what a record could not yet predict, when it was the first γ of a sweep, from the later ones.

    `records`: those of a session. Records of one sweep differ in γ alone; target-only's is among them or not.
    """
    sweeps: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        if record.get("speedup") is not None:
            sweeps.setdefault((*_identity(record, SAME_SWEEP), *_stepping(record)), []).append(record)
    for sweep in sweeps.values():
        times = RoundCost.fitted([(each["gamma"], each["round_s"]) for each in sweep if each.get("round_s")])
        for record in sweep:
            if times is not None and record["predicted_speedup_reason"] == ONE_GAMMA:
                record.update(_hindsight(record, times, sweep, _target_of(record, records)))


def _identity(record: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """What a record says under these keys; nothing under one is as good as none."""
    return tuple(str(record.get(key) or "") for key in keys)


def _stepping(record: Mapping[str, Any]) -> tuple[bool, bool]:
    """What changes a step's time in the same engine: asynchronous scheduling, and doing without CUDA graphs."""
    details = record.get("engine_details") or {}
    return bool(details.get("async_scheduling")), details.get("cuda_graphs") == "NONE"


def _hindsight(
    record: Mapping[str, Any], times: RoundCost, sweep: Sequence[Mapping[str, Any]], target: Mapping[str, Any] | None
) -> dict[str, Any]:
    if not times.sound:
        return {"predicted_speedup_reason": NOISY_FIT, "best_gamma_energy_reason": NOISY_FIT}
    alpha, joules = record["acceptance_per_token"], [(each["gamma"], _joules_per_step(each)) for each in sweep]
    return {
        **_by_time(alpha, record["gamma"], record["target_step_s"], times, record["speedup"]),
        "predicted_speedup_reason": None,
        **_by_energy(alpha, _joules_per_step(target) if target is not None else None, joules),
    }


def _target_of(record: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The target's own record on the same workload and engine."""
    same = [each for each in records if _identity(each, SAME_TARGET) == _identity(record, SAME_TARGET)]
    return next((each for each in same if each.get("method") == "none"), None)


def _joules_per_step(record: Mapping[str, Any]) -> float | None:
    joules, length = record.get("energy", {}).get("joules_per_token"), record.get("delivered_tokens_per_step")
    return joules * length if joules is not None and length is not None else None


def _change(target: Arm, arm: Arm) -> dict[str, Any]:
    before, after = Pace.of(target.rounds), Pace.of(arm.rounds)
    if before is None or after is None:
        return {"decomposition": None, "decomposition_reason": NO_CHUNKS}
    return {"decomposition": decomposed(before, after), "decomposition_reason": None}
