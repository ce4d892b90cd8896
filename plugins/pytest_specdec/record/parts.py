"""The parts of a record. Each field has its unit, if any, and its meaning beside its type, as docs/record.md has them.

What may be missing is a `Figure`: its value, or null with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from pytest_specdec.record.figure import NO_VALUES, NOT_MEASURED, NOTHING, Figure, Part, Spread

Counts = Mapping[str, int]
Interval = tuple[float, float]
Each = Figure[tuple[float | None, ...]]


def empty() -> Any:
    """The default of a table."""
    return field(default_factory=dict)


class AskedPart(Part):
    """What was asked for; known before an engine is loaded."""

    scenario: Annotated[str, "the scenario's name"] = ""
    scenario_digest: Annotated[str, "over what the scenario asks for, whatever the target"] = ""
    settings_digest: Annotated[
        str, "over what else decides about green and about rounds: thresholds, settings, this package's version"
    ] = ""
    load: Annotated[Mapping[str, Any], "how requests were to arrive"] = empty()
    engine: Annotated[str, "the backend"] = ""
    engine_key: Annotated[str, "a digest over the engine's whole configuration"] = ""
    sweep_key: Annotated[str, "the same without γ: gates of one sweep share it"] = ""
    target: Annotated[str, "the target model"] = ""
    draft: Annotated[str | None, "the draft model; null without one"] = None
    method: Annotated[str, 'the engine\'s own name of the speculation method; "none" is target only'] = ""
    named_method: Annotated[
        str | None, "the method as it was named, an alias for example; null where the draft's checkpoint told it"
    ] = None
    gamma: Annotated[int | None, "tokens", "draft tokens a step; null without speculation"] = None
    dtype: Annotated[str, "of the target's weights"] = ""
    parallelism: Annotated[Counts, "GPUs", "the engine's options on how many GPUs share the work"] = empty()
    unjudged: Annotated[str | None, "why its tokens are not judged, in the words of the mark; null where they are"] = (
        None
    )

    @property
    def speculates(self) -> bool:
        """Whether anything was to be drafted."""
        return self.method != "none"


class PromptTokens(Part):
    """Tokens of the prompts, as they were sent."""

    min: Annotated[int, "tokens", "the shortest"]
    mean: Annotated[float, "tokens", "the mean"]
    p50: Annotated[float, "tokens", "the median"]
    p90: Annotated[float, "tokens", "nine of ten are no longer"]
    max: Annotated[int, "tokens", "the longest"]
    total: Annotated[int, "tokens", "all together"]


class WorkloadPart(Part):
    """Which token ids were decoded, and how many requests at once."""

    digest: Annotated[str, "over the token ids and limits that were decoded"] = ""
    requests: Annotated[int, "requests", "of one round"] = 0
    concurrency: Annotated[int | None, "requests", "max concurrency"] = None
    prompt_tokens: Annotated[PromptTokens | None, "tokens", "lengths of the prompts"] = None
    skipped_rows: Annotated[int, "rows", "malformed rows that were left out on request"] = 0


class EnginePart(Part):
    """What the loaded engine said of itself."""

    versions: Annotated[Mapping[str, str], "of its packages"] = empty()
    device: Annotated[str, '"cpu" or the GPU\'s name'] = ""
    details: Annotated[Mapping[str, Any], "what it tells besides, under its own names"] = empty()
    differences: Annotated[
        Mapping[str, Any], "each setting after loading that is another for target-only: here, and there"
    ] = empty()


class NearTiesPart(Part):
    """Tokens that are not the target's argmax, over distinct outputs, held against the calibration."""

    count: Annotated[int, "tokens", "that are not the argmax"] = 0
    tokens: Annotated[int, "tokens", "that were judged"] = 0
    rated: Annotated[int | None, "tokens", "of them; the others are of answers that equal the target's own"] = None
    calibration_count: Annotated[int, "tokens", "of the calibration that are not the argmax"] = 0
    calibration_tokens: Annotated[int, "tokens", "of the calibration"] = 0
    shape: Annotated[str, "the steps that decoded the calibration"] = ""
    margin: Annotated[float, "how many times as frequent they may be"] = 1.0
    p_value: Annotated[float, "the chance of so many at `margin` times the calibration's rate"] = 1.0
    level: Annotated[float, "of one look: below it there are too many, if a second look finds so too"] = 0.0
    p_value_again: Annotated[Figure[float], "the same of the second look, at fresh prompts"] = NOTHING


class SensitivityPart(Part):
    """The smallest faults that would have turned this verdict red with 95 %, planted into its own tokens.

    Of near-ties with 80 % at least, since their second look has a calibration of its own.
    """

    near_ties: Annotated[Figure[int], "tokens", "runner-ups within the noise floor, beside those that there are"] = (
        NOTHING
    )
    lossy: Annotated[Figure[int], "tokens", "runner-ups, however far"] = NOTHING
    statement: Annotated[str, "the same in words"] = ""


