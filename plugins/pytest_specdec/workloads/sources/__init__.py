"""Where a scenario's prompts come from. `source.format` chooses one; each source is a class in a file here."""

from __future__ import annotations

from typing import TypeAlias

from pytest_specdec.workloads.sources.conversations import (
    ColumnSource,
    CustomSource,
    HubSource,
    QuestionSource,
    ShareGptSource,
)
from pytest_specdec.workloads.sources.prompts import FileSource, IdsSource, RandomSource, TextSource
from pytest_specdec.workloads.sources.traces import MooncakeSource, TraceSource

Source: TypeAlias = (
    RandomSource
    | TextSource
    | IdsSource
    | FileSource
    | ColumnSource
    | QuestionSource
    | ShareGptSource
    | CustomSource
    | TraceSource
    | MooncakeSource
    | HubSource
)
