"""Faults of the cache: a token is computed from another prefix than the one that was emitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_specdec.engines.fake import Decoder, Progress, fault
from pytest_specdec.engines.fake.models import LanguageModel
from pytest_specdec.engines.spec import EngineSpec

WINDOW = 256


@fault("rollback one too many")
class RollbackTooMany(Decoder):
    """After a rejection one token too many is rolled back: the next is computed from a prefix that lacks its last."""

    def read(self, progress: Progress, burst: Sequence[int]) -> tuple[int, ...]:
        """Short by one, in the first place after a rejection."""
        prefix = super().read(progress, burst)
        return prefix[:-1] if progress.rejected is not None and not burst else prefix


@fault("rollback one too few")
class RollbackTooFew(Decoder):
    """After a rejection the rejected draft stays in the cache, and the next token is computed with it."""

    def read(self, progress: Progress, burst: Sequence[int]) -> tuple[int, ...]:
        """With the rejected draft before the last token, in the first place after a rejection."""
        prefix = super().read(progress, burst)
        if progress.rejected is None or burst:
            return prefix
        return (*prefix[:-1], progress.rejected, prefix[-1])


@fault("stale prefix cache")
class StalePrefixCache(Decoder):
    """A prompt that was decoded before is read from a cache that lacks its last token."""

    def read(self, progress: Progress, burst: Sequence[int]) -> tuple[int, ...]:
        """Short by one, in the first place of a warm answer."""
        prefix = super().read(progress, burst)
        return prefix[:-1] if progress.warm and progress.position(burst) == 0 else prefix


@fault("rejected drafts read in the next turn")
class RejectedInNextTurn(Decoder):
    """Where an answer had a draft rejected, a prompt that goes on from it reads that draft from the prefix cache."""

    def __init__(self, spec: EngineSpec, options: Mapping[str, Any], model: LanguageModel) -> None:
        super().__init__(spec, options, model)
        self._left: dict[tuple[int, ...], int] = {}

    def burst(self, progress: Progress, start: float) -> None:
        """Leave the draft in the place of the token that was taken."""
        super().burst(progress, start)
        if progress.rejected is not None:
            self._left[tuple(progress.context[:-1])] = progress.rejected

    def read(self, progress: Progress, burst: Sequence[int]) -> tuple[int, ...]:
        """As the blocks of the prompt are."""
        prefix = super().read(progress, burst)
        cached = (self._left.get(prefix[:at], prefix[at]) for at in range(progress.cached))
        return (*cached, *prefix[progress.cached :])


@fault("wrong past position 256")
class WrongPastWindow(Decoder):
    """The cache holds the last 256 tokens only."""

    def read(self, progress: Progress, burst: Sequence[int]) -> tuple[int, ...]:
        """What lies further back is lost."""
        return super().read(progress, burst)[-WINDOW:]
