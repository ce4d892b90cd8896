"""Speculative decoding, one method a step, so that a fault is a subclass that overrides one of them.

An answer grows by bursts: tokens are drafted one after another and verified by the target. The first that it would not
have chosen is replaced by its own and ends the burst; if all are accepted it adds one more, the bonus token. What the
model has read (`context`) is kept apart from what is handed out (`output`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from random import Random
from typing import Any

from pytest_specdec.engines.fake.models import (
    LanguageModel,
    argmax,
    discourage,
    draw,
    hash_tokens,
    mask_tokens,
    probabilities,
    swap_two_highest,
    two_highest,
)
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.engines.transformers import up_to
from pytest_specdec.generation import Chunk, Generation, Ranking, Score, Speculation
from pytest_specdec.workloads.workload import Request, Workload

PADDED_LOGIT = 0.0
RESHAPING = frozenset({"logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty"})
BLOCK = 16  # tokens of a block of the prefix cache
Answer = tuple[Generation, Speculation]


class FakeTime:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


TIME = FakeTime()


def clock() -> float:
    """The fake time, in seconds, as a timer of pytest-benchmark."""
    return TIME.now


@dataclass
class Place:
    """Where a token is chosen: the prefix read, the burst's length and the output's; and the target's logits there."""

    at: tuple[tuple[int, ...], int, int]
    logits: list[float]
    _shares: dict[float, list[float]] = field(default_factory=dict)

    @cached_property
    def best(self) -> int:
        """The argmax, looked for once."""
        return argmax(self.logits)

    def shares(self, temperature: float) -> list[float]:
        """The probabilities at this temperature, computed once."""
        if temperature not in self._shares:
            self._shares[temperature] = probabilities(self.logits, temperature)
        return self._shares[temperature]


@dataclass
class Progress:
    """One answer under way.

    `index`: the request's place in the workload. `concurrency`: of the workload. `shape`: of the batches. `warm`:
    whether this prompt was decoded before. `context`: prompt and tokens as the model has read them. `output`: what is
    handed out. `steps`: γ of each burst, and how many drafts it accepted. `longest`: how many drafts the present burst
    may verify. `started_s`: seconds after the run began at which this answer was begun; `scheduled_s`: at which it was
    due. `rejected`: the draft that ended the burst before, None if none was rejected. `struck`: whether a fault that
    strikes once has struck. `cached`: tokens of the prompt that come from the prefix cache. `ends`: the ids that end
    the answer. `place`: the one of which logits were asked for last.
    """

    request: Request
    index: int
    concurrency: int
    shape: str
    warm: bool
    random: Random
    context: list[int]
    output: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    longest: int = 0
    started_s: float = 0.0
    scheduled_s: float | None = None
    rejected: int | None = None
    reason: str | None = None
    struck: bool = False
    cached: int = 0
    ends: frozenset[int] = frozenset()
    place: Place | None = None

    @cached_property
    def temperature(self) -> float:
        """0 is greedy."""
        return float(self.request.sampling.get("temperature", 0.0))

    @cached_property
    def is_reshaped(self) -> bool:
        """Whether a sampling field changes logits."""
        return not RESHAPING.isdisjoint(self.request.sampling)

    @cached_property
    def counted(self) -> Speculation:
        """What was speculated, once the answer is done."""
        drafted, accepted = zip(*self.steps, strict=True)
        positions = tuple(sum(map(position.__lt__, accepted)) for position in range(max(drafted)))
        return Speculation(sum(map(bool, drafted)), sum(drafted), sum(accepted), positions)

    def position(self, burst: Sequence[int]) -> int:
        """The index in the output of the token after this burst."""
        return len(self.output) + len(burst)

    def is_bonus(self, burst: Sequence[int]) -> bool:
        """Whether the token after this burst is chosen without a draft to verify."""
        return len(burst) == self.longest


