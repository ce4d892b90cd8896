"""What every source of prompts can do: say how many it has, draw them as token ids, and define itself for a digest.

A source whose prompts are rows of data reads them when they are first needed, chooses, and keeps them. Each such source
says how rows are read (`find_items`) and nothing of how many, in which order, and what happens to malformed ones: that
is the same for all, and stands here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.mistakes import invalid, key
from pytest_specdec.workloads.rows import Choice, Chosen, Item, Malformed, Row, Wrong, readable

Encode = Callable[[Sequence[str]], list[list[int]]]
EncodeMessages = Callable[[Sequence[Sequence[Mapping[str, str]]]], list[list[int]]]


def no_chat_template(conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
    """What stands for a chat template where there is none. Raises ConfigurationError."""
    raise ConfigurationError("this engine applies no chat template: set chat_template = false, or name another engine")


class SourceFault(ConfigurationError):
    """A source's data cannot be used; `key` is the key of the source that names them."""

    def __init__(self, sentence: str, key: str) -> None:
        super().__init__(sentence)
        self.key = key


@dataclass(frozen=True)
class Drawing:
    """What is needed to draw prompts: how many, under which seed, and the target's vocabulary and tokenizer.

    `vocabulary`: number of token ids, which run from 0. `encode`: texts to token ids; called only where there is text.
    `encode_messages`: conversations, each a list of objects with role and content, to token ids by the chat template;
    called only where one is to be applied.
    """

    count: int
    seed: int
    vocabulary: int
    encode: Encode
    encode_messages: EncodeMessages = no_chat_template


class PromptSource(BaseModel):
    """The base of all sources. A source is immutable, and refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    why_no_size: ClassVar[str] = "this source has no number of prompts of its own"

    @property
    @abstractmethod
    def size(self) -> int | None:
        """How many prompts there are; None where there are as many as one asks for."""

    @abstractmethod
    def draw(self, drawing: Drawing) -> list[list[int]]:
        """The first `drawing.count` prompts as token ids; the same ids for the same drawing, on every machine."""

    @abstractmethod
    def definition(self, count: int, seed: int) -> Any:
        """Plain values that define the first `count` prompts, given a target."""

    def arrivals(self, count: int, seed: int) -> tuple[float, ...] | None:
        """For each of the first `count` prompts the moment at which it came, in seconds from the first, never falling.

        None where the source knows no such times, as all but traces do.
        """
        return None

    def available(self, count: int | None, seed: int) -> int | None:
        """How many prompts there are, or `count` of them at once known to be there; None as in `size`.

        Raises SourceFault where they cannot be read.
        """
        return self.size

    def output_lengths(self, count: int, seed: int) -> tuple[int, ...] | None:
        """For each of the first `count` prompts its answer's length in tokens; None where the source tells none.

        Raises SourceFault where it tells some of them only.
        """
        return None

    def row_names(self, count: int, seed: int) -> tuple[str, ...] | None:
        """For each of the first `count` prompts where it stands, as "trace.csv:17"; None where it has no such place."""
        return None

    def categories(self, count: int, seed: int) -> tuple[str | None, ...]:
        """For each of the first `count` prompts what kind of question it is; empty where the source tells none."""
        return ()

    def skipped_rows(self, count: int, seed: int) -> int:
        """How many malformed rows were passed over on the way to the first `count` prompts."""
        return 0

    def notes(self, count: int, seed: int) -> tuple[str, ...]:
        """What the reader of a record should know of how these prompts were read, in sentences."""
        return ()


class RowsSource(PromptSource):
    """Prompts from rows. Which key names the data is `data_key`; an error points at it."""

    data_key: ClassVar[str]

    order: Literal["file", "shuffled"] = key('"file" or "shuffled"', 'order = "shuffled"', "file")
    skip_malformed: Annotated[bool, Field(strict=True)] = key("true or false", "skip_malformed = true", False)
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

    def categories(self, count: int, seed: int) -> tuple[str | None, ...]:
        """That of each row; empty where none has one."""
        named = tuple(item.category for item in self.choose(count, seed).items)
        return named if any(named) else ()

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
        if columns := sorted({column for item in chosen.items for column in item.unused}):
            notes.append(f"columns that were not used: {', '.join(columns)}")
        return tuple(notes)


def beside_scenario(path: str, info: ValidationInfo) -> Path:
    """The file that a scenario names, absolute, so that no later change of folder matters."""
    return (Path((info.context or {}).get("folder", ".")) / path).absolute()


class FileRows(RowsSource):
    """Rows of a file beside the scenario."""

    data_key: ClassVar[str] = "path"

    path: str = key(
        "a file, relative to the folder of the scenario file", 'path = "data.jsonl"', strict=True, min_length=1
    )

    @field_validator("path")
    @classmethod
    def _openable(cls, path: str, info: ValidationInfo) -> str:
        """Look whether data are there, and make the path absolute."""
        whole = beside_scenario(path, info)
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
