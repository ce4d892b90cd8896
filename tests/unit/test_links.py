"""What the documentation leads to is there: links that stay in this repository, and files that CONTRIBUTING names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "evidence" / "results"
ELSEWHERE = ("http://", "https://", "mailto:", "#")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def links(text: str) -> list[str]:
    """What the text links to within the repository; code is no text."""
    return [link for link in LINK.findall(CODE.sub("", text)) if not link.startswith(ELSEWHERE)]


def find_broken(page: Path) -> list[str]:
    return [link for link in links(page.read_text("utf-8")) if not (page.parent / link.split("#")[0]).is_file()]


@pytest.mark.skipif(not RESULTS.exists(), reason="a source distribution is without docs/evidence/results")
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_broken(page: Path) -> None:
    """A page that moves takes its links along, and those that lead to it."""
    assert find_broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """Relative to its page, with and without a part of the page; a folder is none, since a site shows no folders.

    Code, and links to other places, are left alone.
    """
    page = tmp_path / "page.md"
    page.write_text(
        "[a](page.md#part) [b](gone.md#part) ![c](gone.png) [d](https://example.org) [e](.) `[f](g)`", "utf-8"
    )
    assert find_broken(page) == ["gone.md#part", "gone.png", "."]
