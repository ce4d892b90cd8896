"""docs/states.md has each state of scenarios/states, as it is described there, and each engine of the suite."""

from __future__ import annotations

from typing import Any

import pytest
from tests.states.page import FAULTS, FOLDER, PAGE, TEXT, engines, page, read
from tests.states.test_real_text import STATES
from tests.states.test_states import figures, kind, outcome_of

from pytest_specdec.workloads.scenario import discover


def test_the_page_has_every_state_on_every_engine() -> None:
    """What is new in either makes it stale, until `STATES=write tox -e states` has written it."""
    assert PAGE.read_text("utf-8") == page(read())
    of_text = [(path.stem, engine) for path in discover([TEXT]) for engine in STATES if path.stem in STATES[engine]]
    assert [*read()] == [(path.stem, engine) for path in discover([FOLDER]) for engine in engines()] + of_text


def test_of_each_red_row_the_fault_is_told() -> None:
    """And of no state that has none."""
    assert {state for (state, _), words in read().items() if words.startswith("red: ")} == FAULTS.keys()


def test_a_judged_row_holds_what_was_exercised() -> None:
    """Preemptions that no longer happen are another row; how many there were is the machine's."""
    told = "judged: identical, 4800 tokens known, preemptions 28"
    assert kind(told) == kind("judged: identical, 4800 tokens known, preemptions 30")
    assert kind(told) != kind("judged: identical, 4800 tokens known")
    failed = "red: engine tiny (transformers) failed while running: "
    assert kind(f"{failed}ValueError: substring not found") != kind(f"{failed}KeyError: 3")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("acceptance_rate 0.01 is below min_acceptance_rate = 0.05 of s.toml", "not reached"),
        ("divergent: 24 of 24\nacceptance_rate 0.01 is below min_acceptance_rate = 0.05 of s.toml", "red divergent"),
        ("nothing was drafted in 768 tokens: the engine decoded without speculation", "not reached"),
        ("length: 1 of 24\nrequest 3: an EOS was passed over", "red length"),
    ],
)
def test_what_is_wrong_is_not_taken_for_what_was_not_reached(message: str, expected: str) -> None:
    """A red row holds its outcome too, so that another fault is seen in it."""

    def gate(*_: Any) -> Any:
        pytest.fail(message)

    assert kind(outcome_of(gate, None, None, figures)) == expected  # type: ignore[arg-type]
