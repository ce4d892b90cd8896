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
from pytest_specdec.verdict.sampling.rated import Rank
from pytest_specdec.workloads.workload import Request, Workload

NOT_TOLD = "log-probabilities were asked for, and this engine tells none of its answers"
NOT_RATED = "log-probabilities were not compared: the target's engine does not tell its logits"


def judge_logprobs(
    verdict: Verdict, workload: Workload, runs: Sequence[Run], rank: Rank, vocabulary: int
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, *logprobs* where tokens are right and these are not; and a word on what was not compared."""
    answers = _asked(workload, runs) if verdict.passes else []
    told = [each for each in answers if each[3].logprobs is not None]
    pairs = list(dict.fromkeys((request, each.token_ids) for _, _, request, each in told))
    rows = rank([request for request, _ in pairs], [ids for _, ids in pairs]) if pairs else ()
    if rows is None or not pairs:
        return verdict, (NOT_RATED,) if pairs else (NOT_TOLD,) if answers else ()
    rated, dtype = dict(zip(pairs, rows, strict=True)), verdict.floor.dtype
    wrong = {
        (round_, index): Finding(Outcome.LOGPROBS, round_, index, words, seen=each.token_ids, chunks=each.chunks)
        for round_, index, request, each in told
        if (words := wrong_logprobs(each, rated[request, each.token_ids], dtype, vocabulary))
    }
    if not wrong:
        return verdict, ()
    found = {(each.round, each.request): each for each in verdict.findings} | wrong
    return verdict_of(sum(verdict.counts.values()), [*found.values()], verdict.near_ties, verdict.limits), ()


def _asked(workload: Workload, runs: Sequence[Run]) -> list[tuple[int, int, Request, Generation]]:
    """Round, number, request and answer, where they were asked for."""
    return [
        (round_, index, request, answer)
        for round_, run in enumerate(runs)
        for index, (request, answer) in enumerate(zip(workload.requests, run.generations, strict=True))
        if request.sampling.get("logprobs") is not None
    ]


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
    return "all log-probabilities are 0" if _all_zero(told, rated) else None


def _all_zero(told: Sequence[float | None], rated: Sequence[Ranking]) -> bool:
    """Whether each is 0, though float32 tells that some are not."""
    return not any(told) and any(_log_sum(each.logits) - each.logits[0] > 1e-6 for each in rated)


def _bounds(ranking: Ranking, dtype: str, vocabulary: int) -> tuple[float, float]:
    """Between which numbers the emitted token's log-probability lies; below the least that is told, if not told."""
    top, last = ranking.logits[0], ranking.logits[-1]
    slack = SANE_ULPS[dtype] / 2 * ulp(abs(top), dtype)
    least = _log_sum(ranking.logits)
    untold = 0 if ranking.whole else max(vocabulary - len(ranking.logits), 0)
    most = _log_sum([least, last + math.log(untold)]) if untold else least
    if ranking.place is None:
        return -math.inf, last - least + slack
    logit = ranking.logits[ranking.place]
    return logit - most - slack, logit - least + slack


def _log_sum(logits: Sequence[float]) -> float:
    top = max(logits)
    return top + math.log(sum(math.exp(each - top) for each in logits))
