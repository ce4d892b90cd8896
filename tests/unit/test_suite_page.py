"""docs/suite.md says of each test on a real engine what it is for; none is missing there, and none has gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "suite.md"
ROW = re.compile(r"^\| `(\S+)`( \(thorough\))? \|", re.MULTILINE)


def rows_of(room: str) -> dict[str, bool]:
    """The rows of a room of the page: whether each is marked thorough."""
    section = PAGE.read_text("utf-8").partition(f"## tests/{room}\n")[2].partition("\n## ")[0]
    return {test: bool(thorough) for test, thorough in ROW.findall(section)}


def list_tests(room: str) -> Iterator[tuple[str, bool]]:
    """The tests of its files, and whether each is marked thorough."""
    for path in sorted(TESTS.glob(f"{room}/test_*.py")) or [TESTS / room]:
        body = ast.parse(path.read_text("utf-8")).body
        for_all = [node.value for node in body if isinstance(node, ast.Assign) and _assigns_marks(node)]
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(mark) for mark in (*for_all, *node.decorator_list)]
                yield f"{path.name}::{node.name}", any("thorough" in mark for mark in marks)


def _assigns_marks(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "pytestmark"


@pytest.mark.parametrize("room", ["gate", "gate/gpu/test_sglang.py", "engines", "llamacpp"])
def test_each_test_of_a_real_engine_has_its_row(room: str) -> None:
    assert rows_of(room) == dict(list_tests(room))
