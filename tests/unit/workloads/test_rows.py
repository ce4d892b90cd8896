"""Rows of data files: read with their places, chosen in order or by chance, and refused with place and remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.workloads.conftest import refusal_of

from pytest_specdec.workloads.rows import (
    Item,
    Row,
    Wrong,
    choose,
    csv_rows,
    hub_rows,
    json_lines,
    json_list,
    parquet_rows,
)

Reader = Callable[[Path], Iterator[Row | Wrong]]


def read(reader: Reader, path: Path, content: bytes) -> list[Row | Wrong]:
    path.write_bytes(content)
    return list(reader(path))


def error_of(reader: Reader, path: Path, content: bytes) -> str:
    return refusal_of(read, reader, path.with_name("FILE"), content)


def test_json_lines_are_numbered_over_blank_ones(tmp_path: Path) -> None:
    """A place is the line in the file, with CRLF and without a last line end."""
    found = read(json_lines, tmp_path / "f", b'{"a": 1}\r\n\r\n[2]\n{"a"\n{"a": 3}')
    assert found[0] == Row(":1", {"a": 1})
    assert found[1] == Wrong(":3", "not an object: write its values under names")
    assert found[2] == Wrong(":4", "not JSON (Expecting ':' delimiter): write one object a line")
    assert found[3] == Row(":5", {"a": 3})


def test_a_json_list_gives_the_line_on_which_each_object_begins(tmp_path: Path) -> None:
    """Over objects of several lines, and several on one."""
    found = read(json_list, tmp_path / "f", b'\xef\xbb\xbf[\n {"a":\n  1}, {"a": 2},\n\n 7\n]\n')
    assert found == [
        Row(":2", {"a": 1}),
        Row(":3", {"a": 2}),
        Wrong(":5", "not an object: write its values under names"),
    ]
    assert read(json_list, tmp_path / "f", b"[ ]") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": 2}', 'FILE is not a list of objects: for one object a line write format = "jsonl"'),
        (b'[{"a": 1}\n{"a": 2}]', "FILE:1 is not JSON (Expecting ',' or ']'): correct the file"),
        (b'[{"a": 1},\n{"a" 2}]', "FILE:2 is not JSON (Expecting ':' delimiter): correct the file"),
        (b'[{"a": 1},\n', "FILE:2 is not JSON (Expecting value): correct the file"),
        (b'[{"a": 1}\n', "FILE:1 is not JSON (Expecting ',' or ']'): correct the file"),
        (b'[{"a": 1}\n]\n[{"a": 2}]', "FILE:3 is not JSON (Extra data): correct the file"),
        (b'[{"a": "\xff"}]', "FILE:1 is not UTF-8 at byte 8 of the line: save the file as UTF-8"),
    ],
)
def test_a_json_list_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    """The line is that of the fault."""
    assert error_of(json_list, tmp_path / "f", content) == message


def test_csv_rows_have_the_line_on_which_they_begin(tmp_path: Path) -> None:
    """A quoted cell may hold commas, quotes and line ends; a row of another width is wrong, and told."""
    found = read(csv_rows, tmp_path / "f", b'a,b\r\n"x, ""y""\n z",1\r\n\r\n2\r\n3,4')
    assert found == [
        Row(":2", {"a": 'x, "y"\n z', "b": "1"}),
        Wrong(":5", "1 cells under 2 column names: put texts with commas in quotes"),
        Row(":6", {"a": "3", "b": "4"}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,a\n1,2", "FILE:1 does not name each column once: write a line of column names"),
        (b"", "FILE:1 does not name each column once: write a line of column names"),
        (b'a\n"x', "FILE:2 is not CSV (unexpected end of data): correct it, or write JSONL"),
        (
            b"a\n" + b"x" * 131_073,
            "FILE:2 is not CSV (field larger than field limit (131072)): correct it, or write JSONL",
        ),
        (b"a\n\xff", "FILE:2 is not UTF-8 at byte 0 of the line: save the file as UTF-8"),
    ],
)
def test_a_csv_file_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    """Each fault with its line and remedy."""
    assert error_of(csv_rows, tmp_path / "f", content) == message


def test_parquet_rows_are_counted(tmp_path: Path) -> None:
    """Nested values come as lists and objects."""
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow: pip install pyarrow")
    from pyarrow import parquet

    rows = [{"m": [{"role": "user", "content": f"{n}"}], "n": n} for n in range(600)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "f.parquet")
    assert list(parquet_rows(tmp_path / "f.parquet")) == [Row(f" row {n + 1}", row) for n, row in enumerate(rows)]


def test_what_is_not_parquet(tmp_path: Path) -> None:
    """It says so, not a traceback of a library."""
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow: pip install pyarrow")
    message = error_of(parquet_rows, tmp_path / "f", b"prompt\nx")
    assert message.startswith("FILE is not Parquet (")
    assert message.endswith("): name a .parquet file")


@pytest.mark.parametrize(
    ("module", "read_all", "message"),
    [
        ("pyarrow", lambda path: list(parquet_rows(path)), "f needs pyarrow, which is not installed: "),
        (
            "datasets",
            lambda path: list(hub_rows("a/b", None, "test", None)),
            "a/b needs the library datasets, which is not installed: ",
        ),
    ],
)
def test_a_missing_library_is_told_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, read_all: Callable[[Path], object], message: str
) -> None:
    """The command installs the extra that has it."""
    (tmp_path / "f").touch()
    monkeypatch.setitem(sys.modules, module, None)
    assert refusal_of(read_all, tmp_path / "f").endswith(message + "pip install 'pytest-specdec[datasets]'")


def number_rows(rows: int) -> list[Item | Wrong]:
    return [Item(f":{n}", length=1) for n in range(rows)]


def test_the_first_rows_need_no_look_at_the_others() -> None:
    """A trace of millions of rows is not read to its end for a hundred."""
    source = iter(number_rows(1000))
    chosen = choose(source, "f", 3, None, skip=False)
    assert [item.at for item in chosen.items] == [":0", ":1", ":2"]
    assert len(list(source)) == 997


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 10**9))
def test_a_larger_count_of_drawn_rows_begins_with_a_smaller_one(few: int, more: int, seed: int) -> None:
    """And all of them are each row once."""
    rows = number_rows(200)
    one, other = (choose(rows, "f", count, seed, skip=False).items for count in (few, few + more))
    everything = choose(rows, "f", None, seed, skip=False).items
    assert other[:few] == one
    assert everything[: few + more] == other
    assert {item.at for item in everything} == {f":{n}" for n in range(200)}


def test_drawn_rows_come_from_the_whole_file_and_depend_on_the_seed() -> None:
    """Each half of the file gives about half of the rows."""
    rows = number_rows(1000)
    one, other = (choose(rows, "f", 200, seed, skip=False).items for seed in (1, 2))
    assert one != other
    assert 70 < sum(int(item.at[1:]) < 500 for item in one) < 130


def test_wrong_rows_are_told_by_reason_with_both_remedies() -> None:
    """Rows that share a reason are told together, five at most."""
    rows: list[Item | Wrong] = [Wrong(":2", "no a"), *number_rows(1), Wrong(":4", "no b"), Wrong(":5", "no a")]
    remedies = "correct such rows, or leave them out with skip_malformed = true"
    assert refusal_of(choose, rows, "f.csv", 1, None, False) == f"f.csv:2,:5: no a; f.csv:4: no b; {remedies}"
    all_alike = [Wrong(f":{n}", "no a") for n in range(9)]
    told = refusal_of(choose, all_alike, "f.csv", 1, None, False)
    assert told == f"f.csv:0,:1,:2,:3,:4: no a; and more of them; {remedies}"


def test_wrong_rows_are_skipped_on_request_and_counted() -> None:
    """Those that were met on the way, not those beyond."""
    rows: list[Item | Wrong] = [Wrong(":1", "x"), Item(":2"), Wrong(":3", "y"), Item(":4"), Wrong(":5", "z")]
    chosen = choose(rows, "f", 2, None, skip=True)
    assert ([item.at for item in chosen.items], chosen.skipped, chosen.first_skipped) == (
        [":2", ":4"],
        2,
        Wrong(":1", "x"),
    )
    assert choose(rows, "f", None, None, skip=True).skipped == 3
