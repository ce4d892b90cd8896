"""The pages that are written from the code say what the code says."""

from __future__ import annotations

from types import ModuleType

import pytest
from tests.unit.pages import record, reference


@pytest.mark.parametrize("written", [record, reference], ids=["record", "reference"])
def test_the_page_is_what_the_code_says(written: ModuleType) -> None:
    """`python tests/unit/pages/NAME.py` writes docs/NAME.md anew."""
    assert written.PAGE.read_text("utf-8") == written.page()
