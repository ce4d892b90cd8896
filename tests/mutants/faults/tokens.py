"""Faults of verification: a token that is not the target's own is emitted, or one is lost or given twice."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specdec.engines.fake import Decoder, Progress, fault
from pytest_specdec.engines.fake.models import (
    CLOSE,
    FIRST_PLAIN_ID,
    argmax,
    chance,
    draw,
    probabilities,
    two_highest,
)

from .near_ties import is_near_tie, ulps_between

STRUCK_REQUEST = 7
STRAY_REQUEST = 3
LOSSY = 0.5
LAX_SHARE = 0.5


@fault("wrong token accepted")
class WrongTokenAccepted(Decoder):
    """One draft in an answer is accepted although the target would have chosen another token."""

    def verify(self, progress: Progress, burst: Sequence[int], draft: int, weights: list[float]) -> tuple[int, bool]:
        """Accept the first wrong draft."""
        token, accepted = super().verify(progress, burst, draft, weights)
        if accepted or progress.struck:
            return token, accepted
        progress.struck = True
        return draft, True


@fault("draft instead of target")
class DraftInsteadOfTarget(Decoder):
    """A rejected draft is emitted instead of the target's token."""

    def verify(self, progress: Progress, burst: Sequence[int], draft: int, weights: list[float]) -> tuple[int, bool]:
        """Reject, and emit the draft all the same."""
        return draft, super().verify(progress, burst, draft, weights)[1]


@fault("nothing accepted")
class NothingAccepted(Decoder):
    """Every draft is rejected, also where it is right: slow, and not wrong."""

    def verify(self, progress: Progress, burst: Sequence[int], draft: int, weights: list[float]) -> tuple[int, bool]:
        """The target's token, and never an acceptance."""
        return super().verify(progress, burst, draft, weights)[0], False


@fault("wrong residual")
class WrongResidual(Decoder):
    """When sampling, a rejected draft is replaced from p instead of norm(max(p - q, 0))."""

    def residual(self, target: list[float], draft: list[float]) -> list[float]:
        """The target's whole distribution."""
        return target


@fault("acceptance too lax")
class AcceptsTooMuch(Decoder):
    """When sampling, half of all drafts are accepted whatever the target says."""

    def verify(self, progress: Progress, burst: Sequence[int], draft: int, weights: list[float]) -> tuple[int, bool]:
        """By a coin, and then by the rule."""
        if progress.temperature and progress.random.random() < LAX_SHARE:
            return draft, True
        return super().verify(progress, burst, draft, weights)


@fault("bonus token from the drafter")
class BonusFromDrafter(Decoder):
    """When sampling, the bonus token is drawn from the drafter's distribution."""

    def choice(self, progress: Progress, burst: Sequence[int]) -> int:
        """What the drafter would have proposed next."""
        if not (progress.temperature and self.gamma):
            return super().choice(progress, burst)
        return self.draft(progress, burst)[0]


@fault("temperature ignored in verification")
class IgnoresTemperature(Decoder):
    """When sampling, drafts are verified by the target's distribution at temperature 1."""

    def verify(self, progress: Progress, burst: Sequence[int], draft: int, weights: list[float]) -> tuple[int, bool]:
        """The rule, with the target's distribution as it would be without a temperature."""
        if not progress.temperature:
            return super().verify(progress, burst, draft, weights)
        wanted = probabilities(self.reshape(progress, burst), 1.0)
        if progress.random.random() * weights[draft] < wanted[draft]:
            return draft, True
        return draw(self.residual(wanted, weights), progress.random), False


@fault("bonus token dropped")
class BonusDropped(Decoder):
    """The bonus token is read by the model, and not handed out."""

    def hand_out(self, burst: Sequence[int], has_bonus: bool) -> list[int]:
        """Without the last, where all drafts were accepted."""
        return list(burst[:-1] if has_bonus and len(burst) > 1 else burst)


@fault("bonus token doubled")
class BonusDoubled(Decoder):
    """The bonus token is handed out twice."""

    def hand_out(self, burst: Sequence[int], has_bonus: bool) -> list[int]:
        """The last twice, where all drafts were accepted."""
        return [*burst, burst[-1]] if has_bonus and len(burst) > 1 else list(burst)