class CalibrationPart(Part):
    """What the noise floor was measured on: target-only output, rescored by the target itself."""

    dtype: Annotated[str, "whose ULPs gaps are counted in: what the engine computes in"] = ""
    unknown: Annotated[tuple[str, ...], "what the engine did not tell, and what was taken instead"] = ()
    tokens: Annotated[int, "tokens", "that were rescored, in each shape of steps"] = 0
    answers: Annotated[int | None, "tokens", "of the target's own distinct answers"] = None
    answers_rated: Annotated[int | None, "tokens", "of them that were rescored: a sample, or all"] = None
    near_ties: Annotated[int, "tokens", "of them that are not the argmax"] = 0
    largest_gap_logits: Annotated[Figure[float], "logits", "largest gap to the argmax"] = NOTHING
    ulp_logits: Annotated[Figure[float], "logits", "the ULP at the largest logit"] = NOTHING
    gaps_in_ulps: Annotated[Counts, "tokens", "by gap in ULPs"] = empty()
    disagreements: Annotated[int, "prompts", "that differ between batch 1 and the workload's concurrency"] = 0
    compared: Annotated[int, "prompts", "that were decoded both ways"] = 0
    rescoring_over_decoding: Annotated[Figure[float], "time of rescoring over that of decoding"] = NOTHING


class FindingPart(Part):
    """One answer that is not identical, with both sides' tokens around the first difference."""

    request: Annotated[int, "its number in the workload, from 0"]
    round: Annotated[int, "its round, from 0"]
    outcome: Annotated[str, "what it is"]
    detail: Annotated[str, "why, in words"]
    position: Annotated[int | None, "the first token that differs; null where none does"] = None
    gap_logits: Annotated[Figure[float], "logits", "the largest gap over all tokens"] = NOTHING
    hints: Annotated[tuple[str, ...], "what stands near it"] = ()
    window_start: Annotated[int, "the place of the first token shown"] = 0
    sides: Annotated[tuple[str, ...], "whose tokens `expected` and `seen` are"] = ("target only", "this engine")
    expected: Annotated[tuple[int, ...], "token ids", "of the first side"] = ()
    seen: Annotated[tuple[int, ...], "token ids", "of the second side"] = ()


class RatedPart(Part):
    """Measured tokens, each rated by the target under the temperature and filters of its request."""

    tokens: Annotated[int, "tokens", "that were rated"] = 0
    unrated: Annotated[int, "tokens", "that were not: at the edge of a filter, or not among the likeliest 1024"] = 0
    log_e_value: Annotated[float, "nats", "the evidence against the engine; beyond 7.6 it is different"] = 0.0
    strongest: Annotated[str, "the group of tokens that tells most"] = ""
    detects_total_variation: Annotated[Figure[float], "the least that would have been found with 95 %"] = NOTHING
    statement: Annotated[str, "the same in words"] = ""


class SamplingPart(Part):
    """The judgement by distribution, at a temperature above 0; samples drawn anew are none where it was red before."""

    samples: Annotated[int, "drawn from the engine"] = 0
    look: Annotated[int, "how many looks were taken"] = 0
    plan: Annotated[Mapping[str, Any], "what was to be found, how surely, at which cost"] = empty()
    power_statement: Annotated[str, "what the samples drawn anew could see, in words"] = ""
    positions: Annotated[tuple[Mapping[str, Any], ...], "the tests of each position"] = ()
    rated: Annotated[RatedPart | None, "null where the measured tokens could not be rated"] = None


class KnownTruthPart(Part):
    """Tokens held against what a constructed target must emit; null where that is not known."""

    tokens: Annotated[Figure[int], "tokens", "compared, of the rounds and of the calibration"] = NOTHING
    wrong: Annotated[Figure[int], "tokens", "of them that are others"] = NOTHING


class ForetoldPart(Part):
    """What `acceptance` has to count with a constructed drafter, over the rounds; null where nothing is claimed."""

    drafts: Annotated[Figure[int], "steps in which something is drafted"] = NOTHING
    draft_tokens: Annotated[Figure[int], "tokens", "proposed"] = NOTHING
    accepted_tokens: Annotated[Figure[int], "tokens", "accepted"] = NOTHING
    accepted_per_position: Annotated[Figure[tuple[int, ...]], "drafts", "by position in the draft"] = NOTHING


