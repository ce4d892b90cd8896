"""A source whose prompts are rows of data: read when they are first needed, chosen, and kept.

A source of this kind says how rows are read (`found`) and nothing of how many, in which order, and what happens to
malformed ones: that is the same for all, and stands here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.mistakes import invalid
from pytest_specdec.workloads.rows.files import readable
from pytest_specdec.workloads.rows.row import Choice, Chosen, Item, Malformed, Row, Wrong
from pytest_specdec.workloads.sources.source import PromptSource, SourceFault


class RowsSource(PromptSource):
    """Prompts from rows. Which key names the data is `data_key`; an error points at it."""

    data_key: ClassVar[str]

    order: Literal["file", "shuffled"] = Field(
        default="file", description='"file" or "shuffled"', examples=['order = "shuffled"']
    )
    skip_malformed: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="true or false", examples=["skip_malformed = true"]
    )
    _kept: dict[tuple[int | None, int], Chosen] = PrivateAttr(default_factory=dict)

    @property
    @abstractmethod
    def data_name(self) -> str:
        """What the data are called in an error, in full."""

    @property
    def short_name(self) -> str:
        """What they are called in a record: nothing that depends on the machine."""
        return Path(self.data_name).name

    @abstractmethod
    def find_items(self) -> Iterator[Item | Wrong]:
        """Every row in the order of the file, as what it asks for; rows that are not wanted are left out."""

    @property
    def size(self) -> int | None:
        """How many rows there are."""
        return len(self.choose(None, 0).items)

    def available(self, count: int | None, seed: int) -> int | None:
        """How many rows there are, read as far as is needed for `count`."""
        return len(self.choose(count, seed).items)

    def choose(self, count: int | None, seed: int) -> Chosen:
        """The first `count` rows in the wanted order, all for None. Raises SourceFault."""
        key = (count, seed if self.order == "shuffled" else 0)
        if key not in self._kept:
            chosen = self._choose(count, seed)
            self._kept[key] = self._kept[len(chosen.items), key[1]] = chosen
        return self._kept[key]

    def _choose(self, count: int | None, seed: int) -> Chosen:
        choice = Choice(count, seed if self.order == "shuffled" else None, self.skip_malformed)
        try:
            chosen = choice.of(self.find_items(), self.data_name)
        except ConfigurationError as error:
            raise SourceFault(str(error), getattr(error, "key", self.data_key)) from None
        if not chosen.items:
            raise self.nothing(chosen)
        return chosen

    def nothing(self, chosen: Chosen) -> SourceFault:
        """The error that no row is left to be asked."""
        if chosen.first_skipped is None:
            return SourceFault(f"{self.data_name} has no rows: name one with data", self.data_key)
        where = f"{self.data_name}{chosen.first_skipped.at}: {chosen.first_skipped.why}"
        return SourceFault(f"each of its {chosen.skipped} rows is malformed, the first {where}", self.data_key)

    def row_names(self, count: int, seed: int) -> tuple[str, ...]:
        """Name and place of each row."""
        return tuple(f"{self.short_name}{item.at}" for item in self.choose(count, seed).items)

    def skipped_rows(self, count: int, seed: int) -> int:
        """How many malformed rows were skipped."""
        return self.choose(count, seed).skipped

    def notes(self, count: int, seed: int) -> tuple[str, ...]:
        """What was skipped and left out."""
        chosen = self.choose(count, seed)
        notes = []
        if chosen.first_skipped is not None:
            first = f"{self.short_name}{chosen.first_skipped.at}: {chosen.first_skipped.why}"
            notes.append(f"malformed rows skipped: {chosen.skipped}, the first {first}")
        if left_out := sum(item.left_out for item in chosen.items):
            notes.append(f"turns before the first user turn left out: {left_out}")
        return tuple(notes)


class FileRows(RowsSource):
    """Rows of a file beside the scenario."""

    data_key: ClassVar[str] = "path"

    path: str = Field(
        strict=True,
        min_length=1,
        description="a file, relative to the folder of the scenario file",
        examples=['path = "data.jsonl"'],
    )

    @field_validator("path")
    @classmethod
    def _openable(cls, path: str, info: ValidationInfo) -> str:
        """Make the path absolute, so that no later change of folder matters, and look whether data are there."""
        whole = (Path((info.context or {}).get("folder", ".")) / path).absolute()
        try:
            readable(whole)
        except ConfigurationError as error:
            raise invalid(str(error)) from None
        return str(whole)

    @property
    def data_name(self) -> str:
        """The whole path."""
        return self.path


def read_each(rows: Iterator[Row | Wrong], read: Callable[[Row], Item]) -> Iterator[Item | Wrong]:
    """Each row as what it asks for, or as what is wrong with it."""
    for row in rows:
        yield row if isinstance(row, Wrong) else _read_row(row, read)


def _read_row(row: Row, read: Callable[[Row], Item]) -> Item | Wrong:
    try:
        return read(row)
    except Malformed as error:
        return Wrong(row.at, str(error))
