"""The target-only rounds that a speed-up is taken over: turn by turn with the rounds of the other engine.

Machines drift: clocks, temperature, neighbours. What drifts hits both arms where their rounds take turns, also where
one of them sleeps meanwhile; how far the target's own rate has moved over its rounds is told.

Joules a token are held against the target's by the same rules, only where both were obtained in the same way: rounds
take turns, the interval is that of pairs, and a target whose own figure drifted too far has no ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.metrics.rounds import IS_BASELINE, STEADY_SHARE, Drift, Interval, Rounds, ratio_interval
from pytest_specdec.metrics.speed import latency_part
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import EnergyPart, TargetAlonePart

ALTERNATED = "alternated"
BEFORE = "before"
FEW_FOR_DRIFT = "fewer than three timed rounds of target-only beside these, so its drift is not known"
TARGET_NOT_TIMED = "target-only was not timed"
UNCOUNTED = "target-only tells no counters of drafts, so that it did not speculate is not proven"
LONGEST_TOLD = 60
FEWER_PLACES = (
    "{0} requests were to be under way at once, and the engine takes {1}: the figures are of {1}; "
    "raise its limit (max_num_seqs in vLLM) for both arms, or lower concurrency"
)
LARGER_THAN_GRAPHS = (
    "a step of {} requests has up to {} tokens, and the engine's CUDA graphs end at {}: larger steps launch each "
    "kernel by itself; raise compilation_config.max_cudagraph_capture_size (vLLM) for both arms"
)
PIECEWISE_GRAPH = (
    "a step of {0} requests has {1} tokens, for which this vLLM takes a piecewise CUDA graph though a full one is "
    "little larger: add {1} to compilation_config.cudagraph_capture_sizes for both arms"
)
BROUGHT_ALONG = ("cache.num_gpu_blocks", "model.max_logprobs")  # room beside a drafter; what rating needs
FEW_ROUNDS = "fewer than two rounds with energy beside the target's"


@dataclass(frozen=True)
class Base:
    """`rounds`: the target's. `order`: how they stand to the others. `drift`: how far its rate moved over them."""

    rounds: Rounds
    order: str
    drift: Drift | None = None


def base_of(first: Rounds, beside: Rounds | None = None) -> Base:
    """`first`: when the target was measured. `beside`: turn by turn with the other engine."""
    if beside is not None and beside.measured:
        return Base(beside, ALTERNATED, Drift.of(beside.rates))
    return Base(first, BEFORE)


def warnings_of(rounds: Rounds, base: Base | None, keeps_prefix_cache: bool = False) -> list[str]:
    """What a reader of the figures must know before comparing them."""
    words = [UNCOUNTED] if base is not None and not any(run.counted_alone for run in base.rounds.runs) else []
    ours, theirs = rounds.prefix_cache_hits or 0, (base.rounds.prefix_cache_hits or 0) if base else 0
    if base is not None and bool(ours) != bool(theirs):
        words.append(
            f"the prefix cache was warm in one arm only: it held {ours} prompt tokens here, {theirs} for target-only"
        )
    elif ours and theirs and not keeps_prefix_cache:
        words.append(
            f"{ours} prompt tokens here and {theirs} for target-only came from a prefix cache that could not be reset: "
            "repeated prompts cost less than a user's"
        )
    if rounds.warmup.steady is False:
        share = f"{100 * STEADY_SHARE:.0f} %"
        words.append(f"the last two of {rounds.warmup.rounds} warm-up rounds still differed by more than {share}")
    return words + _warn_of_drift(rounds, base)


def _warn_of_drift(rounds: Rounds, base: Base | None) -> list[str]:
    drift = base.drift if base is not None else None
    known = ratio_interval(rounds.rates, base.rounds.rates) if base is not None else None
    if drift is None or known is None or drift.sure <= math.log(known.high / known.low) / 2:
        return []
    return [f"{drift.in_words}, by more than the speed-up's own interval; up to {drift.moved:.1%} is added to that"]


