"""Prompts written in the scenario file itself: as text, for the target's tokenizer, or as token ids."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_specdec.workloads.sources.source import Drawing, PromptSource

_Text = Annotated[str, Field(strict=True, min_length=1)]
_Id = Annotated[int, Field(strict=True, ge=0)]


class TextSource(PromptSource):
    """Texts, encoded with the target's tokenizer."""

    format: Literal["text"]
    prompts: tuple[_Text, ...] = Field(
        min_length=1,
        description="a list of one or more texts, none of them empty",
        examples=['prompts = ["Once upon a time", "The capital of France is"]'],
    )

    @property
    def size(self) -> int:
        """How many texts there are."""
        return len(self.prompts)

    def draw(self, drawing: Drawing) -> list[list[int]]:
        """The ids of the first texts."""
        return drawing.encode(self.prompts[: drawing.count])

    def definition(self, count: int, seed: int) -> Any:
        """The texts themselves."""
        return {"texts": self.prompts[:count]}


class IdsSource(PromptSource):
    """Token ids, taken as they are."""

    format: Literal["ids"]
    prompts: tuple[Annotated[tuple[_Id, ...], Field(min_length=1)], ...] = Field(
        min_length=1,
        description="a list of one or more prompts, each a list of one or more token ids of 0 or more",
        examples=["prompts = [[5, 17, 9], [8, 8, 4, 12]]"],
    )

    @property
    def size(self) -> int:
        """How many prompts there are."""
        return len(self.prompts)

    def draw(self, drawing: Drawing) -> list[list[int]]:
        """The first prompts."""
        return [list(prompt) for prompt in self.prompts[: drawing.count]]

    def definition(self, count: int, seed: int) -> Any:
        """The ids themselves."""
        return {"ids": self.prompts[:count]}
