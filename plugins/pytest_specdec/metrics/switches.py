"""What is switched on in one arm only: an engine may choose anew when it speculates, and the speed-up contains that.

vLLM, for one, schedules asynchronously unless it drafts by a method that it does not trust with it. The reader
must know, to mend it or to accept it.
"""

from __future__ import annotations

from typing import Any

from pytest_specdec.engines.engine import Description

SWITCHES = ("async_scheduling", "cuda_graphs", "prefix_caching")


def warn_of_switches(ours: Description, targets: Description | None) -> list[str]:
    """A warning for each switch that both engines told and that stands differently in the two."""
    theirs = targets.details if targets is not None else {}
    both = [name for name in SWITCHES if name in ours.details and name in theirs]
    return [_warning(name, ours.details[name], theirs[name]) for name in both if ours.details[name] != theirs[name]]


def _warning(name: str, ours: Any, theirs: Any) -> str:
    return (
        f"{name} is {_word(ours)} here and {_word(theirs)} for target-only, and the speed-up contains that difference; "
        "set it for both in the engine's options to compare like with like"
    )


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
