"""A dataset of the Hugging Face Hub, or of its cache, streamed through the library `datasets`."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.rows.parquet_rows import INSTALL
from pytest_specdec.workloads.rows.row import Row, Wrong


def hub_rows(name: str, config: str | None, split: str, revision: str | None) -> Iterator[Row | Wrong]:
    """Each row of the split, counted from 1.

    Raises ConfigurationError without the library, without a network, and for a name, config or split that is none.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise ConfigurationError(f"{name} needs the library datasets, which is not installed: {INSTALL}") from None
    try:
        rows = load_dataset(name, config, split=split, revision=revision, streaming=True)
        for number, values in enumerate(rows, start=1):
            yield Row(f" row {number}", values)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigurationError(_unreachable(name, error)) from None


def _unreachable(name: str, error: Exception) -> str:
    why = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (
        f"{name} cannot be read ({type(error).__name__}: {why}): check name, config, split and network, or fetch it"
        ' once and write format = "parquet" or "jsonl"'
    )
