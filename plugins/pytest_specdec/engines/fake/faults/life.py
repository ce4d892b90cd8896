"""Faults of the engine's life: it does not load, refuses, dies, or never drafts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_specdec.engines.fake.decoding import Decoder, Progress
from pytest_specdec.engines.fake.faults.registry import fault
from pytest_specdec.engines.fake.models import LanguageModel
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineDied, EngineError, Unsupported
from pytest_specdec.workloads.workload import Workload


@fault("does not load")
class DoesNotLoad(Decoder):
    """The engine does not load."""

    def __init__(self, spec: EngineSpec, options: Mapping[str, Any], model: LanguageModel) -> None:
        raise EngineError("the fake engine was told not to load")


@fault("unsupported")
class Refuses(Decoder):
    """The engine refuses the request, in words."""

    def take(self, workload: Workload) -> None:
        """Refuse."""
        raise Unsupported("the fake engine does not support this request")


@fault("dies")
class Dies(Decoder):
    """The engine dies in the middle of a run."""

    def room(self, progress: Progress) -> int:
        """Die once something was handed out."""
        if progress.output:
            raise EngineDied("the fake engine died while decoding")
        return super().room(progress)


@fault("dead drafter")
class DeadDrafter(Decoder):
    """Nothing is drafted: the target decodes alone."""

    def __init__(self, spec: EngineSpec, options: Mapping[str, Any], model: LanguageModel) -> None:
        super().__init__(spec, options, model)
        self.gamma = 0
