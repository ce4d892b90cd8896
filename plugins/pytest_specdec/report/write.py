"""Write a report: gather, render, put it in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.saved import SavedRun
from pytest_specdec.report.content import Content, gather
from pytest_specdec.report.formats import need_packages
from pytest_specdec.report.numbers import as_csv, as_json
from pytest_specdec.report.pages import as_html, as_markdown

WRITERS: dict[str, Callable[[Content], str]] = {
    "html": as_html,
    "markdown": as_markdown,
    "csv": as_csv,
    "json": as_json,
}


def write_report(runs: Sequence[SavedRun], output: Path, format: str) -> None:
    """Write the report over `runs` to `output`, making its folder.

    Of every configuration the newest records are shown, and its history over all runs. `format`: "html", "markdown",
    "csv" or "json". Raises ConfigurationError for another format, a package that is missing, a power series that is no
    JSON, or a file that cannot be written.
    """
    need_packages(format)
    text = WRITERS[format](gather(runs))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"the report cannot be written to {output}: {error.strerror}") from None
