"""Prompts of random token ids: no tokenizer, no text, any length. They say nothing of acceptance on text."""

from __future__ import annotations

import random
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.mistakes import invalid
from pytest_specdec.workloads.sources.source import Drawing, PromptSource

FIRST_ORDINARY_ID = 3
"""Ids below this one are padding, begin and end of text in many vocabularies, and are never drawn."""


def _as_range(length: object) -> object:
    """One whole number as a range of one; anything else is left to be judged, and told, as it was written."""
    return (length, length) if type(length) is int and length >= 1 else length


def _in_order(length: tuple[int, int]) -> tuple[int, int]:
    low, high = length
    if low > high:
        raise invalid(f"the range [{low}, {high}] is empty: write the smaller length first, [{high}, {low}]")
    return length


_Length = Annotated[int, Field(strict=True, ge=1)]


class RandomSource(PromptSource):
    """Ids drawn uniformly from the vocabulary without its first three."""

    format: Literal["random"]
    length: Annotated[tuple[_Length, _Length], BeforeValidator(_as_range), AfterValidator(_in_order)] = Field(
        description="tokens per prompt, a whole number of 1 or more, or [low, high] to draw it uniformly",
        examples=["length = 16"],
    )

    why_no_size: ClassVar[str] = "random prompts have no number of their own"

    @property
    def size(self) -> None:
        """As many prompts as one asks for."""
        return None

    def draw(self, drawing: Drawing) -> list[list[int]]:
        """Draw lengths and ids; a larger count leaves the first prompts as they were. Raises ConfigurationError."""
        refuse_tiny(drawing.vocabulary)
        dice = random.Random(drawing.seed)
        return [self._prompt(dice, drawing.vocabulary) for _ in range(drawing.count)]

    def definition(self, count: int, seed: int) -> Any:
        """Length, count and seed: the ids follow from these and the target's vocabulary."""
        return {"random": self.length, "count": count, "seed": seed}

    def _prompt(self, dice: random.Random, vocabulary: int) -> list[int]:
        low, high = self.length
        length = _draw(dice, low, high + 1)
        return [_draw(dice, FIRST_ORDINARY_ID, vocabulary) for _ in range(length)]


def refuse_tiny(vocabulary: int) -> None:
    """Raise ConfigurationError where there is no id that could be drawn."""
    if vocabulary <= FIRST_ORDINARY_ID:
        raise ConfigurationError(
            f"random prompts need a vocabulary of more than {FIRST_ORDINARY_ID} ids, this target has"
            f' {vocabulary}: use source = {{ format = "ids", … }}'
        )


def ordinary_ids(name: str, length: int, vocabulary: int) -> list[int]:
    """`length` ids that follow from `name` and the vocabulary alone; fewer of them are the first of more."""
    chance = random.Random(name).random
    span = vocabulary - FIRST_ORDINARY_ID
    return [FIRST_ORDINARY_ID + int(chance() * span) for _ in range(length)]


def _draw(dice: random.Random, low: int, end: int) -> int:
    """A whole number in low ≤ n < end, by `random()`, the one method whose sequence Python promises to keep."""
    return low + int(dice.random() * (end - low))
