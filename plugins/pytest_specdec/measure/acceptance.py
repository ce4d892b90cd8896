"""How much of what was drafted the target accepted, from the engine's own counters.

Definitions as in vLLM's metrics (vllm/v1/spec_decode/metrics.py): acceptance rate = accepted / drafted tokens; mean
accepted length = 1 + accepted tokens / drafts, the bonus token included.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pytest_specdec.generation import Speculation


@dataclass(frozen=True)
class Acceptance:
    """Rates of one measurement. `per_position`: share of drafts whose token at this position was accepted, marginal."""

    rate: float
    mean_accepted_length: float
    per_position: tuple[float, ...]


def acceptance(counted: Speculation | None) -> Acceptance | None:
    """None where nothing was drafted. Raises ValueError if the counters contradict each other."""
    if counted is None or counted.drafts == 0 or counted.draft_tokens == 0:
        return None
    _refuse_contradictions(counted)
    return Acceptance(
        rate=counted.accepted_tokens / counted.draft_tokens,
        mean_accepted_length=1 + counted.accepted_tokens / counted.drafts,
        per_position=tuple(accepted / counted.drafts for accepted in counted.accepted_per_position),
    )


def _refuse_contradictions(counted: Speculation) -> None:
    positions = counted.accepted_per_position
    if counted.accepted_tokens > counted.draft_tokens:
        raise ValueError(f"more tokens accepted ({counted.accepted_tokens}) than drafted ({counted.draft_tokens})")
    if positions and sum(positions) != counted.accepted_tokens:
        raise ValueError(
            f"accepted per position {positions} does not add up to {counted.accepted_tokens} accepted tokens"
        )
    if any(later > earlier for earlier, later in pairwise(positions)):
        raise ValueError(f"a later draft position was accepted more often than an earlier one: {positions}")
