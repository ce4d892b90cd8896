"""Faults of the cache: a token is computed from another prefix than the one that was emitted."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specdec.engines.fake import Decoder, Progress, fault

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


@fault("wrong past position 256")
class WrongPastWindow(Decoder):
    """The cache holds the last 256 tokens only."""

    def read(self, progress: Progress, burst: Sequence[int]) -> tuple[int, ...]:
        """What lies further back is lost."""
        return super().read(progress, burst)[-WINDOW:]
