"""What can go wrong, by whose hand: the user's input, an engine, or nobody's (an honest refusal)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpecdecError(Exception):
    """The base of every error that this package raises on purpose. Its message is for the user, as it is."""


class ConfigurationError(SpecdecError):
    """The user's input is wrong: the message names the place (option, file, line, key) and the remedy."""


class ModelError(ConfigurationError):
    """A model reference is wrong, or its model cannot be made here: the message names the piece and the remedy."""


class EngineError(SpecdecError):
    """An engine did not load, died, hung or refused a call: an infrastructure fault, never a verdict on its tokens."""


class EngineDied(EngineError):
    """The engine's process is gone; the next test that asks for this engine gets a new one."""


class Unsupported(EngineError):
    """The engine itself refuses the request, in words: the test is skipped with this reason."""


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.5) -> str:
    """The question after the nearest of the known words; `otherwise` where none is as near as `cutoff`, of 1."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else otherwise


def unknown_key(where: str, key: str, known: Iterable[str]) -> str:
    """The mistake in words, with the nearest of the keys that are known there, or all of them."""
    known = list(known)
    return f"{where}: unknown key {key!r}; {did_you_mean(key, known, 'known keys: ' + ', '.join(known), 0.6)}"
