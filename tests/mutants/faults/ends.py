"""Faults of an answer's end: it comes too late, too early, or by another name."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specdec.engines.fake import Decoder, Progress, fault
from pytest_specdec.generation import Generation


@fault("EOS passed over")
class EosPassedOver(Decoder):
    """An EOS inside a burst is not seen: only the burst's last token is looked at."""

    def cut(self, progress: Progress, tokens: list[int]) -> tuple[list[int], str | None]:
        """All of the burst, and an end only if it is the last."""
        return tokens, "stop" if self.is_end(progress, tokens) else None


@fault("max_tokens overshot")
class Overshoots(Decoder):
    """The last burst is handed out whole, past max_tokens."""

    def room(self, progress: Progress) -> int:
        """Room for a whole burst as long as there is any."""
        room = super().room(progress)
        return max(room, self.gamma + 1) if room > 0 else room


@fault("stop text's tail kept")
class StopTailKept(Decoder):
    """The text ends before the stop text, but the ids go on to the end of the burst."""

    def cut(self, progress: Progress, tokens: list[int]) -> tuple[list[int], str | None]:
        """The whole burst in which the end lies."""
        return tokens, super().cut(progress, tokens)[1]


@fault("min_tokens released late")
class ReleasedLate(Decoder):
    """EOS stays forbidden for one token more than min_tokens."""

    def may_end(self, progress: Progress, burst: Sequence[int]) -> bool:
        """One late."""
        return progress.position(burst) > progress.request.min_tokens


@fault("min_tokens ignored")
class MinTokensIgnored(Decoder):
    """An answer ends where the target first wants to, short of min_tokens."""

    def may_end(self, progress: Progress, burst: Sequence[int]) -> bool:
        """Always."""
        return True

    def is_end(self, progress: Progress, tokens: Sequence[int]) -> bool:
        """By id alone."""
        return tokens[-1] in self.stop_tokens(progress.request)


@fault("wrong finish reason")
class WrongFinishReason(Decoder):
    """An answer that reached max_tokens says that it was stopped."""

    def answer(self, progress: Progress, prompt: tuple[int, ...]) -> Generation:
        """The same tokens under another reason."""
        progress.reason = "stop"
        return super().answer(progress, prompt)


@fault("empty output")
class EmptyOutput(Decoder):
    """Nothing is handed out."""

    def answer(self, progress: Progress, prompt: tuple[int, ...]) -> Generation:
        """Without tokens and their chunks."""
        return Generation(prompt, (), progress.reason)
