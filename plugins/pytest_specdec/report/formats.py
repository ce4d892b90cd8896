"""In which forms a report can be written, and what has to be installed for each; asked before anything is measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import PurePath

from pytest_specdec.errors import ConfigurationError

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
