"""Faults of the engine's life: it does not load, or refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_specdec.engines.fake import Decoder, fault
from pytest_specdec.engines.fake.models import LanguageModel
from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import EngineError, Unsupported
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
