"""Parquet, through pyarrow, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.rows.row import Row, Wrong
from pytest_specdec.workloads.rows.text_lines import readable

INSTALL = "pip install 'pytest-specdec[datasets]'"
_BATCH = 256


def parquet_rows(path: Path) -> Iterator[Row | Wrong]:
    """Each row, counted from 1. Raises ConfigurationError without pyarrow, or where the file is not Parquet."""
    readable(path)
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigurationError(f"{path} needs pyarrow, which is not installed: {INSTALL}") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f" row {number}", values)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{path} is not Parquet ({_first_line(error)}): name a .parquet file") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
