"""Figures of one measurement that cannot all be true: the engine's fault, told as an error and never smoothed over."""

from __future__ import annotations

from pytest_specdec.errors import EngineError


class Contradiction(EngineError, ValueError):
    """What an engine counted or timed contradicts itself; the message gives both figures."""
