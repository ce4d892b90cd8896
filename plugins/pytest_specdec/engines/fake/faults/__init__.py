"""Faulty decoders by name: each is the sound decoder with one step broken, and its docstring says what is broken."""

from pytest_specdec.engines.fake.faults import cache, ends, life, requests, shaping, tokens
from pytest_specdec.engines.fake.faults.registry import FAULTS

__all__ = ["FAULTS", "cache", "ends", "life", "requests", "shaping", "tokens"]
