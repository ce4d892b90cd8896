"""The hook by which another plugin adds an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_specdec.engines.engine import Engine
    from pytest_specdec.engines.spec import EngineSpec
    from pytest_specdec.progress import Doing
    from pytest_specdec.settings import Settings


@pytest.hookspec(firstresult=True)
def pytest_specdec_start_engine(spec: EngineSpec, settings: Settings, doing: Doing) -> Engine | None:
    """Load the engine that `spec` describes and return it awake, or None if `spec.backend` is not yours.

    That it loads is said already; `with doing("fetching its weights"):` says more, and again while it lasts.

    Raise EngineError if it does not load, and Unsupported if the engine refuses the configuration in words. A test
    reaches it through the fixtures `spec_engine` and `ar_engine` with `--specdec-engine NAME`.
    """