class VerdictPart(Part):
    """Is the output the target's own? Gaps are in logits."""

    outcome: Annotated[
        str,
        "identical, tie, draft state, text, length, divergent, inputs differ, engine error, undecidable, not "
        "judged; sampled: consistent, different",
    ] = ""
    detail: Annotated[str | None, "an engine's own words where there is no verdict"] = None
    counts: Annotated[
        Counts, "answers", "of each outcome, over all requests of all rounds; in a mix, the greedy ones"
    ] = empty()
    max_gap_logits: Annotated[Figure[float], "logits", "largest gap of a rescored token to the argmax"] = NOTHING
    noise_floor_ulps: Annotated[
        Figure[int], "ULPs", "the largest gap that counts as a tie, at each token's own top"
    ] = NOTHING
    noise_floor_logits: Annotated[Figure[float], "logits", "the same at the calibration's largest logit"] = NOTHING
    near_ties: Annotated[NearTiesPart | None, "null where nothing was rated token by token"] = None
    limits: Annotated[SensitivityPart | None, "null where nothing was rated token by token"] = None
    calibration: Annotated[CalibrationPart | None, "null where nothing was rated token by token"] = None
    reference_versions: Annotated[Mapping[str, str], "packages of the target-only arm"] = empty()
    known_truth: Annotated[KnownTruthPart, "tokens that are known beforehand"] = KnownTruthPart()
    foretold: Annotated[ForetoldPart, "counters that are known beforehand"] = ForetoldPart()
    findings: Annotated[tuple[FindingPart, ...], "red: the first of them"] = ()
    sampling: Annotated[SamplingPart | None, "null where decoding was greedy"] = None

    @property
    def tie_in_words(self) -> str:
        """How far the tokens of a tie were from the argmax, and how far they may be; empty where none passed as one.

        At a temperature greedy requests beside may have ties.
        """
        beside = self.outcome == "consistent" and self.counts.get("tie")
        if self.outcome != "tie" and not beside:
            return ""
        gap, floor = self.max_gap_logits.value or 0.0, self.noise_floor_ulps.value or 0
        return f"largest gap {gap:.4g} logits, within the noise floor of {floor} ULPs"


class DetectionPart(Part):
    """What a green verdict would have seen of a wrong KV cache, as measured on a model of its kind: detection.md."""

    measured_on: Annotated[str, "the model that faults were planted into"] = ""
    tokens: Annotated[int, "tokens", "of an answer, there; no more than the shortest one had here"] = 0
    shares: Annotated[
        Mapping[str, Interval], "for each fault, the 95 % interval of the share of plantings that were red"
    ] = empty()
    statement: Annotated[str, "the same in words"] = ""


class ReadSharesPart(Part):
    """Shares of KV entries, over the layers and over each length of prompt and answer."""

    once_min: Annotated[float, "read at least once, in the layer with the fewest"]
    once_median: Annotated[float, "the same, in the median"]
    twice_min: Annotated[float, "read at least twice, in the layer with the fewest"]
    twice_median: Annotated[float, "the same, in the median"]


class ExercisedPart(Part):
    """What this gate's answers went through, warm-up included; a burst is the tokens of one step, two or more."""

    none_accepted: Annotated[Figure[int], "steps", "in which the first draft was rejected"] = NOTHING
    some_accepted: Annotated[Figure[int], "steps", "in which a later draft was rejected"] = NOTHING
    all_accepted: Annotated[Figure[int], "steps", "in which none was"] = NOTHING
    drafted_share: Annotated[Figure[float], "of steps that drafted"] = NOTHING
    ends_in_burst: Annotated[int, "answers", "that EOS or a stop ended within a burst"] = 0
    block_edges: Annotated[Figure[int], "bursts", "over an edge of two cache blocks"] = NOTHING
    chunk_edges: Annotated[Figure[int], "bursts", "over a multiple of the prefill chunk"] = NOTHING
    context_edges: Annotated[int, "bursts", "within a step of the end of the context"] = 0
    longest_prompt: Annotated[int, "tokens", "the longest prompt"] = 0
    longest_output: Annotated[int, "tokens", "the longest answer"] = 0
    cached_tokens: Annotated[Figure[int], "tokens", "of prompts that came from a prefix cache"] = NOTHING
    cached_answers: Annotated[Figure[int], "tokens", "of these, those that decoding wrote, as an earlier answer"] = (
        NOTHING
    )
    preemptions: Annotated[Figure[int], "requests that gave up their place in the cache"] = NOTHING
    fields: Annotated[
        tuple[str, ...],
        "of requests: sampling fields, stop, min_tokens, eos, chat_template_kwargs; max_tokens where they differ",
    ] = ()


