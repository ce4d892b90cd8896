"""Write a report: in which forms, and what has to be installed for each; gather, render, put it in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePath

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.history.saved import SavedRun
from pytest_specdec.report.content import Content, gather
from pytest_specdec.report.numbers import as_csv, as_json
from pytest_specdec.report.pages import as_html, as_markdown

FORMATS = ("html", "markdown", "csv", "json")
BY_SUFFIX = {".html": "html", ".htm": "html", ".md": "markdown", ".csv": "csv", ".json": "json"}
NEEDS = {"html": ("jinja2", "matplotlib"), "markdown": ("jinja2",), "csv": (), "json": ()}
INSTALL = "pip install 'pytest-specdec[report]'"


def format_of(path: PurePath) -> str:
    """The format that a file's suffix stands for. Raises ConfigurationError for another one."""
    if path.suffix.lower() not in BY_SUFFIX:
        raise ConfigurationError(
            f"{path}: a report ends in {', '.join(BY_SUFFIX)}, not in {path.suffix or 'nothing'!r}"
        )
    return BY_SUFFIX[path.suffix.lower()]


def need_packages(format: str) -> None:
    """Raise ConfigurationError for an unknown format, or with the command that installs what this one needs."""
    if format not in FORMATS:
        raise ConfigurationError(f"{format!r} is no format of a report; take one of {', '.join(FORMATS)}")
    missing = [package for package in NEEDS[format] if find_spec(package) is None]
    if missing:
        raise ConfigurationError(f"a report as {format} needs {' and '.join(missing)}: {INSTALL}")


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
