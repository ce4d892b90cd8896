"""The pages that are written from the code say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["record", "reference"])
def test_the_page_is_what_the_code_says(name: str) -> None:
    """`python tests/unit/pages/NAME.py` writes docs/NAME.md anew."""
    spec = importlib.util.spec_from_file_location(f"{name}_page", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    assert written.PAGE.read_text("utf-8") == written.page()
