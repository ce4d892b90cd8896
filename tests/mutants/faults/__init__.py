"""Faulty decoders, registered by name with the fake engine: each is the sound decoder with one step broken.

The docstring of each says what is broken. Importing this folder registers them; it is named `faults` in the projects of
tests/plugin, where it is found by its path.
"""

from . import cache, drafting, ends, life, requests, shaping, tokens

__all__ = ["cache", "drafting", "ends", "life", "requests", "shaping", "tokens"]