def target_alone_part(base: Base | None) -> TargetAlonePart:
    """The record's word on the target's rounds, by which a reader can recompute the ratios."""
    if base is None:
        return missing(TargetAlonePart, IS_BASELINE)
    energy = base.rounds.energy
    return TargetAlonePart(
        tokens_per_second=Figure(base.rounds.tokens_per_second, TARGET_NOT_TIMED),
        rounds=base.order,
        drift=Figure(base.drift.ratio if base.drift else None, FEW_FOR_DRIFT),
        joules_per_token=energy.joules_per_token,
        prefill_joules_per_prompt_token=energy.prefill_joules_per_prompt_token,
        decode_joules_per_output_token=energy.decode_joules_per_output_token,
        energy_flags=energy.flags,
        latency=latency_part(base.rounds),
    )


def differing_settings(ours: Description, targets: Description | None) -> dict[str, tuple[Any, Any]]:
    """Each setting in which two engines differ after loading: here, and for target-only.

    Two versions have other settings, so there what only one tells is left out.
    """
    if targets is None:
        return {}
    versions = [{f"version of {name}": told for name, told in each.versions.items()} for each in (ours, targets)]
    mine: dict[str, Any] = {**ours.configuration, **versions[0], "device": ours.device}
    theirs: dict[str, Any] = {**targets.configuration, **versions[1], "device": targets.device}
    names = [*dict.fromkeys([*mine, *theirs])] if ours.versions == targets.versions else [*mine.keys() & theirs.keys()]
    both = {name: (mine.get(name), theirs.get(name)) for name in sorted(names)}
    return {name: (one, other) for name, (one, other) in both.items() if one != other}


def warn_of_differences(settings: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """A warning for each setting in which the arms differ, but for what each brings along, which nobody could set."""
    return [
        f"{name} is {_word(ours)} here and {_word(theirs)} for target-only, and the speed-up contains that difference; "
        "set it for both in the engine's options to compare like with like"
        for name, (ours, theirs) in settings.items()
        if name not in BROUGHT_ALONG
    ]


def warn_of_limits(about: Description, concurrency: int, gamma: int | None) -> list[str]:
    """A warning where `concurrency` is beyond what the engine takes at once, or a step beyond its CUDA graphs.

    The requests beyond wait in it; a step with more tokens than the largest graph launches each kernel by itself, and
    one in a piecewise graph those of attention.
    """
    places, graph = (about.details.get(name) or math.inf for name in ("most_requests", "cuda_graph_tokens"))
    taken = min(concurrency, places)
    tokens = taken * ((gamma or 0) + 1)
    holds = {
        FEWER_PLACES.format(concurrency, places): places < concurrency,
        LARGER_THAN_GRAPHS.format(taken, tokens, graph): graph < tokens,
        PIECEWISE_GRAPH.format(taken, tokens): taken in about.details.get("requests_piecewise", ()),
    }
    return [words for words, held in holds.items() if held]


def _word(value: Any) -> str:
    told = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    return told if len(told) <= LONGEST_TOLD else f"{told[:LONGEST_TOLD]}…"


def why_no_ratio(ours: Rounds, base: Rounds) -> str | None:
    """Why joules a token of `ours` are not told over those of `base`, or None."""
    drift = Drift.of(_each_round(base))
    return incomparable(ours.energy, base.energy) or (drift.too_far if drift is not None else None)


def ratio_over(ours: Rounds, base: Rounds) -> Interval | None:
    """The interval of the ratio, also while the meters run; None for too few rounds, or where none is measured."""
    theirs = _each_round(base)
    return ratio_interval(_each_round(ours), theirs, Drift.of(theirs))


def _each_round(rounds: Rounds) -> tuple[float, ...]:
    """Joules a token, round by round; empty where they were not measured."""
    joules = rounds.energy.joules_each_round or ()
    told = len(joules) == len(rounds.runs) and all(run.tokens for run in rounds.runs)
    return tuple(each / run.tokens for each, run in zip(joules, rounds.runs, strict=True)) if told else ()


def incomparable(mine: EnergyPart, base: EnergyPart) -> str | None:
    """Why these two must not be compared, or None."""
    for side, energy in (("this engine", mine), ("the target-only baseline", base)):
        if energy.joules_per_token.value is None:
            return f"{side} has no energy: {energy.joules_per_token.reason}"
    if mine.method != base.method:
        return f"methods are not mixed: {mine.method} here, {base.method} in the target-only baseline"
    if len(mine.scope) != len(base.scope):
        return f"{len(mine.scope)} device(s) here, {len(base.scope)} in the target-only baseline"
    return None
