"""What tests of models share: checkpoints, each written once for a module."""

from functools import cache
from pathlib import Path

import pytest

from pytest_specdec.models import parse


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Writes a reference's checkpoint, once for the module, and gives its folder."""
    from pytest_specdec.models.checkpoint import write_constructed

    @cache
    def write(reference: str, shard_bytes: int = 10**9) -> Path:
        folder = tmp_path_factory.mktemp("model")
        write_constructed(parse(reference), folder, shard_bytes)
        return folder

    return write
