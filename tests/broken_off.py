"""Requests of a served engine that are broken off in flight, each after the first piece of its answer."""

from __future__ import annotations

from typing import Any

from pytest_specdec.engines.server.client import Exchange
from pytest_specdec.engines.server.engine import ServedEngine
from pytest_specdec.generation import Generation
from pytest_specdec.workloads.workload import Workload


class OnePiece(list[Any]):
    """No second piece is waited for."""

    def append(self, piece: Any) -> None:
        super().append(piece)
        raise OSError("broken off")


def broken_off(path: str = "") -> Exchange:
    """A request whose connection is closed after the first piece."""
    return Exchange(path, pieces=OnePiece())


def break_off(engine: ServedEngine, workload: Workload) -> list[Generation]:
    """Send these requests and break each off."""
    engine.prepare(workload)
    for exchange in engine._exchanges:
        exchange.pieces = OnePiece()
    engine.run()
    return [answer.generation() for answer in engine._answers()]
