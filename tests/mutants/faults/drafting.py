"""Faults of drafting: the output is right, and speculation has ended, has shrunk, or is where it must not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_specdec.engines.fake import Decoder, Progress, fault
from pytest_specdec.engines.fake.models import FIRST_PLAIN_ID, LanguageModel
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.workloads.workload import Workload


@fault("baseline drafts")
class BaselineDrafts(Decoder):
    """The target alone speculates as well."""

    def __init__(self, spec: EngineSpec, options: Mapping[str, Any], model: LanguageModel) -> None:
        super().__init__(spec, options, model)
        self.gamma = 3


@fault("one draft whatever γ")
class OneDraft(Decoder):
    """One token is drafted in each step, whatever γ says."""

    def __init__(self, spec: EngineSpec, options: Mapping[str, Any], model: LanguageModel) -> None:
        super().__init__(spec, options, model)
        self.gamma = min(1, self.gamma)


class Silent(Decoder):
    """The base of drafters that fall silent."""

    passes = 0

    def take(self, workload: Workload) -> None:
        """Count passes over a workload, from 1."""
        self.passes += 1

    def speaks(self, progress: Progress) -> bool:
        """Whether the next step drafts."""
        return True

    def burst(self, progress: Progress, start: float) -> None:
        """By the target alone where the drafter is silent."""
        gamma, self.gamma = self.gamma, self.gamma if self.speaks(progress) else 0
        super().burst(progress, start)
        self.gamma = gamma


@fault("drafts in one round only")
class OneRound(Silent):
    """Nothing is drafted after the first pass."""

    def speaks(self, progress: Progress) -> bool:
        """In the first."""
        return self.passes == 1


@fault("drafts for one request only")
class OneRequest(Silent):
    """Nothing is drafted but for the first request."""

    def speaks(self, progress: Progress) -> bool:
        """For that."""
        return progress.index == 0


@fault("drafts up to token 16")
class UpToToken(Silent):
    """Drafting stops midway in each answer."""

    def speaks(self, progress: Progress) -> bool:
        """At the beginning."""
        return len(progress.output) < 16


@fault("nothing accepted after a wake")
class StaleAfterWake(Decoder):
    """Once the engine was parked and woken, no draft is accepted any more."""

    def verify(self, progress: Progress, burst: Sequence[int], draft: int, weights: list[float]) -> tuple[int, bool]:
        """The target's own token, and never an accepted draft."""
        token, accepted = super().verify(progress, burst, draft, weights)
        return token, accepted and not self.woken


@fault("wrong in the first pass")
class WrongWhenCold(Silent):
    """The first pass after loading is wrong, and every later one is right."""

    wrong_pass = 1

    def emit(self, progress: Progress, burst: Sequence[int], token: int) -> int:
        """One token of each answer."""
        return FIRST_PLAIN_ID if self.passes == self.wrong_pass and progress.position(burst) == 5 else token


@fault("wrong in the third pass")
class WrongLater(WrongWhenCold):
    """The third pass is wrong, and every other one is right."""

    wrong_pass = 3