class CoveragePart(Part):
    """How much of the target's KV cache a pair with memory read after it was written; what is not read is not seen."""

    prompt: Annotated[Figure[ReadSharesPart], "of the prompts' entries, by steps after the prompt's own"] = NOTHING
    output: Annotated[Figure[ReadSharesPart], "of the answers' entries, but for the last token's"] = NOTHING
    low: Annotated[str | None, "where fewer than half were read in the median, and why"] = None
    exercised: Annotated[ExercisedPart, "what answers went through"] = ExercisedPart()


class PerRoundPart(Part):
    """One entry a round; null where it was not counted. Without it no later run can tell a change from noise."""

    tokens: Annotated[tuple[int, ...] | None, "tokens", "delivered"] = None
    seconds: Annotated[tuple[float, ...] | None, "s", "measured"] = None
    drafts: Annotated[tuple[int, ...] | None, "the engine's counter"] = None
    draft_tokens: Annotated[tuple[int, ...] | None, "tokens", "the engine's counter"] = None
    accepted_tokens: Annotated[tuple[int, ...] | None, "tokens", "the engine's counter"] = None
    ttft_us: Annotated[tuple[str, ...] | None, "µs", "of each request, a line of text a round"] = None
    tpot_us: Annotated[tuple[str, ...] | None, "µs", "of each request, a line of text a round"] = None
    e2e_us: Annotated[tuple[str, ...] | None, "µs", "of each request, a line of text a round"] = None


class ThroughputPart(Part):
    """Delivered tokens over measured seconds, and how well that is known."""

    rounds: Annotated[int, "rounds", "that were decoded and judged"] = 0
    rounds_ended_by: Annotated[str | None, "why there are no more; null where nothing was timed"] = None
    warmup_rounds: Annotated[int | None, "rounds", "untimed, before"] = None
    warmup_steady: Annotated[bool | None, "whether the last two took equally long; null with fewer"] = None
    tokens: Annotated[int, "tokens", "delivered token ids, over the rounds"] = 0
    seconds: Annotated[Figure[float], "s", "measured, over the rounds"] = NOTHING
    tokens_per_second: Annotated[Figure[float], "tokens/s", "their ratio"] = NOTHING
    tokens_per_second_interval: Annotated[Figure[Interval], "tokens/s", "its 95 % interval over the rounds"] = NOTHING
    tokens_per_second_interval_share: Annotated[Figure[float], "the interval's width over its middle"] = NOTHING
    steady_tokens_per_second: Annotated[
        Figure[float], "tokens/s", "while every place of a closed load was taken; see measurements.md"
    ] = NOTHING
    steady_share: Annotated[Figure[float], "how much of the rounds' seconds that was"] = NOTHING
    prefix_cache_hits: Annotated[Figure[int], "tokens", "of prompts that came from a prefix cache"] = NOTHING
    waited_for_cores: Annotated[
        Figure[float],
        "of the processor time that the engine's threads wanted, the share in which they waited for a core",
    ] = NOTHING
    per_round: Annotated[PerRoundPart, "round by round"] = PerRoundPart()


class LatencyPart(Part):
    """How long tokens took, pooled over all requests of all rounds; definitions in measurements.md."""

    ttft_s: Annotated[Spread, "s", "to the first token, one a request"] = NO_VALUES
    tpot_s: Annotated[Spread, "s", "a token after the first chunk, one a request"] = NO_VALUES
    itl_s: Annotated[Spread, "s", "from token to token, a chunk's gap shared by its tokens"] = NO_VALUES
    chunk_gap_s: Annotated[Spread, "s", "from chunk to chunk"] = NO_VALUES
    e2e_s: Annotated[Spread, "s", "to the last token, one a request"] = NO_VALUES
    queue_s: Annotated[Spread, "s", "to the submission, one a request"] = NO_VALUES
    tokens_per_chunk: Annotated[Counts, "chunks", "by how many tokens they carried"] = empty()


class CategoryPart(Part):
    """What was accepted in the questions of one kind, over the rounds."""

    name: Annotated[str, "the kind, as the source of the prompts names it"]
    requests: Annotated[int, "requests", "of this kind in a round"]
    rate: Annotated[Figure[float], "accepted over drafted tokens"] = NOTHING
    delivered_tokens_per_step: Annotated[Figure[float], "tokens", "delivered tokens over chunks"] = NOTHING

    def __str__(self) -> str:
        """In words, e.g. "coding 71.2%, 2.90 tokens a step (80 requests)"."""
        rate, per_step = self.rate.value, self.delivered_tokens_per_step.value
        told = [] if rate is None else [f"{rate:.1%}"]
        told += [] if per_step is None else [f"{per_step:.2f} tokens a step"]
        return f"{self.name} {', '.join(told) or '–'} ({self.requests} request{'s' * (self.requests > 1)})"


