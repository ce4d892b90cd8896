"""docs/record.md says what the types say."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_the_page_is_what_the_types_say() -> None:
    """Every key with its unit and meaning; `python tests/unit/record/page.py` writes it anew."""
    spec = importlib.util.spec_from_file_location("record_page", Path(__file__).with_name("page.py"))
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    assert written.PAGE.read_text("utf-8") == written.page()
