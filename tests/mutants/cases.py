"""The mutants of the fake engine: for each, the scenario that meets its fault, and what the gate must say of it.

All run on the fake's context model, where every token depends on every token before, some decisions are near-ties that
rounding flips, and answers end by EOS where a scenario allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.trial import RED

from pytest_specdec.engines.fake import FAULTS
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.verdict.equivalence import Outcome

DIVERGENT, LENGTH, TEXT = Outcome.DIVERGENT.value, Outcome.LENGTH.value, Outcome.TEXT.value
LOGPROBS = Outcome.LOGPROBS.value
INPUTS, ERROR = Outcome.INPUTS_DIFFER.value, Outcome.ENGINE_ERROR.value
UNDECIDABLE = Outcome.UNDECIDABLE.value
DIFFERENT, MEASURED = Outcome.DIFFERENT.value, "measured tokens are not distributed as the target's"
SPECULATION, BOTH_ARMS = "speculation", "both arms"
STATES = Path(__file__).parents[2] / "scenarios" / "states"
ENDING, EXACT, SMALL = {"eos_rate": 0.04}, {"near_tie_rate": 0.0}, {"vocabulary": 31}
BINADES = {"binades": 4}
AT_TEMPERATURE = "at a temperature"
PLAIN = {"count": 8, "max_tokens": 48, "concurrency": 4, "rounds": 2, "warmup_rounds": 0}
WARMED = {**PLAIN, "warmup_rounds": 1}
ENDS = {**PLAIN, "ignore_eos": False}
STOPPED, NEVER_STOPPED = {**PLAIN, "stop": ["7>"]}, {**PLAIN, "stop": ["none of these"]}
LOGGED = {**PLAIN, "sampling": {"logprobs": 1}}
MIXED = {**PLAIN, "sampling_in_turn": [{"repetition_penalty": 2.0}, {}]}
TURNS = {**PLAIN, "follow_ups": [[5]]}
OWN_LENGTHS = {
    "source": {"format": "mooncake", "path": str(STATES / "lengths.jsonl"), "block_size": 64},
    **PLAIN,
    "output_length": "source",
}
TEN_THOUSAND = {**PLAIN, "count": 40, "max_tokens": 250, "rounds": 1}
FIVE_THOUSAND = {**TEN_THOUSAND, "max_tokens": 128}
SAMPLED = {**PLAIN, "count": 16, "max_tokens": 64, "sampling": {"temperature": 1.0}}
SOME_SAMPLED = {**SAMPLED, "sampling": {}, "sampling_in_turn": [{"temperature": 1.0}, {}]}
SOME_RESHAPED = {**SAMPLED, "sampling_in_turn": [{}, {"repetition_penalty": 1.5}]}
WARM = {**SAMPLED, "sampling": {"temperature": 1.5}}
LONG = {**PLAIN, "count": 2, "max_tokens": 280, "concurrency": 2, "rounds": 1}


@dataclass(frozen=True)
class Case:
    """A mutant and its demand: the outcome, and a fragment of the message.

    `where`: the arms that have the fault. `options`: of the model. `alpha`: the drafter's. `variant`: what tells this
    case from another of the same fault.
    """

    fault: str
    outcome: str
    says: str
    scenario: Mapping[str, Any] = field(default_factory=lambda: PLAIN, hash=False)
    where: str = SPECULATION
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    alpha: float = 0.8
    variant: str = ""

    @property
    def name(self) -> str:
        """The fault, and what is particular about this case of it."""
        return f"{self.fault}, {self.variant}" if self.variant else self.fault

    @property
    def broken(self) -> str:
        """What is broken, in the words of the fault itself."""
        return (FAULTS[self.fault].__doc__ or "").partition("\n")[0]

    def spec(self, faulty: bool) -> EngineSpec:
        """The mutant, or the sound engine that is like it in everything else."""
        fault = {"fault": self.fault} if faulty else {}
        return EngineSpec(
            backend="fake",
            target="t",
            draft="d",
            method="draft_model",
            gamma=3,
            options={"model": "context", **self.options, **(fault if self.where == BOTH_ARMS else {})},
            speculative_options={"alpha": self.alpha, **(fault if self.where == SPECULATION else {})},
        )

    def toml(self) -> str:
        """The scenario file."""
        asked = {"source": {"format": "random", "length": 8}, **self.scenario}
        return "\n".join([*(f"{key} = {_toml(value)}" for key, value in asked.items()), ""])


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


CASES = (
    Case("wrong token", DIVERGENT, "below the target's argmax"),
    Case("wrong token", UNDECIDABLE, "strays", where=BOTH_ARMS, variant="in both arms"),
    Case("wrong token accepted", DIVERGENT, "; 1 of 48 tokens are beyond the floor"),
    Case("draft instead of target", DIVERGENT, "tokens are beyond the floor"),
    Case("rollback one too many", DIVERGENT, "tokens are beyond the floor"),
    Case("rollback one too few", DIVERGENT, "tokens are beyond the floor"),
    Case("bonus token dropped", DIVERGENT, "tokens are beyond the floor"),
    Case("bonus token doubled", DIVERGENT, "tokens are beyond the floor"),
    Case("EOS passed over", LENGTH, "continued past EOS at", ENDS, options=ENDING),
    Case("max_tokens overshot", LENGTH, "more than max_tokens = 48"),
    Case("stop text's tail kept", LENGTH, "text equal, ids differ", STOPPED),
    Case("cut off, without a reason", LENGTH, "ended without a finish reason after", ENDS, options=ENDING),
    Case("cut off, says abort", ERROR, "the engine ended it by 'abort' after"),
    Case("cut off, says error", ERROR, "the engine ended it by 'error' after"),
    Case("cut off, says length", LENGTH, "not after max_tokens = 48", ENDS, options=ENDING),
    Case("cut off, says stop", LENGTH, "which is no stop token", ENDS, options=ENDING),
    Case(
        "cut off, says stop",
        LENGTH,
        "on no stop token and no stop text",
        NEVER_STOPPED,
        variant="where a stop text was asked for",
    ),
    Case(
        "cut off, says stop",
        DIVERGENT,
        "below the target's argmax",
        ENDS,
        options={**ENDING, "keeps_ends": False},
        variant="by an engine that leaves EOS out and says so",
    ),
    Case("EOS left out", LENGTH, "which is no stop token", ENDS, options=ENDING),
    Case("text alone wrong", TEXT, "text differs from that of its ids at character 0", STOPPED),
    Case("stop text in the text", TEXT, "text differs from that of its ids", STOPPED),
    Case(
        "min_tokens released late",
        LENGTH,
        "min_tokens = 6 permits it there",
        {**ENDS, "min_tokens": 6},
        BOTH_ARMS,
        {"eos_rate": 0.2},
    ),
    Case(
        "min_tokens released late",
        LENGTH,
        "min_tokens = 6 permits it there",
        {**ENDS, "min_tokens": 6},
        BOTH_ARMS,
        {"eos_rate": 0.2, "near_tie_rate": 0.0, "close_rate": 1.0},
        variant="by eight ULPs",
    ),
    Case(
        "wrong where an end was withheld",
        DIVERGENT,
        "tokens are beyond the floor",
        {**ENDS, "min_tokens": 24},
        options=ENDING,
    ),
    Case("min_tokens ignored", LENGTH, "fewer than min_tokens = 24", {**ENDS, "min_tokens": 24}, BOTH_ARMS, ENDING),
    Case(
        "penalties see the last of a burst",
        DIVERGENT,
        "differs from the target alone under frequency_penalty",
        {**PLAIN, "sampling": {"frequency_penalty": 4.0}},
        options={**EXACT, "vocabulary": 8},
    ),
    Case(
        "bias on the bonus token only",
        DIVERGENT,
        "differs from the target alone under logit_bias",
        {**PLAIN, "sampling": {"logit_bias": {"17": 3.0}}},
        options=EXACT,
    ),
    Case("log-probabilities of the token before", LOGPROBS, "where the target has", LOGGED),
    Case("log-probabilities of 0", LOGPROBS, "the log-probability of token 0 is 0, where", LOGGED),
    Case("log-probabilities of bonus tokens only", LOGPROBS, "log-probabilities for 48 tokens", LOGGED),
    Case("nothing accepted", RED, "acceptance_rate 0 is below", {**PLAIN, "min_acceptance_rate": 0.5}, alpha=1.0),
    Case("dead drafter", RED, "nothing was drafted in"),
    Case("baseline drafts", ERROR, "the baseline drafted", where=BOTH_ARMS),
    Case("one draft whatever γ", RED, "1 tokens were drafted a step, throughout, where γ = 3"),
    Case("drafts in one round only", RED, "nothing was drafted in round 1"),
    Case("drafts for one request only", RED, "nothing was drafted for 7 requests of round 0, 1 the first"),
    Case("drafts up to token 16", RED, "steps of round 0 drafted nothing: did drafting stop midway?"),
    Case("wrong in the first pass", DIVERGENT, "it is the engine's first pass after loading", WARMED),
    Case("wrong in the third pass", RED, "target only, in its rounds around this engine's", where=BOTH_ARMS),
    Case("answers swapped", DIVERGENT, "tokens are beyond the floor"),
    Case("wrong in company", DIVERGENT, "first difference at token 9"),
    Case("wrong on a new prompt", DIVERGENT, "warm-up round -1: divergent", WARMED),
    Case("fields of a neighbour", DIVERGENT, "tokens are beyond the floor", MIXED, options=EXACT),
    Case("max_tokens of a neighbour", LENGTH, "9 tokens delivered, more than max_tokens = 5", OWN_LENGTHS),
    Case("stale prefix cache", DIVERGENT, "round 1: divergent"),
    Case("rejected drafts read in the next turn", DIVERGENT, "tokens are beyond the floor", TURNS),
    Case("wrong past position 256", DIVERGENT, "tokens are beyond the floor", LONG),
    Case("runner-up once", DIVERGENT, "is 0.5 below the target's argmax", TEN_THOUSAND, options=SMALL),
    Case(
        "runner-up once, and the target strays once",
        DIVERGENT,
        "; 1 of 250 tokens are beyond the floor",
        TEN_THOUSAND,
        BOTH_ARMS,
        SMALL,
    ),
    Case(
        "lossy acceptance", DIVERGENT, "tokens are beyond the floor", options={**BINADES, "close_rate": 0.1}, alpha=0.0
    ),
    Case("fp8 cache in one arm", DIVERGENT, "tokens are beyond the floor", options=BINADES),
    Case(
        "near-ties to the draft",
        DIVERGENT,
        "near-ties",
        {**TEN_THOUSAND, "max_tokens": 64},
        options={**SMALL, **BINADES, "near_tie_rate": 0.1},
        alpha=0.0,
    ),
    Case("empty output", LENGTH, "0 tokens delivered"),
    Case("NaN in speculation", DIVERGENT, "token 5 is 8 below the target's argmax"),
    Case("NaN logits", UNDECIDABLE, "the target's own logits are not numbers", where=BOTH_ARMS),
    Case("BOS doubled", INPUTS, "the engine put token 1 before the prompt"),
    Case("BOS doubled unseen", DIVERGENT, "tokens are beyond the floor"),
    Case("BOS doubled unseen", UNDECIDABLE, "strays", where=BOTH_ARMS, variant="in both arms"),
    Case("padded id", LENGTH, "token 5 is 104, and the vocabulary has 103 tokens"),
    Case("stops early", LENGTH, "47 tokens delivered where 48 were asked for"),
    Case("dies", ERROR, "the fake engine died while decoding"),
    Case("wrong finish reason", LENGTH, "finished by 'stop'"),
    Case("every near-tie flipped", DIVERGENT, "near-ties", FIVE_THOUSAND, options=SMALL),
    Case(
        "wrong residual",
        DIFFERENT,
        "is not distributed as the target's",
        {**PLAIN, "count": 1, "concurrency": 1, "sampling": {"temperature": 2.0}},
        options={**EXACT, "vocabulary": 8},
        alpha=0.0,
        variant="seen in samples drawn anew",
    ),
    *(
        Case(fault, outcome, says, scenario, options=SMALL, alpha=0.3, variant=AT_TEMPERATURE)
        for fault, outcome, says, scenario in (
            ("max_tokens overshot", LENGTH, "more than max_tokens = 64", SAMPLED),
            ("padded id", LENGTH, "token 5 is 32, and the vocabulary has 31 tokens", SAMPLED),
            ("wrong finish reason", LENGTH, "finished by 'stop'", SAMPLED),
            ("answers swapped", DIFFERENT, MEASURED, SAMPLED),
            ("NaN in speculation", DIFFERENT, MEASURED, SAMPLED),
            ("wrong past position 256", DIFFERENT, "tokens from 256 on", {**LONG, "sampling": {"temperature": 1.0}}),
            ("acceptance too lax", DIFFERENT, MEASURED, SAMPLED),
            ("wrong residual", DIFFERENT, MEASURED, SAMPLED),
            ("bonus token from the drafter", DIFFERENT, "place 4 of a burst", SAMPLED),
            ("temperature ignored in verification", DIFFERENT, MEASURED, WARM),
        )
    ),
    Case(
        "fields of a neighbour",
        DIVERGENT,
        "tokens are beyond the floor",
        SOME_SAMPLED,
        options=SMALL,
        alpha=0.3,
        variant="a temperature of greedy requests",
    ),
    Case(
        "bonus token from the drafter",
        DIFFERENT,
        "place 4 of a burst",
        SOME_RESHAPED,
        options=SMALL,
        alpha=0.3,
        variant="where some requests have a penalty",
    ),
    *(
        Case(fault, LENGTH, says, scenario, where, {**SMALL, "eos_rate": 0.04}, 0.3, AT_TEMPERATURE)
        for fault, says, scenario, where in (
            ("EOS passed over", "continued past EOS at", {**SAMPLED, "ignore_eos": False}, SPECULATION),
            (
                "min_tokens ignored",
                "fewer than min_tokens = 24",
                {**SAMPLED, "ignore_eos": False, "min_tokens": 24},
                BOTH_ARMS,
            ),
        )
    ),
)
