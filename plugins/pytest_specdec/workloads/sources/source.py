"""What every source of prompts can do: say how many it has, draw them as token ids, and define itself for a digest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True)
class Drawing:
    """What is needed to draw prompts: how many, under which seed, and the target's vocabulary and tokenizer.

    `vocabulary`: number of token ids, which run from 0. `encode`: texts to token ids; called only where there is text.
    """

    count: int
    seed: int
    vocabulary: int
    encode: Encode


class PromptSource(BaseModel):
    """The base of all sources. A source is immutable, and refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
