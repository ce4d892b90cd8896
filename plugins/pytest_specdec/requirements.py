"""What a test needs of the machine, by its marks and its engines, and why it is not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pytest_specdec.engines.spec import EngineSpec
from pytest_specdec.errors import ConfigurationError
from pytest_specdec.hardware import INSTALL, missing_engine, missing_gpus, unwanted_gpus


def missing(marks: Iterable[tuple[str, tuple[Any, ...]]], engines: Iterable[EngineSpec]) -> Iterator[tuple[str, str]]:
    """(need, reason) for each need that is not met; the reason names the remedy."""
    for need, reason in (*_by_marks(marks), *_by_engines(engines)):
        if reason is not None:
            yield need, reason


def _by_marks(marks: Iterable[tuple[str, tuple[Any, ...]]]) -> Iterator[tuple[str, str | None]]:
    for name, arguments in marks:
        if name == "gpu":
            yield name, missing_gpus(1)
        elif name == "multi_gpu":
            yield name, missing_gpus(int(arguments[0]) if arguments else 2)
        elif name == "cpu":
            yield name, unwanted_gpus()
        elif name == "engine":
            engine = named_engine(arguments)
            yield engine, missing_engine(engine, None)


def named_engine(arguments: tuple[Any, ...]) -> str:
    """The engine that `@pytest.mark.engine(name)` names. Raises ConfigurationError for none or an unknown one."""
    known = (*INSTALL, "fake")
    if len(arguments) != 1 or arguments[0] not in known:
        named = ", ".join(map(repr, arguments))
        raise ConfigurationError(f"@pytest.mark.engine({named}) must name one of: {', '.join(known)}")
    return str(arguments[0])


def _by_engines(engines: Iterable[EngineSpec]) -> Iterator[tuple[str, str | None]]:
    for spec in engines:
        if spec.gateway is None:
            yield spec.backend, missing_engine(spec.backend, spec.python)
