"""Returned log-probabilities, held against the target's own: one for each token, of that token, and no other number.

They shape no choice, so ids can be right and these be 0, missing, or another token's. The target rates prompt and
answer in one pass; its highest logits give a token's log-probability but for what the tokens not told may weigh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_specdec.generation import Generation, Ranking, Run
from pytest_specdec.verdict.equivalence import Finding, Outcome, Verdict, verdict_of
from pytest_specdec.verdict.noise import SANE_ULPS, ulp
from pytest_specdec.verdict.sampling.rated import Answer, Rank, answers_of, rank_answers
from pytest_specdec.workloads.workload import Workload

NOT_TOLD = "log-probabilities were asked for, and this engine tells none of its answers"
NOT_RATED = "log-probabilities were not compared: the target's engine does not tell its logits"
OTHER_MODE = "log-probabilities were not compared: the options' logprobs_mode is not raw_logprobs, and those are rated"
UNDER_A_GRAMMAR = "log-probabilities were not compared under structured_outputs: they are taken after its mask"


def judge_logprobs(
    verdict: Verdict, workload: Workload, runs: Sequence[Run], rank: Rank, vocabulary: int
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, *logprobs* where tokens are right and these are not; and a word on what was not compared."""
    if not verdict.passes:
        return verdict, ()
    wrong, untried = find_wrong(workload, runs, rank, verdict.floor.dtype, vocabulary)
    if not wrong:
        return verdict, untried
    found = {(each.round, each.request): each for each in (*verdict.findings, *wrong)}
    return verdict_of(sum(verdict.counts.values()), [*found.values()], verdict.near_ties, verdict.limits), untried


def find_wrong(
    workload: Workload, runs: Sequence[Run], rank: Rank, dtype: str, vocabulary: int
) -> tuple[list[Finding], tuple[str, ...]]:
    """Answers whose log-probabilities are wrong; and a word on what was not compared."""
    told, untried = those_told(answers_of(workload.requests, runs))
    found = []
    for answer, rankings in rank_answers(rank, told):
        if rankings is None:
            return [], (*untried, NOT_RATED)
        found += compare_logprobs(answer, rankings, dtype, vocabulary)
    return found, untried


def those_told(answers: Sequence[Answer]) -> tuple[list[Answer], tuple[str, ...]]:
    """The answers whose log-probabilities can be compared; and a word on what cannot."""
    asked = [each for each in answers if each[2].sampling.get("logprobs") is not None]
    raw = [each for each in asked if not each[2].sampling.get("structured_outputs")]
    told = [each for each in raw if each[3].logprobs is not None]
    untried = [UNDER_A_GRAMMAR] if len(raw) < len(asked) else []
    return told, (*untried, *([NOT_TOLD] if raw and not told else []))


def compare_logprobs(answer: Answer, rankings: Sequence[Ranking], dtype: str, vocabulary: int) -> list[Finding]:
    """What is wrong with those of one answer."""
    round_, index, _, seen = answer
    words = wrong_logprobs(seen, rankings, dtype, vocabulary)
    return [Finding(Outcome.LOGPROBS, round_, index, words, seen=seen.token_ids, chunks=seen.chunks)] if words else []


def wrong_logprobs(generation: Generation, rated: Sequence[Ranking], dtype: str, vocabulary: int) -> str | None:
    """What is wrong with the log-probabilities of an answer; None if they are the target's, as far as rounding goes."""
    told = generation.logprobs or ()
    if len(told) != len(generation.token_ids):
        return f"{len(told)} log-probabilities for {len(generation.token_ids)} tokens"
    bounds = [_bounds(each, dtype, vocabulary) for each in rated]
    for at, (value, (low, high)) in enumerate(zip(told, bounds, strict=True)):
        if value is None:
            return f"token {at} is not among the tokens of its log-probabilities"
        if not low <= value <= high:
            return f"the log-probability of token {at} is {value:.4g}, where the target has {low:.4g} to {high:.4g}"
    some_are_not = any(_log_sum(each.logits) - each.logits[0] > 1e-6 for each in rated)  # as float32 tells
    return "all log-probabilities are 0" if some_are_not and not any(told) else None


def _bounds(ranking: Ranking, dtype: str, vocabulary: int) -> tuple[float, float]:
    """Between which numbers the emitted token's log-probability lies; below the least that is told, if not told."""
    top, last = ranking.logits[0], ranking.logits[-1]
    emitted = last if ranking.place is None else ranking.logits[ranking.place]
    slack = SANE_ULPS[dtype] / 2 * ulp(max(abs(top), abs(emitted)), dtype)  # at a temperature it may be far below
    least = _log_sum(ranking.logits)
    untold = 0 if ranking.whole else max(vocabulary - len(ranking.logits), 0)
    most = _log_sum([least, last + math.log(untold)]) if untold else least
    if ranking.place is None:
        return -math.inf, last - least + slack
    return emitted - most - slack, emitted - least + slack


def _log_sum(logits: Sequence[float]) -> float:
    top = max(logits)
    return top + math.log(sum(math.exp(each - top) for each in logits))
