"""Engines behind an HTTP endpoint that speaks OpenAI's protocol."""

from pytest_specdec.engines.server.engine import ServedEngine

__all__ = ["ServedEngine"]
