"""Each measured token as the target rates it: where it lies in the target's distribution, and its log-probability.

The target's logits become probabilities by the request's own temperature and filters, and are joined in a few cells:
the likeliest token, and then the others by how much of the probability lies on likelier ones. Tokens at the edge of a
filter, where rounding may decide, are left out. Log-probabilities that an engine returns are held against the target's
own, since ids can be right and these be 0, missing, or another token's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_specdec.generation import Generation, Ranking, Runs
from pytest_specdec.verdict.equivalence import Answer, Finding, Outcome, Verdict, answers_of
from pytest_specdec.verdict.limits import Facts
from pytest_specdec.verdict.noise import SANE_ULPS, ulp
from pytest_specdec.workloads.workload import Request, Workload

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Floats = NDArray[float64]

MOST = 1024  # logits that are told for each token
BATCH = 8192  # tokens, prompts among them
EDGES = (0.5, 0.9, 0.99, 0.9999, 0.999999)
CELLS = len(EDGES) + 2
FLOAT32_SUM = 1e-5  # of cumulated probabilities
SINGLE = 1 / 2  # of the rounding that a calibration calls sane: what may move a single token
SYSTEMATIC = 1 / 8  # of the same: what may lean to one side in all tokens


@dataclass(frozen=True)
class Place:
    """Where in the measured rounds a token stands; all of it is settled before the token is drawn.

    `token`: its number in the answer. `burst`: its number in what one step gave, 0 in the prompt's own pass.
    """

    round: int
    request: int
    token: int
    burst: int


@dataclass(frozen=True)
class Rated:
    """One token. `mass`: the probability of each cell. `cell`: that of the token. `slack`: by how much rounding may
    move the logarithm of any odds, in all tokens alike."""

    place: Place
    mass: tuple[float, ...]
    cell: int
    slack: float


@dataclass(frozen=True)
class Unrated:
    """One token that cannot be. `impossible`: the target gives it no probability at all. `nan`: the target gives no
    numbers. Neither: rounding decides whether a filter lets it pass, or it is not among the tokens that were told."""

    place: Place
    impossible: bool = False
    nan: bool = False


Rank: TypeAlias = Callable[[Sequence[Request], Sequence[Sequence[int]]], Sequence[Sequence[Ranking]] | None]
Output: TypeAlias = tuple[Request, tuple[int, ...]]


def rank_answers(rank: Rank, answers: Iterable[Answer]) -> Iterator[tuple[Answer, Sequence[Ranking] | None]]:
    """Each answer with the target's highest logits at its tokens, equal ones ranked once, a few at a time.

    None in their place where the target's engine tells no logits.
    """
    same: dict[Output, list[Answer]] = {}
    for answer in answers:
        same.setdefault((answer[2], answer[3].token_ids), []).append(answer)
    for batch in _batches(same):
        told = rank([request for request, _ in batch], [tokens for _, tokens in batch])
        rows: Sequence[Sequence[Ranking] | None] = [None] * len(batch) if told is None else told
        for output, row in zip(batch, rows, strict=True):
            yield from ((answer, row) for answer in same[output])


def _batches(outputs: Iterable[Output]) -> Iterator[list[Output]]:
    """The same in batches whose rankings fit into memory and one message."""
    batch: list[Output] = []
    size = 0
    for request, tokens in outputs:
        more = len(request.prompt_ids) + len(tokens)
        if batch and size + more > BATCH:
            yield batch
            batch, size = [], 0
        batch.append((request, tokens))
        size += more
    if batch:
        yield batch


def look_at(
    rank: Rank, rated: Sequence[Answer], told: Sequence[Answer], dtype: str, facts: Facts
) -> tuple[list[Rated | Unrated], list[Finding]] | None:
    """One pass of the target: the tokens of the answers that are to be rated, and what is wrong with log-probabilities.

    `told`: the answers whose log-probabilities are compared, of those or without them. None where the target's engine
    tells no logits. `facts`: the target's.
    """
    tokens: list[Rated | Unrated] = []
    wrong: list[Finding] = []
    judged, compared = ({answer[:2] for answer in answers} for answers in (rated, told))
    for answer, rankings in rank_answers(rank, [*rated, *(each for each in told if each[:2] not in judged)]):
        if rankings is None:
            return None
        turn, at, _, seen = answer
        tokens += rate_answer(answer, rankings, dtype, facts.eos_token_ids) if (turn, at) in judged else []
        words = wrong_logprobs(seen, rankings, dtype, facts.vocabulary) if (turn, at) in compared else None
        if words is not None:
            wrong.append(Finding(Outcome.LOGPROBS, turn, at, words, seen=seen.token_ids, chunks=seen.chunks))
    return tokens, wrong


def rate_answer(
    answer: Answer, rankings: Sequence[Ranking], dtype: str, eos_token_ids: Collection[int] = ()
) -> list[Rated | Unrated]:
    """Rate every token of one answer, among those that `min_tokens` does not withhold."""
    turn, at, request, seen = answer
    ends = request.stop_tokens(eos_token_ids)
    bursts = [min(at, 1) * (place + 1) for at, chunk in enumerate(seen.chunks) for place in range(chunk.tokens)]
    bursts = bursts if len(bursts) == len(seen.token_ids) else [0] * len(seen.token_ids)
    places = [Place(turn, at, *each) for each in enumerate(bursts)]
    permitted = (
        ranking.without(ends) if token < request.min_tokens else ranking for token, ranking in enumerate(rankings)
    )
    return [rate(*each, request.sampling, dtype) for each in zip(places, permitted, strict=True)]


def rate(place: Place, ranking: Ranking, sampling: Mapping[str, Any], dtype: str) -> Rated | Unrated:
    """Rate one token by the target's highest logits there."""
    import numpy

    logits = numpy.asarray(ranking.logits, dtype=float)
    if numpy.isnan(logits).any():
        return Unrated(place, nan=True)
    # How far rounding may move one logit against another.
    temperature, noise = float(sampling["temperature"]), SANE_ULPS[dtype] * ulp(abs(logits[0]), dtype)
    scaled = (logits[numpy.isfinite(logits)] - logits[0]) / temperature
    sure, possible = count_passing(scaled, sampling, SINGLE * noise / temperature, ranking.whole)
    if ranking.place is None or ranking.place >= sure:
        beyond = possible < len(scaled) or ranking.whole
        return Unrated(place, impossible=beyond and (ranking.place is None or ranking.place >= possible))
    shares = softmax(scaled[:sure])
    cells = 1 + numpy.searchsorted(EDGES, _before(shares), side="right")  # by the mass of likelier tokens
    cells[0] = 0
    mass = numpy.bincount(cells, shares, minlength=CELLS)
    return Rated(place, tuple(mass.tolist()), int(cells[ranking.place]), SYSTEMATIC * noise / temperature)