class Decoder:
    """The sound decoder: target alone where γ is 0, and otherwise by bursts."""

    def __init__(self, spec: EngineSpec, options: Mapping[str, Any], model: LanguageModel) -> None:
        self.model = model
        self.gamma = spec.gamma or 0 if spec.speculates else 0
        self._alpha = float(spec.speculative_options.get("alpha", 0.8))
        self.keeps_ends = bool(options["keeps_ends"])
        self._step_s, self._draft_s = (float(options[f"{each}_seconds"]) for each in ("step", "draft"))
        self._decoded: set[tuple[int, ...]] = set()
        self._cache: set[tuple[int, ...]] = set()
        self.woken = False
        self._passes = 0

    def take(self, workload: Workload) -> None:
        """Take the requests, or refuse them; without a seed, each pass has random numbers of its own."""
        self._passes += 1
        self._cache = self._cache if workload.finds_prefix_cache else set()

    def cached(self, prompt: tuple[int, ...]) -> int:
        """How many tokens of the prompt are in whole blocks of the prefix cache; the last one never is."""
        whole = range(BLOCK, len(prompt), BLOCK)
        return max((length for length in whole if prompt[:length] in self._cache), default=0)

    def prompt(self, request: Request) -> tuple[Sequence[int], Sequence[int]]:
        """The prompt as it is reported, and as the model reads it."""
        return request.prompt_ids, request.prompt_ids

    def decode(self, workload: Workload, index: int, start: float) -> Answer:
        """Answer one request; `start` is when the run began."""
        request, due = workload.requests[index], workload.arrivals_s[index] if workload.arrivals_s else None
        TIME.advance(max(0.0, start + (due or 0.0) - clock()))
        reported, read = self.prompt(request)
        progress = Progress(
            request=request,
            index=index,
            concurrency=workload.concurrency,
            shape=f"{workload.concurrency}x{self.gamma}",
            warm=request.prompt_ids in self._decoded,
            random=Random(f"{request.sampling.get('seed', -self._passes)} {hash_tokens('seed', request.prompt_ids)}"),
            context=list(read),
            cached=self.cached(request.prompt_ids),
            ends=self.stop_tokens(request),
            started_s=clock() - start,
            scheduled_s=due,
        )
        while progress.reason is None:
            self.burst(progress, start)
        self._decoded.add(request.prompt_ids)
        ids = (*request.prompt_ids, *progress.output)
        self._cache.update(ids[:length] for length in range(BLOCK, len(ids) + 1, BLOCK))
        return self.answer(progress, tuple(reported)), progress.counted

    def burst(self, progress: Progress, start: float) -> None:
        """Draft, verify, and hand out what was verified; one step of the target and γ of the drafter."""
        TIME.advance(self._step_s + self.gamma * self._draft_s)
        progress.longest = max(0, min(self.gamma, self.room(progress) - 1))
        burst, accepted, rejected = self.draft_and_verify(progress)
        progress.steps.append((self.gamma, accepted))
        tokens, reason = self.cut(progress, self.hand_out(burst, rejected is None))
        tokens = tokens if self.keeps_ends else self.without_end(progress.request, tokens, reason)
        progress.context += burst
        progress.output += tokens
        progress.rejected = rejected
        progress.chunks += [Chunk(clock() - start, len(tokens))] if tokens else []
        progress.reason = reason or ("length" if self.room(progress) <= 0 else None)

    def room(self, progress: Progress) -> int:
        """How many tokens may still be handed out."""
        return progress.request.max_tokens - len(progress.output)

    def draft_and_verify(self, progress: Progress) -> tuple[list[int], int, int | None]:
        """The burst, how many of its tokens were accepted drafts, and the draft that was rejected."""
        burst: list[int] = []
        while not progress.is_bonus(burst):
            draft, weights = self.draft(progress, burst)
            token, accepted = self.verify(progress, burst, draft, weights)
            burst.append(self.emit(progress, burst, token))
            if not accepted:
                return burst, len(burst) - 1, draft
        burst.append(self.emit(progress, burst, self.choice(progress, burst)))
        return burst, len(burst) - 1, None

    def draft(self, progress: Progress, burst: Sequence[int]) -> tuple[int, list[float]]:
        """The drafter's token and weights, greedy its logits: the target's, the two likeliest swapped where it errs."""
        place = self.place(progress, burst)
        errs = not self.model.agrees((*progress.context, *burst), self._alpha)
        logits = list(swap_two_highest(place.logits)) if errs else place.logits
        if not progress.temperature:
            return argmax(logits) if errs else place.best, logits
        temperature = progress.temperature
        weights = probabilities(logits, temperature) if errs else place.shares(temperature)
        return draw(weights, progress.random), weights

    def verify(self, progress: Progress, burst: Sequence[int], draft: int, weights: list[float]) -> tuple[int, bool]:
        """The token to emit in this place, and whether it is the draft, accepted."""
        if not progress.temperature:
            choice = self.choice(progress, burst)
            return choice, choice == draft
        wanted = self.place(progress, burst).shares(progress.temperature)
        if progress.random.random() * weights[draft] < wanted[draft]:
            return draft, True
        return draw(self.residual(wanted, weights), progress.random), False

    def residual(self, target: list[float], draft: list[float]) -> list[float]:
        """What a rejected draft is replaced from: what of the target's the drafter's does not cover; not normalised."""
        return [max(p - q, 0.0) for p, q in zip(target, draft, strict=True)]

    def choice(self, progress: Progress, burst: Sequence[int]) -> int:
        """The target's own token after context and burst."""
        place = self.place(progress, burst)
        if not progress.temperature:
            return place.best
        return draw(place.shares(progress.temperature), progress.random)

    def reshape(self, progress: Progress, burst: Sequence[int]) -> list[float]:
        """The target's logits after context and burst, as the request's sampling fields reshape them."""
        return self.place(progress, burst).logits

    def place(self, progress: Progress, burst: Sequence[int]) -> Place:
        """The place after context and burst; whoever drafts and who verifies ask for the same, one after the other."""
        at = self.read(progress, burst), len(burst), len(progress.output)
        if progress.place is None or progress.place.at != at:
            progress.place = Place(at, self._reshape(progress, burst, at[0]))
        return progress.place

    def _reshape(self, progress: Progress, burst: Sequence[int], prefix: tuple[int, ...]) -> list[float]:
        logits = list(self.model.logits(prefix, progress.shape))
        if progress.is_reshaped:
            logits = self._apply_sampling(logits, progress, burst)
        if progress.ends and not self.may_end(progress, burst):
            mask_tokens(logits, progress.ends)
        return logits

    def _apply_sampling(self, logits: list[float], progress: Progress, burst: Sequence[int]) -> list[float]:
        sampling = progress.request.sampling
        bias = self.bias(progress, burst)
        logits = [logit + bias.get(token, 0.0) for token, logit in enumerate(logits)]
        history, repetition = self.history(progress, burst), float(sampling.get("repetition_penalty", 1.0))
        logits = discourage(logits, [*progress.request.prompt_ids, *history], repetition) if repetition != 1 else logits
        frequency, presence = (float(sampling.get(f"{each}_penalty", 0.0)) for each in ("frequency", "presence"))
        for token, times in Counter(history if frequency or presence else ()).items():
            logits[token] -= frequency * times + presence
        return logits

    def read(self, progress: Progress, burst: Sequence[int]) -> tuple[int, ...]:
        """The prefix that the cache holds."""
        return (*progress.context, *burst)

    def bias(self, progress: Progress, burst: Sequence[int]) -> Mapping[int, float]:
        """The request's `logit_bias`; asked only where a field of RESHAPING is given."""
        return {int(token): float(bias) for token, bias in progress.request.sampling.get("logit_bias", {}).items()}

    def history(self, progress: Progress, burst: Sequence[int]) -> list[int]:
        """The tokens that penalties count; asked as `bias` is."""
        return [*progress.output, *burst]

    def stop_tokens(self, request: Request) -> frozenset[int]:
        """The ids that end this request's answer."""
        return request.stop_tokens(self.model.eos_token_ids)

    def may_end(self, progress: Progress, burst: Sequence[int]) -> bool:
        """Whether `min_tokens` is reached."""
        return progress.position(burst) >= progress.request.min_tokens

    def emit(self, progress: Progress, burst: Sequence[int], token: int) -> int:
        """The token as it leaves verification."""
        return token

    def hand_out(self, burst: Sequence[int], has_bonus: bool) -> list[int]:
        """The tokens of a burst as they are handed out."""
        return list(burst)

    def cut(self, progress: Progress, tokens: list[int]) -> tuple[list[int], str | None]:
        """The tokens up to the first end among them, and "stop" if there is one."""
        if not (progress.ends or progress.request.stop):
            return tokens, None
        for length in range(1, len(tokens) + 1):
            if self.is_end(progress, tokens[:length]):
                return tokens[:length], "stop"
        return tokens, None

    def is_end(self, progress: Progress, tokens: Sequence[int]) -> bool:
        """Whether the last of these tokens, after the output so far, ends the answer by id or by text."""
        if progress.position(tokens) < progress.request.min_tokens:
            return False
        if tokens[-1] in progress.ends:
            return True
        said = text_of([*progress.output, *tokens]) if progress.request.stop else ""
        return any(stop in said for stop in progress.request.stop)

    def answer(self, progress: Progress, prompt: tuple[int, ...]) -> Generation:
        """The finished answer; text only where a stop text was asked for, and without it."""
        asked, ids = progress.request, self.without_end(progress.request, progress.output, progress.reason)
        text = up_to(text_of(ids), asked.stop) if asked.stop else None
        counted = progress.counted if self.gamma else None
        drafted, accepted = (counted.draft_tokens, counted.accepted_tokens) if counted else (None, None)
        logprobs = self.logprobs(asked, progress.output) if asked.sampling.get("logprobs") is not None else None
        whole = prompt, tuple(progress.output), progress.reason, tuple(progress.chunks), text
        moments = progress.started_s, progress.scheduled_s
        return Generation(*whole, *moments, None, drafted, accepted, progress.cached, logprobs)

    def logprobs(self, request: Request, output: Sequence[int]) -> tuple[float | None, ...]:
        """The logarithm of each token's probability, whatever sampling fields reshape."""
        rows = (self.model.logits((*request.prompt_ids, *output[:at]), None) for at in range(len(output)))
        return tuple(log(probabilities(row, 1.0)[token]) for token, row in zip(output, rows, strict=True))

    def without_end(self, request: Request, tokens: list[int], reason: str | None) -> list[int]:
        """Tokens without the EOS or stop token that ended the answer."""
        ends = self.stop_tokens(request) if reason == "stop" else frozenset()
        return tokens[:-1] if set(tokens[-1:]) & ends else tokens

    def in_order(self, answers: list[Answer]) -> list[Answer]:
        """The answers, each in the place of its request."""
        return answers

    def rate(self, request: Request, output: Sequence[int], shape: str | None = None) -> tuple[Score, ...]:
        """Each token's gap to the argmax of the raw logits among permitted tokens, without noise or in this shape."""
        scores = []
        for token, (raw, permitted) in zip(output, self._both_logits(request, output, shape), strict=True):
            best, second = two_highest(permitted)
            rated = raw[token] if token < len(raw) else PADDED_LOGIT
            scores.append(Score(raw[best] - rated, raw[best], best, raw[best] - raw[second]))
        return tuple(scores)

    def rank(self, request: Request, output: Sequence[int], most: int) -> tuple[Ranking, ...]:
        """The `most` highest raw logits at each token."""
        rankings = []
        for token, (raw, _) in zip(output, self._both_logits(request, output), strict=True):
            ids = sorted(range(len(raw)), key=raw.__getitem__, reverse=True)[:most]
            place = ids.index(token) if token in ids else None
            rankings.append(Ranking([raw[each] for each in ids], ids, place, most >= len(raw)))
        return tuple(rankings)

    def _both_logits(
        self, request: Request, output: Sequence[int], shape: str | None = None
    ) -> Iterator[tuple[Sequence[float], Sequence[float]]]:
        """At each token the raw logits, and the same without the tokens that are not permitted."""
        for place in range(len(output)):
            logits = self.model.logits((*request.prompt_ids, *output[:place]), shape)
            ends = self.stop_tokens(request) if place < request.min_tokens else ()
            yield logits, mask_tokens(list(logits), ends) if ends else logits


def text_of(tokens: Sequence[int]) -> str:
    """The fake tokenizer's text, e.g. "<5><17>"."""
    return "".join(f"<{token}>" for token in tokens)
