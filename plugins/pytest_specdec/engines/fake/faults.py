"""Faults by name, as the option `fault` has them: each is the sound decoder with one step broken.

Four ship with the package, one for each way in which a gate is red. A test registers others:

    @fault("never ends")
    class NeverEnds(Decoder):
        def is_end(self, progress, tokens):
            return False
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_specdec.engines.fake.decoding import Decoder, Progress
from pytest_specdec.engines.fake.models import FIRST_PLAIN_ID, LanguageModel
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineDied

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
