"""A fake engine and a fake clock: speculative decoding by arithmetic, in no time, with every figure known beforehand.

With it a plugin that is built on this one, or this one's own tests, can see a gate from end to end without a model.
Time is what `clock` reads, and only the engine advances it. `--specdec-engine fake` brings this clock, a target and a
scenario (`numbers.toml`); where other engines run beside it, time is the computer's unless one gives
`--benchmark-timer=pytest_specdec.engines.fake.clock`.

Options (EngineSpec.options): those of `DEFAULTS`, and `fault`, for a fault in both arms. Speculative options: `alpha`
(share of tokens drafted right, 0.8), and `fault`, for a fault of speculation: a name of `FAULTS`. Each is the sound
decoder with one step broken. Four ship with the package, one for each way in which a gate is red. A test enters others:

    @fault("never ends")
    class NeverEnds(Decoder):
        def is_end(self, progress, tokens):
            return False
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_specdec.engines.engine import Description
from pytest_specdec.engines.fake.decoding import TIME, Decoder, FakeTime, Progress, clock, text_of
from pytest_specdec.engines.fake.models import FIRST_PLAIN_ID, LanguageModel, language_model
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineDied, EngineError
from pytest_specdec.generation import Ranking, Run, Score
from pytest_specdec.workloads.workload import Request, Workload

__all__ = ["DEFAULTS", "FAULTS", "TIME", "VERSIONS", "Decoder", "FakeEngine", "FakeTime", "Progress", "clock", "fault"]
FAULTS: dict[str, type[Decoder]] = {}


def fault(name: str) -> Callable[[type[Decoder]], type[Decoder]]:
    """Enter a decoder under this name."""

    def enter(decoder: type[Decoder]) -> type[Decoder]:
        FAULTS[name] = decoder
        return decoder

    return enter


@fault("wrong token")
class WrongToken(Decoder):
    """One id stands in for the target's choice after every token that ends in 5."""

    def emit(self, progress: Progress, burst: Sequence[int], token: int) -> int:
        """By the token before."""
        return FIRST_PLAIN_ID if (*progress.context, *burst)[-1] % 10 == 5 else token


@fault("stops early")
class StopsEarly(Decoder):
    """The last token is missing."""

    def room(self, progress: Progress) -> int:
        """One less."""
        return super().room(progress) - 1


@fault("dead drafter")
class DeadDrafter(Decoder):
    """Nothing is drafted: the target decodes alone."""

    def __init__(self, spec: EngineSpec, options: Mapping[str, Any], model: LanguageModel) -> None:
        super().__init__(spec, options, model)
        self.gamma = 0


@fault("dies")
class Dies(Decoder):
    """The engine dies in the middle of a run."""

    def room(self, progress: Progress) -> int:
        """Die once something was handed out."""
        if progress.output:
            raise EngineDied("the fake engine died while decoding")
        return super().room(progress)


VERSIONS = {"fake": "1"}
DEFAULTS: dict[str, Any] = {
    "load_seconds": 1000.0,
    "prepare_seconds": 100.0,
    "collect_seconds": 100.0,
    "score_seconds": 100.0,
    "step_seconds": 1.0,
    "draft_seconds": 0.25,
    "vocabulary": 103,
    "context": 512,
    "model": "map",
    "near_tie_rate": 0.02,
    "close_rate": 0.02,
    "flip_rate": 0.25,
    "eos_rate": 0.0,
    "keeps_ends": True,
    "binades": 1,
    "switches": {},
}


class FakeEngine:
    """An engine without a process; what its methods are for, the protocol `Engine` says."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._options = {**DEFAULTS, **spec.options, **spec.speculative_options}
        fault = spec.speculative_options.get("fault", spec.options.get("fault"))
        if fault is not None and fault not in FAULTS:
            raise EngineError(f"the fake engine has no fault {fault!r}; it has: {', '.join(FAULTS)}")
        decoder = Decoder if fault is None else FAULTS[fault]
        self._pass("load_seconds")
        self._model: LanguageModel = language_model(spec, self._options)
        self._decoder = decoder(spec, self._options, self._model)
        self.description = Description(
            vocabulary=self._model.vocabulary,
            context=int(self._options["context"]),
            device="fake",
            versions=VERSIONS,
            details=self._details(),
            configuration=self._switches(),
        )
        self._workload: Workload | None = None
        self._run: Run | None = None

    def _details(self) -> dict[str, Any]:
        ends = {"eos_token_ids": list(self._model.eos_token_ids)} if self._model.eos_token_ids else {}
        counting = {"counting": "fake"} if self.spec.speculates else {}
        return {
            "dtype": self.spec.dtype,
            "keeps_ends": self._options["keeps_ends"],
            **ends,
            **counting,
            **self._switches(),
        }

    def _switches(self) -> dict[str, Any]:
        return {**self.spec.options.get("switches", {}), **self.spec.speculative_options.get("switches", {})}

    def _pass(self, option: str) -> None:
        TIME.advance(float(self._options[option]))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """One id a word, by its length."""
        return [[FIRST_PLAIN_ID + len(word) for word in text.split()] for text in texts]

    def encode_messages(self, conversations: Sequence[Sequence[Mapping[str, str]]], **template: Any) -> list[list[int]]:
        """The role's length and the words of each message, the template's values, and "assistant" at the end."""
        values = "".join(f" {name}{value}" for name, value in template.items())
        told = [" ".join(f"{each['role']} {each['content']}" for each in messages) for messages in conversations]
        return self.encode([f"{text}{values} assistant" for text in told])

    def decode(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> Sequence[str | None]:
        """Each token as the fake tokenizer writes it."""
        return [text_of(output) for output in outputs]

    def prepare(self, workload: Workload) -> None:
        self._pass("prepare_seconds")
        self._decoder.take(workload)
        self._workload = workload

    def run(self) -> None:
        """Decode one request after the other, each begun when it is due or, if later, when the one before is done."""
        assert self._workload is not None, "run() before prepare()"
        workload, start = self._workload, clock()
        answers = [self._decoder.decode(workload, index, start) for index in range(len(workload.requests))]
        generations, counted = zip(*self._decoder.in_order(answers), strict=True)
        self._run = Run(generations, sum(counted[1:], counted[0]), clock() - start)

    def collect(self) -> Run:
        self._pass("collect_seconds")
        assert self._run is not None, "collect() before run()"
        return self._run

    def score(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> tuple[tuple[Score, ...], ...]:
        self._pass("score_seconds")
        return tuple(self._decoder.rate(request, output) for request, output in zip(requests, outputs, strict=True))

    def score_in_steps(
        self, requests: Sequence[Request], outputs: Sequence[Sequence[int]], step: int, at_once: int
    ) -> tuple[tuple[Score, ...], ...]:
        """The same as steps of verification compute it, with the rounding of that shape."""
        pairs = zip(requests, outputs, strict=True)
        return tuple(self._decoder.rate(request, output, f"steps of {step}") for request, output in pairs)

    def rank(
        self, requests: Sequence[Request], outputs: Sequence[Sequence[int]], most: int
    ) -> tuple[tuple[Ranking, ...], ...]:
        self._pass("score_seconds")
        pairs = zip(requests, outputs, strict=True)
        return tuple(self._decoder.rank(request, output, most) for request, output in pairs)

    def park(self) -> None:
        """Nothing to give up."""

    def wake(self) -> None:
        """Nothing to take back; the decoder remembers it."""
        self._decoder.woken = True

    def close(self) -> None:
        """Nothing to end."""