class AcceptancePart(Part):
    """What the target accepted of what was drafted, by the engine's own counters, and what of it was delivered."""

    drafts: Annotated[Figure[int], "steps in which something was drafted"] = NOTHING
    draft_tokens: Annotated[Figure[int], "tokens", "proposed"] = NOTHING
    accepted_tokens: Annotated[Figure[int], "tokens", "accepted"] = NOTHING
    accepted_per_position: Annotated[Figure[tuple[int, ...]], "drafts", "by position in the draft"] = NOTHING
    rate: Annotated[Figure[float], "accepted over drafted tokens"] = NOTHING
    mean_accepted_length: Annotated[
        Figure[float], "tokens", "1 + accepted tokens over drafts: tokens a step, the bonus token included"
    ] = NOTHING
    mean_accepted_length_without_bonus: Annotated[Figure[float], "tokens", "accepted tokens over drafts"] = NOTHING
    marginal: Annotated[Figure[tuple[float, ...]], "for each position: accepted over drafts that had it"] = NOTHING
    conditional: Annotated[Each, "for each position: the same, of drafts accepted up to it"] = NOTHING
    rate_per_request: Annotated[Each, "accepted over drafted tokens of each request"] = NOTHING
    delivered_tokens_per_step: Annotated[Figure[float], "tokens", "delivered tokens over chunks"] = NOTHING
    delivered_tokens_per_step_per_request: Annotated[Each, "tokens", "the same for each request"] = NOTHING
    by_category: Annotated[tuple[CategoryPart, ...], "the same by kind of question, where the source tells one"] = ()
    discarded_tokens: Annotated[Figure[int], "tokens", "accepted behind an end and thrown away"] = NOTHING
    delivered_explained: Annotated[str | None, "why delivered tokens a step differ from the accepted length"] = None

    @property
    def categories_in_words(self) -> str:
        """What is accepted in each kind of question, the longest steps first: for these it pays most."""
        ordered = sorted(self.by_category, key=lambda each: -(each.delivered_tokens_per_step.value or 0.0))
        return "; ".join(map(str, ordered))


class AnswersPart(Part):
    """Whether the answers are a user's, or loops and what comes after an end, which drafters guess at little cost."""

    repeated_share: Annotated[
        Figure[float], "of their runs of eight tokens, those that stood in the same answer before"
    ] = NOTHING
    past_end: Annotated[Figure[int], "tokens", "after an EOS that `ignore_eos` passes over"] = NOTHING
    tokens_per_step_to_end: Annotated[
        Figure[float], "tokens", "of the steps of answers that went on past their end: those that began up to it"
    ] = NOTHING
    tokens_per_step_past_end: Annotated[Figure[float], "tokens", "those that began past it"] = NOTHING


class TargetAlonePart(Part):
    """The target alone, as these rounds are held against it; null for the target's own record."""

    tokens_per_second: Annotated[
        Figure[float], "tokens/s", "what `throughput.tokens_per_second` is divided by to give `speedup.ratio`"
    ] = NOTHING
    rounds: Annotated[str | None, "how its rounds stand to these: alternated, or before; in older runs both"] = None
    drift: Annotated[Figure[float], "its last over its first round's rate, by a line through them"] = NOTHING
    joules_per_token: Annotated[Figure[float], "J/token", "what `energy.joules_per_token` is divided by"] = NOTHING
    prefill_joules_per_prompt_token: Annotated[Figure[float], "J/token", "as in `energy`"] = NOTHING
    decode_joules_per_output_token: Annotated[Figure[float], "J/token", "as in `energy`"] = NOTHING
    energy_flags: Annotated[tuple[str, ...], "what speaks against that"] = ()
    latency: Annotated[LatencyPart, "of its tokens in those rounds"] = LatencyPart()
    waited_for_cores: Annotated[Figure[float], "as in `throughput`, in rounds that alternate"] = NOTHING

    @property
    def caution(self) -> str:
        """A word on older runs, in which the arms took no turns; empty for the others."""
        if self.rounds != "before and after":
            return ""
        moved = "" if self.drift.value is None else f" of {self.drift.value - 1:+.1%}"
        return f"the target was timed before and after, and its drift{moved} is not in the interval"


