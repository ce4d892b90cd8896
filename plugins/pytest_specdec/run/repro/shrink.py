"""Make a request smaller while it still shows the fault: the output first, since that makes every later look cheaper.

The prompt is cut by bisection as in delta debugging (Zeller and Hildebrandt, *Simplifying and Isolating
Failure-Inducing Input*, 2002): leave out halves, then quarters, down to single tokens. Each step is checked by looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_specdec.run.repro.look import Fault, shorten
from pytest_specdec.workloads.workload import Request

Shows = Callable[[Request], "Fault | None"]
InTime = Callable[[], bool]


def shrunk(fault: Fault, shows: Shows, in_time: InTime) -> Fault:
    """The smallest fault found; no look is begun once `in_time` says no."""
    size = None
    while size != _size(fault) and in_time():
        size = _size(fault)
        fault = shorter_output(fault, shows, in_time)
        fault = shorter_prompt(fault, shows, in_time)
    return fault


def _size(fault: Fault) -> tuple[int, int]:
    return len(fault.request.prompt_ids), fault.request.max_tokens


def shorter_output(fault: Fault, shows: Shows, in_time: InTime) -> Fault:
    """End soon after the wrong token. Near an end a step drafts less, so the end moves away until the fault shows."""
    request = fault.request
    for tokens in _ends(fault.position + 1, request.max_tokens):
        if not in_time():
            break
        found = shows(shorten(request, request.prompt_ids, tokens))
        if found is not None:
            return found
    return fault


def _ends(first: int, limit: int) -> Iterator[int]:
    step, tokens = 1, first
    while tokens < limit:
        yield tokens
        tokens, step = tokens + step, 2 * step


def shorter_prompt(fault: Fault, shows: Shows, in_time: InTime) -> Fault:
    """Leave out pieces of the prompt, large ones first; at least one token stays."""
    size = len(fault.request.prompt_ids) // 2
    while size:
        at = 0
        while at < len(fault.request.prompt_ids) and in_time():
            smaller = _without(fault.request, at, size)
            found = shows(smaller) if smaller.prompt_ids else None
            fault, at = (found, at) if found is not None else (fault, at + size)
        size //= 2
    return fault


def _without(request: Request, at: int, size: int) -> Request:
    ids = request.prompt_ids
    return shorten(request, ids[:at] + ids[at + size :], request.max_tokens)
