"""Two figures of energy side by side, only where they were obtained in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def energy_ratio(mine: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Joules a token of `mine` over `base` (below 1 saves energy), or None with the reason."""
    reason = incomparable(mine, base)
    return (None, reason) if reason else (mine["joules_per_token"] / base["joules_per_token"], None)


def incomparable(mine: Mapping[str, Any], base: Mapping[str, Any]) -> str | None:
    """Why these two must not be compared, or None. Each is a record's `energy`."""
    for side, energy in (("this engine", mine), ("the base line", base)):
        if energy["joules_per_token"] is None:
            return f"{side} has no energy: {energy['reason']}"
    if mine["method"] != base["method"]:
        return f"methods are not mixed: {mine['method']} here, {base['method']} in the base line"
    if len(mine["scope"]) != len(base["scope"]):
        return f"{len(mine['scope'])} device(s) here, {len(base['scope'])} in the base line"
    return None
