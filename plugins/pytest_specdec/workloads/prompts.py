"""Where a scenario's prompts come from: what every source can do, and those that need no dataset.

A source says how many prompts it has, draws them as token ids, and defines itself for a digest. Here are texts and ids
of the scenario itself, a file beside it, and random token ids; rows of data are in `datasets.py` and `traces.py`.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationInfo

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.mistakes import Mistake, Natural, Positive, Table, Text, key
from pytest_specdec.workloads.rows import Chosen, Item, Row, Wrong, cell, json_lines, lines, read_each, text_of

Encode = Callable[[Sequence[str]], list[list[int]]]
EncodeMessages = Callable[[Sequence[Sequence[Mapping[str, str]]]], list[list[int]]]


def no_chat_template(conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
    """What stands for a chat template where there is none. Raises ConfigurationError."""
    raise ConfigurationError("this engine applies no chat template: set chat_template = false, or name another engine")


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


class PromptSource(Table):
    """The base of all sources."""

    why_no_size: ClassVar[str] = "this source has no number of prompts of its own"

    @property
    def size(self) -> int | None:
        """How many prompts there are; None where there are as many as one asks for."""
        return self.available(None, 0)

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

        Raises Mistake where they cannot be read.
        """
        return None

    def output_lengths(self, count: int, seed: int) -> tuple[int, ...] | None:
        """For each of the first `count` prompts its answer's length in tokens; None where the source tells none.

        Raises Mistake where it tells some of them only.
        """
        return None

    def choose(self, count: int | None, seed: int) -> Chosen:
        """The rows that the first `count` prompts are made of; none where they are made of none. Raises Mistake."""
        return Chosen()

    @property
    def short_name(self) -> str:
        """What its rows are called in a record: nothing that depends on the machine."""
        return ""


def beside_scenario(path: str, info: ValidationInfo) -> Path:
    """The file that a scenario names, absolute, so that no later change of folder matters."""
    return (Path((info.context or {}).get("folder", ".")) / path).absolute()


class Texts(PromptSource):
    """Texts, encoded with the target's tokenizer."""

    _texts: tuple[str, ...] = PrivateAttr(default=())

    def available(self, count: int | None, seed: int) -> int:
        return len(self._texts)

    def draw(self, drawing: Drawing) -> list[list[int]]:
        return drawing.encode(self._texts[: drawing.count])

    def definition(self, count: int, seed: int) -> Any:
        """The texts themselves, so that an edited file is another workload, and a moved one is not."""
        return {"texts": self._texts[:count]}


class TextSource(Texts):
    """Texts that stand in the scenario."""

    format: Literal["text"]
    prompts: tuple[Text, ...] = key(
        "a list of one or more texts, none of them empty",
        'prompts = ["Once upon a time", "The capital of France is"]',
        min_length=1,
    )

    def model_post_init(self, context: Any, /) -> None:
        """They are given."""
        self._texts = self.prompts


class IdsSource(PromptSource):
    """Token ids, taken as they are."""

    format: Literal["ids"]
    prompts: tuple[Annotated[tuple[Natural, ...], Field(min_length=1)], ...] = key(
        "a list of one or more prompts, each a list of one or more token ids of 0 or more",
        "prompts = [[5, 17, 9], [8, 8, 4, 12]]",
        min_length=1,
    )

    def available(self, count: int | None, seed: int) -> int:
        return len(self.prompts)

    def draw(self, drawing: Drawing) -> list[list[int]]:
        return [list(prompt) for prompt in self.prompts[: drawing.count]]

    def definition(self, count: int, seed: int) -> Any:
        return {"ids": self.prompts[:count]}


_DEFAULT_COLUMN = "prompt"
_MOST_TOLD = 5


def _readable(path: str, info: ValidationInfo) -> str:
    whole = beside_scenario(path, info)
    if "column" in info.data:
        read_prompts(whole, info.data["column"])
    return str(whole)


