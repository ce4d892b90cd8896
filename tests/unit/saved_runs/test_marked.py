"""Tables in pages are those of the saved runs that they name, and are written by a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.saved_runs.made import record, save

from pytest_specdec.cli import main
from pytest_specdec.report.write import MARKED, table_of

ROOT = Path(__file__).parents[3]
PAGES = {  # d: a decision, t: a table
    "README.md": "t",
    "docs/report.md": "d",
    "docs/evidence/results/h200-map.md": "dtttdttttdttttttttttt",
    "docs/evidence/results/h200-memory.md": "t",
}


@pytest.mark.parametrize("page", PAGES)
def test_tables_of_pages_are_those_of_the_runs_they_name(page: str) -> None:
    """`pytest-specdec show RUN --into PAGE` writes them anew."""
    tables = list(MARKED.finditer((ROOT / page).read_text("utf-8")))
    assert "".join(found["what"][0] for found in tables) == PAGES[page]
    assert [found["table"] for found in tables] == [table_of(found, (ROOT / page).parent) for found in tables]


def test_a_table_is_written_between_the_marks_that_name_the_run(tmp_path: Path) -> None:
    """What stood there goes, what stands around stays, and another run's table too."""
    run = save(tmp_path, 1, {"test_it.py::test_it": record()})
    named, page = run.relative_to(tmp_path), tmp_path / "page.md"
    other = "<!-- table of other.json -->\nas it was\n<!-- end of table -->\n"
    page.write_text(f"before\n<!-- table of {named} -->\nold\n<!-- end of table -->\nafter\n{other}")
    assert main(["show", str(run), "--into", str(page)]) == 0
    before, rest = page.read_text().split(f"<!-- table of {named} -->\n")
    table, after = rest.split("<!-- end of table -->\n", 1)
    assert (before, after) == ("before\n", f"after\n{other}")
    assert "identical" in table
    assert "old" not in table


def test_marks_may_name_several_runs(tmp_path: Path) -> None:
    """The run that is shown may be any of them."""
    alone = record(asked={"method": "none", "gamma": None})
    runs = [save(tmp_path, number, {"test_it.py::test_it": made}) for number, made in ((1, record()), (2, alone))]
    page, names = tmp_path / "page.md", " ".join(str(run.relative_to(tmp_path)) for run in runs)
    page.write_text(f"<!-- table of {names} -->\n<!-- end of table -->\n")
    assert main(["show", str(runs[1]), "--into", str(page)]) == 0
    assert page.read_text().count("identical") == 2


def test_a_page_without_the_run_s_marks_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says which lines it wants."""
    run = save(tmp_path, 1, {"test_it.py::test_it": record()})
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    assert main(["show", str(run), "--into", str(page)]) == 2
    assert f"put the lines <!-- table of {run.relative_to(tmp_path)} --> and" in capsys.readouterr().err
    assert page.read_text() == "nothing\n"


def test_a_page_that_is_none_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Absent, a folder, or no text."""
    run = save(tmp_path, 1, {"test_it.py::test_it": record()})
    (tmp_path / "picture.md").write_bytes(b"\xff\xfe")
    for page in (tmp_path / "absent.md", tmp_path, tmp_path / "picture.md"):
        assert main(["show", str(run), "--into", str(page)]) == 2
        assert f"{page}: cannot be read and written as a page" in capsys.readouterr().err