def count_passing(scaled: Floats, sampling: Mapping[str, Any], slack: float, whole: bool) -> tuple[int, int]:
    """How many of the likeliest tokens pass the filters for sure, and how many may, where rounding moves logits.

    `scaled`: logits over temperature, from high to low, the highest 0. The order of the filters is the engine's own:
    vLLM applies min_p before top_p and Transformers after it, so both must let a token pass.
    """
    sure = possible = len(scaled)
    if 0 < (kept := int(sampling.get("top_k") or 0)) < sure:
        sure = int((scaled > scaled[kept] + slack).sum())
        possible = int((scaled >= scaled[kept - 1] - slack).sum())
    if least := float(sampling.get("min_p") or 0.0):
        sure = min(sure, int((scaled > math.log(least) + slack).sum()))
    sure = max(sure, 1)
    if (most := float(sampling.get("top_p") or 1.0)) < 1.0:
        before = move_odds(_before(softmax(scaled[:sure])), slack)
        sure = int((before < most - FLOAT32_SUM).sum())
        sure = int((scaled > scaled[sure] + slack).sum()) if sure < len(scaled) else sure
        if whole or possible < len(scaled):
            likely = _before(softmax(scaled[:possible]))
            passes = int((move_odds(likely, -slack) < most + FLOAT32_SUM).sum())
            possible = int((scaled[:possible] >= scaled[passes - 1] - slack).sum())
    if least:
        possible = min(possible, int((scaled >= math.log(least) - slack).sum()))
    return max(sure, 1), max(possible, 1)


