"""A fake engine and a fake clock: speculative decoding by arithmetic, in no time, with every figure known beforehand.

It ships with the package so that a plugin built on this one, or this one's own tests, can see a gate from end to end
without a model. The target's next token is a fixed map of the last token; the drafter is right where `alpha` says so.
Time is what `clock` reads, and only the engine advances it: run pytest with
`--benchmark-timer=pytest_specdec.engines.fake.clock`.

Options (EngineSpec.options): `load_seconds`, `prepare_seconds`, `collect_seconds`, `score_seconds`, `step_seconds`,
`draft_seconds`, `vocabulary`, `context`. Speculative options: `alpha` (share of tokens drafted right), `fault` (a name
of FAULTS).
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineDied, EngineError, Unsupported
from pytest_specdec.generation import Chunk, Generation, Run, Score, Speculation
from pytest_specdec.workloads.workload import Request, Workload

FIRST_PLAIN_ID = 3
DEFAULTS = {
    "load_seconds": 1000.0,
    "prepare_seconds": 100.0,
    "collect_seconds": 100.0,
    "score_seconds": 100.0,
    "step_seconds": 1.0,
    "draft_seconds": 0.25,
    "vocabulary": 103,
    "context": 512,
}
FAULTS = ("wrong token", "dead drafter", "dies", "does not load", "unsupported", "stops early")


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


class FakeEngine:
    """An engine without a process."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._options = {**DEFAULTS, **spec.options}
        self._fault = spec.speculative_options.get("fault")
        if self._fault is not None and self._fault not in FAULTS:
            raise EngineError(f"the fake engine has no fault {self._fault!r}; it has: {', '.join(FAULTS)}")
        self._pass("load_seconds")
        if self._fault == "does not load":
            raise EngineError("the fake engine was told not to load")
        self.description = Description(
            vocabulary=int(self._options["vocabulary"]),
            context=int(self._options["context"]),
            device="fake",
            versions={"fake": "1"},
        )
        self._workload: Workload | None = None
        self._run: Run | None = None

    def _pass(self, option: str) -> None:
        TIME.advance(float(self._options[option]))

    def next_token(self, token: int) -> int:
        """The target's greedy choice after `token`."""
        plain = self.description.vocabulary - FIRST_PLAIN_ID
        return FIRST_PLAIN_ID + (token * 7 + 11) % plain

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """One id a word, by its length."""
        return [[FIRST_PLAIN_ID + len(word) for word in text.split()] for text in texts]

    def prepare(self, workload: Workload) -> None:
        """Take the requests."""
        self._pass("prepare_seconds")
        if self._fault == "unsupported":
            raise Unsupported("the fake engine does not support this request")
        self._workload = workload

    def run(self) -> None:
        """Decode one request after the other."""
        assert self._workload is not None, "run() before prepare()"
        if self._fault == "dies":
            raise EngineDied("the fake engine died while decoding")
        start = clock()
        answers = [self._decode(request, start) for request in self._workload.requests]
        generations = tuple(generation for generation, _ in answers)
        counted = [speculation for _, speculation in answers]
        total = sum(counted[1:], counted[0]) if self.spec.speculates else None
        self._run = Run(generations, total, clock() - start)

    def collect(self) -> Run:
        """What the last run gave."""
        self._pass("collect_seconds")
        assert self._run is not None, "collect() before run()"
        return self._run

    def score(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> tuple[tuple[Score, ...], ...]:
        """The map's choice has gap 0, any other token 8 logits."""
        self._pass("score_seconds")
        return tuple(self._scored(request, output) for request, output in zip(requests, outputs, strict=True))

    def park(self) -> None:
        """Nothing to give up."""

    def wake(self) -> None:
        """Nothing to take back."""

    def close(self) -> None:
        """Nothing to end."""

    def _scored(self, request: Request, output: Sequence[int]) -> tuple[Score, ...]:
        before = [request.prompt_ids[-1], *output]
        choices = [self.next_token(token) for token in before[:-1]]
        return tuple(
            Score(0.0 if token == choice else 8.0, 10.0, choice) for token, choice in zip(output, choices, strict=True)
        )

    def _decode(self, request: Request, start: float) -> tuple[Generation, Speculation]:
        wanted = request.max_tokens - (1 if self._fault == "stops early" else 0)
        tokens: list[int] = []
        chunks: list[Chunk] = []
        counted = Speculation(0, 0, 0, ())
        while len(tokens) < wanted:
            block, drafted = self._round(tokens[-1] if tokens else request.prompt_ids[-1], wanted - len(tokens))
            tokens += block
            counted += drafted
            chunks.append(Chunk(clock() - start, len(block)))
        return Generation(request.prompt_ids, tuple(tokens), "length", tuple(chunks)), counted

    def _round(self, last: int, budget: int) -> tuple[list[int], Speculation]:
        """One step of the target: the accepted drafts and one token more."""
        self._pass("step_seconds")
        gamma = 0 if not self.spec.speculates or self._fault == "dead drafter" else self.spec.gamma or 0
        TIME.advance(gamma * float(self._options["draft_seconds"]))
        block = self._accepted(last, min(gamma, budget - 1))
        accepted = len(block)
        block.append(self._emitted(block[-1] if block else last))
        positions = tuple(int(position < accepted) for position in range(gamma))
        return block, Speculation(int(gamma > 0), gamma, accepted, positions)

    def _accepted(self, last: int, longest: int) -> list[int]:
        block: list[int] = []
        while len(block) < longest and self._drafted_right(block[-1] if block else last):
            block.append(self._emitted(block[-1] if block else last))
        return block

    def _drafted_right(self, token: int) -> bool:
        return (token * 37) % 100 < 100 * float(self.spec.speculative_options.get("alpha", 0.8))

    def _emitted(self, last: int) -> int:
        wrong = self._fault == "wrong token" and last % 10 == 5
        return FIRST_PLAIN_ID if wrong else self.next_token(last)
