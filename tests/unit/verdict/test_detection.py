"""What a green verdict would have seen, from how many tokens on, its page, and how much of a KV cache was read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.evidence import test_detection as evidence
from tests.evidence.test_detection import exact_interval

from pytest_specdec.generation import Generation
from pytest_specdec.record import Figure, missing
from pytest_specdec.record.parts import CoveragePart, DetectionPart, ReadSharesPart
from pytest_specdec.verdict.coverage import (
    MEMORY,
    NO_MEMORY,
    NONE_READ,
    ONCE,
    PLAIN,
    SOUND,
    TEXT,
    coverage_part,
    kind_of,
    reads_whole_codes,
    would_have_seen,
)

STALE = "a stale entry of one layer"
FP8 = "keys in fp8 (e4m3) from a token on"
KINDS = {
    "constructed:tiny?memory=24": MEMORY,
    "constructed:llama-8b?memory=48": ONCE,
    "constructed:tiny?memory=24&readers=2": ONCE,
    "constructed:tiny?memory=24&readers=1": None,
    "constructed:tiny?memory=24&codes=3": None,
    "constructed:tiny?memory=24&bits=1": None,
    "constructed:tiny": PLAIN,
    "constructed:tiny?margin=0.02": None,
    "constructed:tiny:draft?memory=24": None,
    "smollm2": TEXT,
    "smollm2?layers=4": None,
    "Qwen/Qwen3-8B": None,
}


def seen(kind: str, tokens: int) -> DetectionPart:
    """What is said of answers of so many tokens."""
    part = would_have_seen(kind, tokens)
    assert part is not None
    return part


@pytest.mark.parametrize(("target", "kind"), KINDS.items(), ids=KINDS)
def test_a_model_is_of_the_measured_kind_that_reads_no_more_than_it_does(target: str, kind: str | None) -> None:
    """Others are of none: nothing is claimed of them."""
    assert kind_of(target) == kind


@pytest.mark.parametrize(("tokens", "measured"), [(16, 16), (63, 16), (64, 64), (255, 64), (4000, 256)])
def test_the_statement_is_of_the_most_tokens_that_are_no_more_than_an_answers(tokens: int, measured: int) -> None:
    """Longer answers see at least as much."""
    assert seen(MEMORY, tokens).tokens == measured


def test_fewer_tokens_than_were_measured_state_nothing() -> None:
    """Rather than what more would have seen."""
    assert would_have_seen(MEMORY, 15) is None


def test_a_pair_with_memory_states_its_table() -> None:
    """The lower bound of each share in words, what was never seen too, and the intervals as they were measured."""
    told = {row["tokens"]: row for row in table()[f"transformers {MEMORY}"]["faults"][STALE]}[64]
    part = seen(MEMORY, 64)
    assert SOUND not in part.shares
    assert part.shares[STALE] == tuple(told["interval"]) == pytest.approx(exact_interval(told["red"], told["of"]))
    assert part.statement.startswith("of faults planted into constructed:tiny?memory=24, 64 tokens an answer, ")
    assert f"{STALE} ≥ {told['interval'][0]:.2f}" in part.statement
    assert FP8 in part.statement.partition(". Never on: ")[2]


def test_a_stale_entry_is_seen_with_memory_and_not_without() -> None:
    """By the table itself: the least share of a pair with memory, and the most of the plain one."""
    assert seen(MEMORY, 64).shares[STALE][0] > 0.9
    assert seen(PLAIN, 64).shares[STALE] == pytest.approx(exact_interval(0, 24))


def test_the_interval_is_exact() -> None:
    """Clopper and Pearson: 1 − (α/2)^(1/n) above none of n, and its mirror image."""
    low, high = exact_interval(0, 100)
    assert (low, high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 100)))
    assert exact_interval(100, 100) == pytest.approx((1 - high, 1.0))


def table() -> Any:
    """What the package has."""
    return json.loads(evidence.DATA.read_text("utf-8"))


def test_each_interval_is_that_of_its_counts() -> None:
    """A count or an interval that was changed by hand does not go with the other."""
    rows = [row for each in table().values() for counts in each["faults"].values() for row in counts]
    told = [row["interval"] for row in rows]
    assert told == [pytest.approx(list(exact_interval(row["red"], row["of"]))) for row in rows]


def test_the_page_shows_all_that_the_package_has() -> None:
    """Both are written by one run; a page that was changed by hand is stale, and no fault has a name of its own."""
    faults = {fault for told in table().values() for fault in told["faults"]}
    assert (table().keys() - evidence.TABLES.keys(), faults - evidence.KINDS.keys()) == (set(), set())
    assert evidence.PAGE.read_text("utf-8") == evidence.page(table())


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


def test_prompts_shorter_than_what_is_read_back_are_told() -> None:
    """Their right output is not known."""
    assert reads_whole_codes(DRAFTER, answers((25, 40)))
    assert not reads_whole_codes(DRAFTER, answers((25, 40), (24, 40)))
    assert reads_whole_codes("constructed:tiny", answers((1, 40)))
    part = coverage_part(DRAFTER, answers((25, 40), (24, 40)))
    assert part.low is not None
    assert "prompts of fewer than 25 tokens: what the pair must emit, and which faults would be seen" in part.low


def test_one_token_reads_no_entry_of_an_answer() -> None:
    """There is none."""
    assert coverage_part(DRAFTER, answers((30, 1))).output == Figure(None, NONE_READ)


def test_a_model_without_memory_has_no_coverage() -> None:
    """Nor has one that is not constructed."""
    for target in ("constructed:tiny", "Qwen/Qwen3-8B", "smollm2"):
        assert coverage_part(target, answers((30, 10))) == missing(CoveragePart, NO_MEMORY)
