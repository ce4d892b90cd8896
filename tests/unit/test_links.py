"""What the documentation leads to is there: links that stay in this repository, quotes, files that are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "evidence" / "results"
ELSEWHERE = ("http://", "https://", "mailto:", "#")
LINK = re.compile(r"\]\(([^)\s]+)\)")
QUOTE = re.compile(r"^<!-- quoted from (\S+) -->\n```text\n(.*?)```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`([\w.-]*/[\w./-]*|\w+\.(?:py|md|toml|txt))`")
OF_A_NEW_ENGINE = "engines/NAME.py"
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


def find_misquoted(text: str, root: Path = ROOT) -> list[str]:
    """What is not in the file that it is quoted from, line for line and in order; […] stands for lines left out."""
    wrong = []
    for file, quote in QUOTE.findall(text):
        rest = (root / file).read_text("utf-8")
        for piece in quote.split("[…]\n"):
            _, found, rest = rest.partition(piece)
            wrong += [] if found else [piece]
    return wrong


def test_what_readme_quotes_stands_there() -> None:
    """The red verdict of a release with a real fault, as it was printed."""
    text = (ROOT / "README.md").read_text("utf-8")
    assert (len(QUOTE.findall(text)), find_misquoted(text)) == (1, [])


def test_a_wrong_quote_is_found(tmp_path: Path) -> None:
    """Changed, or in another order."""
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    quotes = (
        f"<!-- quoted from a.txt -->\n```text\n{text}```" for text in ("one\n[…]\nthree\n", "two\n[…]\none\n", "TWO\n")
    )
    assert [find_misquoted(quote, tmp_path) for quote in quotes] == [[], ["one\n"], ["TWO\n"]]


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """Relative to its page, with and without a part of the page; a folder is none, since a site shows no folders.

    Code, and links to other places, are left alone.
    """
    page = tmp_path / "page.md"
    page.write_text(
        "[a](page.md#part) [b](gone.md#part) ![c](gone.png) [d](https://example.org) [e](.) `[f](g)`", "utf-8"
    )
    assert find_broken(page) == ["gone.md#part", "gone.png", "."]


def find_absent(text: str) -> list[str]:
    """The files and folders that are named and are neither in the repository nor in the package."""
    places = (ROOT, ROOT / "plugins" / "pytest_specdec")
    named = set(NAMED.findall(text)) - {OF_A_NEW_ENGINE}
    return sorted(name for name in named if not any((place / name).exists() for place in places))


def test_a_contributor_finds_every_file_that_is_named() -> None:
    """A room that moves takes its name in CONTRIBUTING along."""
    assert find_absent((ROOT / "CONTRIBUTING.md").read_text("utf-8")) == []


def test_a_file_that_has_gone_is_found() -> None:
    """Whether it is named from the root, within the package, or alone."""
    named = "`tests/unit`, `run/gate.py`, `settings.py`, `tests/gone`, `run/gone.py`, `gone.py`"
    assert find_absent(named) == ["gone.py", "run/gone.py", "tests/gone"]
