"""The glossary has every outcome of a verdict, and no term without a source that can be followed."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_specdec.verdict.equivalence import Outcome

GLOSSARY = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text("utf-8")
ROW = re.compile(r"^\| (?!term \|)(?P<term>[^|]+) \| (?P<meaning>[^|]+) \| (?P<source>[^|]+) \|$", re.MULTILINE)
REFERENCE = re.compile(r"\[([^\]]+)\](?!\(|:)")
DEFINED = re.compile(r"^\[([^\]]+)\]: https://\S+$", re.MULTILINE)


def terms() -> list[str]:
    return [row["term"] for row in ROW.finditer(GLOSSARY)]


def test_every_outcome_is_explained() -> None:
    """Under the name that a failure has."""
    assert {outcome.value for outcome in Outcome} - set(terms()) == set()


def test_no_term_is_explained_twice() -> None:
    """Terms of several meanings say which one they have."""
    assert sorted(terms()) == sorted(set(terms()))


def test_every_term_has_a_source() -> None:
    """A page of this documentation, or a reference; every reference has its address, and every address is used."""
    assert [row["term"] for row in ROW.finditer(GLOSSARY) if "[" not in row["source"]] == []
    used = {name for row in ROW.finditer(GLOSSARY) for name in REFERENCE.findall(row[0])}
    assert used == set(DEFINED.findall(GLOSSARY))
