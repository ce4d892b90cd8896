"""How much of a KV cache was read: shares of entries by the pair's readers, and what is said where they are few."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_specdec.generation import Generation
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import CoveragePart, ReadSharesPart
from pytest_specdec.verdict.detection import NO_MEMORY, NONE_READ, coverage_part

DRAFTER = "constructed:tiny:draft?memory=24"  # one layer, which reads at the distances 1, 8, 16 and 24


def answers(*lengths: Sequence[int]) -> list[Generation]:
    """Answers of these prompts' and outputs' lengths."""
    return [Generation((5,) * prompt, (6,) * output, "length") for prompt, output in lengths]


def test_shares_are_of_entries_that_later_steps_read() -> None:
    """30 + 10 tokens: of the prompt's entries 6 to 29 are read, three twice; of nine, all but the last once."""
    part = coverage_part(DRAFTER, answers((30, 10)))
    assert part.prompt == Figure(ReadSharesPart(once_min=0.8, once_median=0.8, twice_min=0.1, twice_median=0.1))
    assert part.output == Figure(ReadSharesPart(once_min=8 / 9, once_median=8 / 9, twice_min=1 / 9, twice_median=1 / 9))
    assert part.low is None


def test_long_prompts_are_read_in_small_part_and_it_is_said() -> None:
    """Entries further back than the reach decide no token any more."""
    part = coverage_part(DRAFTER, answers((100, 40), (200, 40), (25, 0)))
    assert part.low == (
        "only 18% of the KV entries of prompts were read after they were written: up to 24 tokens are read back, "
        "after prompts of 100 to 200 tokens and in answers of 40"
    )


def test_one_token_reads_no_entry_of_an_answer() -> None:
    """There is none."""
    assert coverage_part(DRAFTER, answers((30, 1))).output == Figure(None, NONE_READ)


def test_a_model_without_memory_has_no_coverage() -> None:
    """Nor has one that is not constructed."""
    for target in ("constructed:tiny", "Qwen/Qwen3-8B", "smollm2"):
        assert coverage_part(target, answers((30, 10))) == missing(CoveragePart, NO_MEMORY)