def _before(shares: Floats) -> Floats:
    """The probability of all tokens that are likelier than each."""
    import numpy

    return numpy.cumsum(shares) - shares


def move_odds(shares: Floats, by: float | Floats) -> Floats:
    """Probabilities, the logarithm of whose odds was moved by this much."""
    import numpy

    moved = shares * numpy.exp(by)
    return moved / (1 - shares + moved)  # type: ignore[no-any-return]


def softmax(scaled: Floats) -> Floats:
    """The probabilities; what is no number leaves none."""
    import numpy

    weights = numpy.exp(scaled)
    return weights / weights.sum()  # type: ignore[no-any-return]


NOT_TOLD = "log-probabilities were asked for, and this engine tells none of its answers"
NOT_RATED = "log-probabilities were not compared: the target's engine does not tell its logits"
OTHER_MODE = "log-probabilities were not compared: the options' logprobs_mode is not raw_logprobs, and those are rated"
UNDER_A_GRAMMAR = "log-probabilities were not compared under structured_outputs: they are taken after its mask"


def judge_logprobs(
    verdict: Verdict, workload: Workload, runs: Runs, rank: Rank, facts: Facts
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, *logprobs* where tokens are right and these are not; and a word on what was not compared.

    `facts`: the target's.
    """
    if not verdict.passes:
        return verdict, ()
    told, untried = those_told(answers_of(workload.requests, runs))
    if (seen := look_at(rank, (), told, verdict.floor.dtype, facts)) is None:
        return verdict, (*untried, NOT_RATED)
    return verdict.with_findings(seen[1]), untried


def those_told(answers: Sequence[Answer]) -> tuple[list[Answer], tuple[str, ...]]:
    """The answers whose log-probabilities can be compared; and a word on what cannot."""
    asked = [each for each in answers if each[2].sampling.get("logprobs") is not None]
    raw = [each for each in asked if not each[2].sampling.get("structured_outputs")]
    told = [each for each in raw if each[3].logprobs is not None]
    untried = [UNDER_A_GRAMMAR] if len(raw) < len(asked) else []
    return told, (*untried, *([NOT_TOLD] if raw and not told else []))


def wrong_logprobs(generation: Generation, rated: Sequence[Ranking], dtype: str, vocabulary: int | None) -> str | None:
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


def _bounds(ranking: Ranking, dtype: str, vocabulary: int | None) -> tuple[float, float]:
    """Between which numbers the emitted token's log-probability lies; below the least that is told, if not told."""
    top, last = ranking.logits[0], ranking.logits[-1]
    emitted = last if ranking.place is None else ranking.logits[ranking.place]
    slack = SANE_ULPS[dtype] / 2 * ulp(max(abs(top), abs(emitted)), dtype)  # at a temperature it may be far below
    least = _log_sum(ranking.logits)
    untold = 0 if ranking.whole else max((vocabulary or 0) - len(ranking.logits), 0)
    most = _log_sum([least, last + math.log(untold)]) if untold else least
    if ranking.place is None:
        return -math.inf, last - least + slack
    return emitted - most - slack, emitted - least + slack


def _log_sum(logits: Sequence[float]) -> float:
    import numpy

    return float(numpy.logaddexp.reduce(numpy.asarray(logits, float)))