class FileSource(Texts):
    """The prompts of a UTF-8 file, encoded with the target's tokenizer. The file is read with the scenario."""

    format: Literal["file"]
    column: Text | None = key(
        'the key that holds the prompt in each line of a .jsonl file ("prompt" if absent)', 'column = "prompt"', None
    )
    path: Annotated[Text, AfterValidator(_readable)] = key(
        "a .txt or .jsonl file, relative to the folder of the scenario file", 'path = "prompts.jsonl"'
    )

    def model_post_init(self, context: Any, /) -> None:
        """Keep the texts."""
        self._texts = tuple(read_prompts(Path(self.path), self.column))


def read_prompts(path: Path, column: str | None) -> list[str]:
    """The prompts of `path`, blank lines left out. Raises an error that names the file and, for JSON, the lines."""
    if path.suffix == ".jsonl":
        prompts = _from_json(path, column or _DEFAULT_COLUMN)
    elif path.suffix == ".txt":
        prompts = [line.rstrip("\r\n") for line in lines(path) if line.strip()]
    else:
        raise Mistake(f"{path} is neither .txt (one prompt a line) nor .jsonl (one object a line): name one of these")
    if not prompts:
        raise Mistake(f"{path} has no prompts: write one a line")
    if column is not None and path.suffix == ".txt":
        raise Mistake(f"a .txt file has no column {column!r}: remove `column`, or name a .jsonl file")
    return prompts


def _from_json(path: Path, column: str) -> list[str]:
    def read(row: Row) -> Item:
        text = text_of(cell(row, column, "name one with `column`"), f"column {column!r}")
        return Item(row.at, (("user", text),))

    found = list(read_each(json_lines(path), read))
    wrong = [f"{path}{each.at}: {each.why}" for each in found if isinstance(each, Wrong)]
    if wrong:
        more = [f"and {len(wrong) - _MOST_TOLD} more lines"] * (len(wrong) > _MOST_TOLD)
        raise Mistake("; ".join([*wrong[:_MOST_TOLD], *more]))
    return [text for each in found if isinstance(each, Item) for _, text in each.messages]


FIRST_ORDINARY_ID = 3
"""Ids below this one are padding, begin and end of text in many vocabularies, and are never drawn."""


def _as_range(length: object) -> object:
    """One whole number as a range of one; anything else is left to be judged, and told, as it was written."""
    return (length, length) if type(length) is int and length >= 1 else length


def _in_order(length: tuple[int, int]) -> tuple[int, int]:
    if length[0] > length[1]:
        low, high = length
        raise Mistake(f"the range [{low}, {high}] is empty: write the smaller length first, [{high}, {low}]")
    return length


class RandomSource(PromptSource):
    """Ids drawn uniformly from the vocabulary without its first three."""

    format: Literal["random"]
    length: Annotated[tuple[Positive, Positive], BeforeValidator(_as_range), AfterValidator(_in_order)] = key(
        "tokens per prompt, a whole number of 1 or more, or [low, high] to draw it uniformly", "length = 16"
    )

    why_no_size: ClassVar[str] = "random prompts have no number of their own"

    def draw(self, drawing: Drawing) -> list[list[int]]:
        """Draw lengths and ids; a larger count leaves the first prompts as they were. Raises ConfigurationError."""
        refuse_tiny(drawing.vocabulary)
        dice, (low, high) = random.Random(drawing.seed), self.length
        lengths = (_draw(dice, low, high + 1) for _ in range(drawing.count))
        return [[_draw(dice, FIRST_ORDINARY_ID, drawing.vocabulary) for _ in range(length)] for length in lengths]

    def definition(self, count: int, seed: int) -> Any:
        """Length, count and seed: the ids follow from these and the target's vocabulary."""
        return {"random": self.length, "count": count, "seed": seed}


PlainSource: TypeAlias = RandomSource | TextSource | IdsSource | FileSource


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
