"""Prompts that need no dataset: written in the scenario file, in a file beside it, or drawn as random token ids."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.mistakes import invalid, key
from pytest_specdec.workloads.rows import Item, Row, Wrong, cell, json_lines, lines, text_of
from pytest_specdec.workloads.sources.source import Drawing, PromptSource, beside_scenario, read_each

_Text = Annotated[str, Field(strict=True, min_length=1)]
_Id = Annotated[int, Field(strict=True, ge=0)]


class Texts(PromptSource):
    """Texts, encoded with the target's tokenizer."""

    @property
    @abstractmethod
    def texts(self) -> tuple[str, ...]:
        """All of them."""

    @property
    def size(self) -> int:
        """How many texts there are."""
        return len(self.texts)

    def draw(self, drawing: Drawing) -> list[list[int]]:
        """The ids of the first texts."""
        return drawing.encode(self.texts[: drawing.count])

    def definition(self, count: int, seed: int) -> Any:
        """The texts themselves, so that an edited file is another workload, and a moved one is not."""
        return {"texts": self.texts[:count]}


class TextSource(Texts):
    """Texts that stand in the scenario."""

    format: Literal["text"]
    prompts: tuple[_Text, ...] = key(
        "a list of one or more texts, none of them empty",
        'prompts = ["Once upon a time", "The capital of France is"]',
        min_length=1,
    )

    @property
    def texts(self) -> tuple[str, ...]:
        """Those of `prompts`."""
        return self.prompts


class IdsSource(PromptSource):
    """Token ids, taken as they are."""

    format: Literal["ids"]
    prompts: tuple[Annotated[tuple[_Id, ...], Field(min_length=1)], ...] = key(
        "a list of one or more prompts, each a list of one or more token ids of 0 or more",
        "prompts = [[5, 17, 9], [8, 8, 4, 12]]",
        min_length=1,
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


_DEFAULT_COLUMN = "prompt"
_MOST_TOLD = 5


class FileSource(Texts):
    """The prompts of a UTF-8 file, encoded with the target's tokenizer. The file is read once, with the scenario."""

    format: Literal["file"]
    column: str | None = key(
        'the key that holds the prompt in each line of a .jsonl file ("prompt" if absent)',
        'column = "prompt"',
        None,
        strict=True,
        min_length=1,
    )
    path: str = key(
        "a .txt or .jsonl file, relative to the folder of the scenario file",
        'path = "prompts.jsonl"',
        strict=True,
        min_length=1,
    )
    _texts: tuple[str, ...] = PrivateAttr(default=())

    @field_validator("path")
    @classmethod
    def _readable(cls, path: str, info: ValidationInfo) -> str:
        """Read the file once to judge it, and make the path absolute."""
        whole = beside_scenario(path, info)
        if "column" in info.data:
            read_prompts(whole, info.data["column"])
        return str(whole)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the texts."""
        self._texts = tuple(read_prompts(Path(self.path), self.column))

    @property
    def texts(self) -> tuple[str, ...]:
        """Those of the file."""
        return self._texts


def read_prompts(path: Path, column: str | None) -> list[str]:
    """The prompts of `path`, blank lines left out. Raises an error that names the file and, for JSON, the lines."""
    if path.suffix not in (".txt", ".jsonl"):
        raise invalid(f"{path} is neither .txt (one prompt a line) nor .jsonl (one object a line): name one of these")
    in_json = path.suffix == ".jsonl"
    try:
        prompts = _from_json(path, column or _DEFAULT_COLUMN) if in_json else _from_text(path)
    except ConfigurationError as error:
        raise invalid(str(error)) from None
    if not prompts:
        raise invalid(f"{path} has no prompts: write one a line")
    if column is not None and not in_json:
        raise invalid(f"a .txt file has no column {column!r}: remove `column`, or name a .jsonl file")
    return prompts


def _from_text(path: Path) -> list[str]:
    return [line.rstrip("\r\n") for line in lines(path) if line.strip()]


def _from_json(path: Path, column: str) -> list[str]:
    def read(row: Row) -> Item:
        text = text_of(cell(row, column, "name one with `column`"), f"column {column!r}")
        return Item(row.at, (("user", text),))

    found = list(read_each(json_lines(path), read))
    wrong = [f"{path}{each.at}: {each.why}" for each in found if isinstance(each, Wrong)]
    if wrong:
        raise invalid("; ".join(_first(wrong)))
    return [text for each in found if isinstance(each, Item) for _, text in each.messages]


def _first(wrong: list[str]) -> Iterator[str]:
    yield from wrong[:_MOST_TOLD]
    if len(wrong) > _MOST_TOLD:
        yield f"and {len(wrong) - _MOST_TOLD} more lines"


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
    length: Annotated[tuple[_Length, _Length], BeforeValidator(_as_range), AfterValidator(_in_order)] = key(
        "tokens per prompt, a whole number of 1 or more, or [low, high] to draw it uniformly", "length = 16"
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