class ModelPart(Part):
    """What the model of speculative decoding makes of the counters and of a sweep over γ; see measurements.md."""

    acceptance_per_token: Annotated[Figure[float], "α: the chance that a verified draft token is accepted"] = NOTHING
    expected_tokens_per_step: Annotated[Figure[float], "tokens", "1 + α + … + α^γ"] = NOTHING
    target_step_s: Annotated[Figure[float], "s", "a step of the target alone"] = NOTHING
    step_s: Annotated[Figure[float], "s", "a step: γ drafts and their verification"] = NOTHING
    draft_step_s: Annotated[Figure[float], "s", "a draft step, by the sweep"] = NOTHING
    verify_step_s: Annotated[Figure[float], "s", "a verifying step, by the sweep"] = NOTHING
    draft_cost_ratio: Annotated[Figure[float], "c: a draft step over a target step"] = NOTHING
    verify_cost_ratio: Annotated[Figure[float], "a verifying step over a target step"] = NOTHING
    predicted: Annotated[Figure[float], "the speed-up that the model predicts"] = NOTHING
    predicted_with_verify_cost: Annotated[Figure[float], "the same, verifying at its measured cost"] = NOTHING
    residual: Annotated[Figure[float], "measured less predicted, at the measured cost of verifying"] = NOTHING
    best_gamma_latency: Annotated[Figure[int], "tokens", "the γ that would be fastest; 0: not to speculate"] = NOTHING
    best_gamma_energy: Annotated[Figure[int], "tokens", "the γ that would take least energy"] = NOTHING
    break_even_acceptance: Annotated[Figure[float], "the acceptance from which this γ pays"] = NOTHING


class Decomposition(Part):
    """The change of seconds a request as a product; above 1 makes slower."""

    output_length: Annotated[float, "tokens a request"]
    tokens_per_step: Annotated[float, "fewer tokens a step need more steps"]
    step_time: Annotated[float, "seconds a step"]
    seconds_per_request: Annotated[float, "their product"]


class SpeedupPart(Part):
    """Tokens/s over the target alone, same engine and workload."""

    ratio: Annotated[Figure[float], "`throughput.tokens_per_second` over `target_alone.tokens_per_second`"] = NOTHING
    interval: Annotated[Figure[Interval], "its 95 % interval over the rounds"] = NOTHING
    steady_ratio: Annotated[Figure[float], "the same while every place was taken, in each arm"] = NOTHING
    steady_interval: Annotated[Figure[Interval], "its 95 % interval over the rounds"] = NOTHING
    model: Annotated[ModelPart, "what the model says of it"] = ModelPart()
    decomposition: Annotated[Figure[Decomposition], "what it is made of"] = NOTHING

    @property
    def standing(self) -> str:
        """Beside the target alone: faster, slower, or undecided by its interval; empty where there is no ratio."""
        if self.ratio.value is None:
            return ""
        low, high = self.interval.value or (0.0, math.inf)
        return "faster" if low > 1 else "slower" if high < 1 else "undecided"


class RooflinePart(Part):
    """Bytes and FLOPs of one step of the target, by the model's shape, against the device's peaks."""

    bytes_per_step: Annotated[Figure[float], "bytes", "weights and cache that a step reads"] = NOTHING
    flops_per_step: Annotated[Figure[float], "FLOPs", "that a step does"] = NOTHING
    flops_per_byte: Annotated[Figure[float], "FLOPs/byte", "their ratio"] = NOTHING
    bytes_per_second: Annotated[Figure[float], "bytes/s", "by the measured step"] = NOTHING
    ridge_flops_per_byte: Annotated[Figure[float], "FLOPs/byte", "where arithmetic and memory take equally long"] = (
        NOTHING
    )
    memory_bound: Annotated[Figure[bool], "whether the step lies below that"] = NOTHING
    roof_share: Annotated[Figure[float], "the time that the nearer roof asks for over the measured step"] = NOTHING


