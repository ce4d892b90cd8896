"""Faults of an answer's end: it comes too late, too early, or by another name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pytest_specdec.engines.fake import Decoder, Progress, fault
from pytest_specdec.engines.fake.decoding import text_of
from pytest_specdec.engines.fake.models import LanguageModel, two_highest
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.generation import Generation

from .near_ties import is_near_tie


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


CUT_OFF = "cut off"


class CutOff(Decoder):
    """Each answer takes the other side of its first near-tie, and is cut off after it."""

    told: ClassVar[str | None]

    def choice(self, progress: Progress, burst: Sequence[int]) -> int:
        """The runner-up at the first near-tie."""
        first, second = two_highest(logits := self.reshape(progress, burst))
        strikes = not progress.struck and is_near_tie(logits)
        progress.struck = progress.struck or strikes
        return second if strikes else first

    def cut(self, progress: Progress, tokens: list[int]) -> tuple[list[int], str | None]:
        """The burst in which the near-tie lies is the last."""
        return (tokens, CUT_OFF) if progress.struck else super().cut(progress, tokens)

    def answer(self, progress: Progress, prompt: tuple[int, ...]) -> Generation:
        """Under the reason that this mutant tells."""
        progress.reason = self.told if progress.reason == CUT_OFF else progress.reason
        return super().answer(progress, prompt)


@fault("cut off, without a reason")
class CutOffWithoutReason(CutOff):
    """After a tie an answer is cut off, without a finish reason."""

    told = None


for told in ("abort", "error", "length", "stop"):
    doc = f'After a tie an answer is cut off, and says "{told}".'
    fault(f"cut off, says {told}")(type(f"CutOffBy{told.title()}", (CutOff,), {"told": told, "__doc__": doc}))


@fault("EOS left out")
class EosLeftOut(Decoder):
    """The EOS that ended an answer is not among its ids, and the engine does not say so."""

    def __init__(self, spec: EngineSpec, options: Mapping[str, Any], model: LanguageModel) -> None:
        super().__init__(spec, options, model)
        self.keeps_ends = False


@fault("text alone wrong")
class TextAloneWrong(Decoder):
    """The ids are right, and one character of the text is not."""

    def answer(self, progress: Progress, prompt: tuple[int, ...]) -> Generation:
        """With a "?" first."""
        whole = super().answer(progress, prompt)
        return replace(whole, text=f"?{(whole.text or '')[1:]}")


@fault("stop text in the text")
class StopTextInText(Decoder):
    """The ids end where the stop text does, and the text has it in it."""

    def answer(self, progress: Progress, prompt: tuple[int, ...]) -> Generation:
        """All that the ids read as."""
        return replace(super().answer(progress, prompt), text=text_of(progress.output))
