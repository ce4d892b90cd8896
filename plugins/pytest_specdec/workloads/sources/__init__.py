"""Where a scenario's prompts come from. `source.format` chooses one; each source is a file here, and a line below."""

from __future__ import annotations

from typing import TypeAlias

from pytest_specdec.workloads.sources.given import IdsSource, TextSource
from pytest_specdec.workloads.sources.prompt_file import FileSource
from pytest_specdec.workloads.sources.random_ids import RandomSource

Source: TypeAlias = RandomSource | TextSource | IdsSource | FileSource

__all__ = ["FileSource", "IdsSource", "RandomSource", "Source", "TextSource"]