class EnergyPart(Part):
    """Energy of the timed rounds, by counters outside the engine; see energy.md."""

    joules: Annotated[Figure[float], "J", "over the rounds"] = NOTHING
    joules_per_token: Annotated[Figure[float], "J/token", "over delivered tokens"] = NOTHING
    net_joules_per_token: Annotated[Figure[float], "J/token", "the same above idle"] = NOTHING
    prefill_joules_per_prompt_token: Annotated[
        Figure[float], "J/token", "of prefill alone, over the tokens of the prompts; where phases do not overlap"
    ] = NOTHING
    decode_joules_per_output_token: Annotated[
        Figure[float], "J/token", "of decode alone, over the tokens that came once every request had its first"
    ] = NOTHING
    over_target: Annotated[
        Figure[float], "`joules_per_token` over `target_alone.joules_per_token`; below 1 saves energy"
    ] = NOTHING
    over_target_interval: Annotated[Figure[Interval], "its 95 % interval over the rounds, pair by pair"] = NOTHING
    mean_watts: Annotated[Figure[float], "W", "during the rounds"] = NOTHING
    idle_watts: Annotated[Figure[float], "W", "before them, engine loaded and waiting"] = NOTHING
    method: Annotated[str | None, "`nvml counter`, `nvml instant power (estimate)`, `rapl`, or null"] = None
    scope: Annotated[tuple[str, ...], "UUIDs of the GPUs, or names of the processor's packages"] = ()
    seconds: Annotated[Figure[float], "s", "the rounds alone"] = NOTHING
    step_seconds: Annotated[Figure[float], "s", "between two changes of the source"] = NOTHING
    relative_error: Annotated[Figure[float], "bound of what the rounds' edges add, as a fraction"] = NOTHING
    joules_each_round: Annotated[tuple[float, ...] | None, "J", "round by round"] = None
    temperature_celsius: Annotated[Mapping[str, Mapping[str, int]], "°C", "first and highest, for each GPU"] = empty()
    flags: Annotated[tuple[str, ...], "what speaks against the figures"] = ()
    series: Annotated[Figure[str], "the file with samples of the engine's GPUs"] = NOTHING

    def phases_in_words(self, alone: TargetAlonePart) -> tuple[str, ...]:
        """What a token costs in either phase, here and of the target alone, or why not; nothing where no energy is."""
        phases = (
            ("a prompt token in prefill", self.prefill_joules_per_prompt_token, alone.prefill_joules_per_prompt_token),
            ("an output token in decode", self.decode_joules_per_output_token, alone.decode_joules_per_output_token),
        )
        beside = {what: "" if its.value is None else f" (target only {its.value:.3g})" for what, _, its in phases}
        known = [f"{each.value:.3g} {what}{beside[what]}" for what, each, _ in phases if each.value is not None]
        why = dict.fromkeys(each.reason or "" for _, each, _ in phases if each.value is None)
        told = (*known, *(f"not apart: {reason}" for reason in why if not known))
        return told if self.joules.value is not None and NOT_MEASURED not in why else ()


class MemoryPart(Part):
    """Peaks of the engine's processes, and what the engine tells."""

    peak_gpu_bytes: Annotated[Figure[int], "bytes", "the most held on GPUs, sampled"] = NOTHING
    peak_gpu_bytes_method: Annotated[str | None, "whether of the engine's processes or of whole GPUs"] = None
    peak_host_bytes: Annotated[Figure[int], "bytes", "the kernel's high-water mark, loading included"] = NOTHING
    weights_bytes: Annotated[Figure[int], "bytes", "of the target, on all devices"] = NOTHING
    kv_cache_bytes: Annotated[Figure[int], "bytes", "of the key-value cache, on one device"] = NOTHING


class TimesPart(Part):
    """What the gate's own time was spent on, both arms together; what earlier gates had done took none."""

    load_s: Annotated[Figure[float], "s", "engines loaded"] = NOTHING
    warmup_s: Annotated[Figure[float], "s", "rounds that are not timed"] = NOTHING
    decode_s: Annotated[Figure[float], "s", "timed rounds, and what lies between them"] = NOTHING
    rating_s: Annotated[Figure[float], "s", "calibration, and answers rated by the target"] = NOTHING
    second_look_s: Annotated[Figure[float], "s", "at fresh prompts, where the number of near-ties alone was red"] = (
        NOTHING
    )


class SendLag(Part):
    """From the moment each request was due to that at which it was sent."""

    p50: Annotated[float, "s", "the median"]
    p90: Annotated[float, "s", "nine of ten are no longer"]
    p99: Annotated[float, "s", "99 of 100 are no longer"]
    max: Annotated[float, "s", "the longest"]


class GoodputPart(Part):
    """Requests that met every objective of the scenario."""

    share: Annotated[Figure[float], "of all requests, failed ones among them"] = NOTHING
    requests_per_second: Annotated[Figure[float], "requests/s", "that met them all"] = NOTHING
    at_best: Annotated[Figure[float], "the share, had the machine sent each request when it was due"] = NOTHING
    slo: Annotated[Mapping[str, float], "ms", "the objectives"] = empty()
    missed: Annotated[Figure[Counts], "requests", "that missed each"] = NOTHING


class FailedPart(Part):
    """Requests that failed."""

    count: Annotated[int, "requests", "how many"] = 0
    of: Annotated[int, "requests", "of how many"] = 0
    by_error: Annotated[Counts, "requests", "by what was said of them"] = empty()


class PointPart(Part):
    """One arm at one rate of a sweep."""

    asked: Annotated[float, "requests/s", "the rate"]
    sent: Annotated[float | None, "requests/s", "submitted"] = None
    completed: Annotated[float | None, "requests/s", "answered"] = None
    tokens_per_second: Annotated[float | None, "tokens/s", "delivered"] = None
    ttft_p50_s: Annotated[float | None, "s", "to the first token"] = None
    ttft_p99_s: Annotated[float | None, "s", "to the first token"] = None
    tpot_p50_s: Annotated[float | None, "s", "a token"] = None
    tpot_p99_s: Annotated[float | None, "s", "a token"] = None
    goodput: Annotated[float | None, "share of requests that met every objective"] = None
    goodput_requests_per_second: Annotated[float | None, "requests/s", "that did"] = None
    failed: Annotated[int, "requests", "that failed"] = 0
    verdict: Annotated[str, "the outcome"] = ""
    sustained: Annotated[bool | None, "whether the engine kept up; null: inconclusive"] = False
    reason: Annotated[str | None, "why figures are null, or why it is inconclusive"] = None


