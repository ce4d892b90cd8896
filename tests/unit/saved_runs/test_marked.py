"""Tables in pages are those of the saved runs that they name, and are written by a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from made import record, save

from pytest_specdec.cli import main
from pytest_specdec.history.saved import read_run
from pytest_specdec.report.marked import MARKED, table_text

README = Path(__file__).parents[3] / "README.md"


def test_readme_s_table_is_that_of_the_run_it_names() -> None:
    """`pytest-specdec show RUN --into README.md` writes it anew."""
    (found,) = MARKED.finditer(README.read_text("utf-8"))
    assert table_text(read_run(README.parent / found["run"])) == found["table"]


def test_a_table_is_written_between_the_marks_that_name_the_run(tmp_path: Path) -> None:
    """What stood there goes, what stands around stays, and another run's table too."""
    run = save(tmp_path, 1, {"test_it.py::test_it": record()})
    named, page = run.relative_to(tmp_path), tmp_path / "page.md"
    other = "<!-- table of other.json -->\nas it was\n<!-- end of table -->\n"
    page.write_text(f"before\n<!-- table of {named} -->\nold\n<!-- end of table -->\nafter\n{other}")
    assert main(["show", str(run), "--into", str(page)]) == 0
    table = table_text(read_run(run))
    assert page.read_text() == f"before\n<!-- table of {named} -->\n{table}<!-- end of table -->\nafter\n{other}"
    assert "identical" in table


def test_a_page_without_the_run_s_marks_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says which lines it wants."""
    run = save(tmp_path, 1, {"test_it.py::test_it": record()})
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    assert main(["show", str(run), "--into", str(page)]) == 2
    assert f"put the lines <!-- table of {run.relative_to(tmp_path)} --> and" in capsys.readouterr().err
    assert page.read_text() == "nothing\n"
