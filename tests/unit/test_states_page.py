"""docs/states.md has each state of scenarios/states, as it is described there, and each engine of the suite."""

from __future__ import annotations

from tests.states.page import PAGE, page, read
from tests.states.test_states import engines


def test_the_page_has_every_state_on_every_engine() -> None:
    """What is new in either makes it stale, until `STATES=write tox -e states` has written it."""
    assert PAGE.read_text("utf-8") == page(read(), engines())