class SweepPart(Part):
    """Both arms under the same open load from low to high."""

    points: Annotated[tuple[PointPart, ...], "this arm's"] = ()
    target_points: Annotated[tuple[PointPart, ...], "the target's"] = ()
    sustained_share: Annotated[float | None, "what must be completed of the rate asked"] = None
    saturation_per_second: Annotated[Figure[float], "requests/s", "the highest rate sustained"] = NOTHING
    target_saturation_per_second: Annotated[Figure[float], "requests/s", "the same for the target alone"] = NOTHING


class LoadPart(Part):
    """What was asked, sent and completed, and how well requests were served."""

    played: Annotated[Mapping[str, Any], "the load of the record's figures: of a sweep, at one rate"] = empty()
    requests_left_out: Annotated[int, "requests", "due after `max_seconds`"] = 0
    asked_per_second: Annotated[Figure[float], "requests/s", "due"] = NOTHING
    sent_per_second: Annotated[Figure[float], "requests/s", "submitted"] = NOTHING
    completed_per_second: Annotated[Figure[float], "requests/s", "answered"] = NOTHING
    send_lag_s: Annotated[Figure[SendLag], "s", "submission less due"] = NOTHING
    flags: Annotated[tuple[str, ...], "what makes this load another than the one asked for"] = ()
    latency_over_target: Annotated[
        Figure[Mapping[str, Mapping[str, float | None]]], "latencies over target-only's; below 1 is faster"
    ] = NOTHING
    failed: Annotated[FailedPart, "requests that failed"] = FailedPart()
    goodput: Annotated[GoodputPart, "requests that met every objective"] = GoodputPart()
    sweep: Annotated[SweepPart, "rates from low to high"] = SweepPart()


class GpuPart(Part):
    """One GPU as NVML names it."""

    uuid: Annotated[str, "its own"]
    name: Annotated[str, "its model"]
    index: Annotated[int, "its number on the machine"]


class HardwarePart(Part):
    """The machine."""

    gpus: Annotated[tuple[GpuPart, ...], "those that are visible"] = ()
    driver: Annotated[str | None, "NVIDIA's"] = None
    processor: Annotated[str | None, "its name"] = None
    cores: Annotated[int | None, "that this process may use"] = None


class ChangePart(Part):
    """A figure now and then; relative changes are now over then, less 1."""

    metric: Annotated[str, "its name"]
    outcome: Annotated[str, "better or same, worse, inconclusive, missing, shown"]
    threshold: Annotated[str, "the most that it may be worse, as written; empty if nobody set one"] = ""
    now: Annotated[float | None, "this run's"] = None
    then: Annotated[float | None, "the baseline run's, or the mean of several"] = None
    change: Annotated[float | None, "relative"] = None
    low: Annotated[float | None, "lower bound of it, by the rounds"] = None
    high: Annotated[float | None, "upper bound of it, by the rounds"] = None
    rounds: Annotated[int | None, "rounds", "of the run with fewer"] = None
    wanted: Annotated[int | None, "rounds", "a side that would decide, if these do not"] = None
    sessions: Annotated[int | None, "runs", "whose mean is the baseline's figure"] = None
    sessions_differ: Annotated[
        float | None, "the share that 99 of 100 sessions of the same code differ by, at most"
    ] = None
    why: Annotated[str, "why there is no interval or no figure"] = ""
    level: Annotated[float, "of the interval"] = 0.95


class BaselinePart(Part):
    """The saved run that this one was held against; see history.md."""

    run: Annotated[str | None, "its id; null where there is none"] = None
    path: Annotated[str | None, "its file"] = None
    test: Annotated[str | None, "the test then"] = None
    reason: Annotated[str | None, "why there is none"] = None
    passed_over: Annotated[tuple[str, ...], "newer runs that were refused, and why"] = ()
    circumstances: Annotated[tuple[str, ...], "versions, driver and options that changed"] = ()
    changes: Annotated[tuple[ChangePart, ...], "figure by figure"] = ()
    failures: Annotated[tuple[str, ...], "what fails the test"] = ()
    failed_by: Annotated[str | None, "the worst of them: worse, inconclusive, missing, or no baseline"] = None
