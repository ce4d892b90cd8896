"""What every source of prompts can do: say how many it has, draw them as token ids, and define itself for a digest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from pytest_specdec.errors import ConfigurationError

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

    def skipped_rows(self, count: int, seed: int) -> int:
        """How many malformed rows were passed over on the way to the first `count` prompts."""
        return 0

    def notes(self, count: int, seed: int) -> tuple[str, ...]:
        """What the reader of a record should know of how these prompts were read, in sentences."""
        return ()