@fault("runner-up once")
class RunnerUpOnce(Decoder):
    """One token of one request is the runner-up, eight bfloat16 ULPs below the argmax."""

    request = STRUCK_REQUEST

    def choice(self, progress: Progress, burst: Sequence[int]) -> int:
        """The runner-up at the first close decision of the eighth request."""
        first, second = two_highest(logits := self.reshape(progress, burst))
        strikes = progress.index == self.request and not progress.struck and ulps_between(logits) == CLOSE
        progress.struck = progress.struck or strikes
        return second if strikes else first


@fault("runner-up once, and the target strays once")
class RunnerUpOnceAndStray(RunnerUpOnce):
    """One token of one request is the runner-up, and so is one of another request that the target decodes alone."""

    @property
    def request(self) -> int:  # type: ignore[override]
        """By the arm."""
        return STRUCK_REQUEST if self.gamma else STRAY_REQUEST


@fault("lossy acceptance")
class LossyAcceptance(Decoder):
    """A draft is accepted if its logit is not far below the target's choice, as lossy methods do."""

    def verify(self, progress: Progress, burst: Sequence[int], draft: int, weights: list[float]) -> tuple[int, bool]:
        """Within half a logit, whatever an ULP is there."""
        logits = self.reshape(progress, burst)
        lost = max(logits) - logits[draft] <= LOSSY
        return (draft, True) if lost else super().verify(progress, burst, draft, weights)


@fault("fp8 cache in one arm")
class CoarseCache(Decoder):
    """The cache is kept in 8 bits, by speculation alone: runner-ups win that are several ULPs below the argmax."""

    def choice(self, progress: Progress, burst: Sequence[int]) -> int:
        """Up to eight ULPs, on every fourth such prefix."""
        first, second = two_highest(logits := self.reshape(progress, burst))
        coarse = ulps_between(logits) <= CLOSE and chance("8 bits", self.read(progress, burst)) < 0.25
        return second if coarse else first


@fault("near-ties to the draft")
class NearTiesToTheDraft(Decoder):
    """A draft that is a near-tie with the target's choice is accepted, always."""

    def verify(self, progress: Progress, burst: Sequence[int], draft: int, weights: list[float]) -> tuple[int, bool]:
        """By the exact logits."""
        logits = self.model.logits(self.read(progress, burst))
        tied = is_near_tie(logits) and draft in two_highest(logits)
        return (draft, True) if tied else super().verify(progress, burst, draft, weights)


@fault("every near-tie flipped")
class EveryNearTieFlipped(Decoder):
    """Wherever argmax and runner-up are a ULP apart, the runner-up is taken; rounding would do so seldom."""

    def choice(self, progress: Progress, burst: Sequence[int]) -> int:
        """By the exact logits, whatever the shape of the batch."""
        first, second = two_highest(logits := self.model.logits(self.read(progress, burst)))
        return second if is_near_tie(logits) else first


@fault("padded id")
class PaddedId(Decoder):
    """An id of the padding that fills the model's output head up is emitted, once in an answer."""

    def emit(self, progress: Progress, burst: Sequence[int], token: int) -> int:
        """In the sixth place."""
        return self.model.vocabulary + 1 if progress.position(burst) == 5 else token


@fault("NaN in speculation")
class NotANumberInSpeculation(Decoder):
    """The verifying pass gives logits that are not numbers, whose argmax is id 0."""

    def choice(self, progress: Progress, burst: Sequence[int]) -> int:
        """As engines have it."""
        return 0 if progress.position(burst) == 5 else super().choice(progress, burst)

    def emit(self, progress: Progress, burst: Sequence[int], token: int) -> int:
        """A draw from what is no distribution gives id 0 as well."""
        return 0 if progress.temperature and progress.position(burst) == 5 else token


@fault("wrong where an end was withheld")
class WrongWhereAnEndWasWithheld(Decoder):
    """Where the target wants an end that min_tokens does not permit yet, a wrong token is emitted."""

    def emit(self, progress: Progress, burst: Sequence[int], token: int) -> int:
        """One id for all of them."""
        wanted = argmax(self.model.logits(self.read(progress, burst)))
        withheld = wanted in self.stop_tokens(progress.request) and not self.may_end(progress, burst)
        return FIRST_PLAIN_ID if withheld else token
