"""Prompts in a file beside the scenario: `.txt`, one a line, or `.jsonl`, an object a line, the prompt in a column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from pytest_specdec.errors import ConfigurationError
from pytest_specdec.workloads.mistakes import invalid
from pytest_specdec.workloads.rows.text_lines import readable
from pytest_specdec.workloads.sources.source import Drawing, PromptSource

_DEFAULT_COLUMN = "prompt"
_MOST_TOLD = 5


class FileSource(PromptSource):
    """The prompts of a UTF-8 file, encoded with the target's tokenizer. The file is read once, with the scenario."""

    format: Literal["file"]
    column: str | None = Field(
        default=None,
        strict=True,
        min_length=1,
        description='the key that holds the prompt in each line of a .jsonl file ("prompt" if absent)',
        examples=['column = "prompt"'],
    )
    path: str = Field(
        strict=True,
        min_length=1,
        description="a .txt or .jsonl file, relative to the folder of the scenario file",
        examples=['path = "prompts.jsonl"'],
    )
    _texts: tuple[str, ...] = PrivateAttr(default=())

    @field_validator("path")
    @classmethod
    def _readable(cls, path: str, info: ValidationInfo) -> str:
        """Read the file once to judge it, and make the path absolute, so that no later change of folder matters."""
        whole = str((Path((info.context or {}).get("folder", ".")) / path).absolute())
        if "column" in info.data:
            read_prompts(Path(whole), info.data["column"])
        return whole

    def model_post_init(self, context: Any, /) -> None:
        """Keep the texts."""
        self._texts = tuple(read_prompts(Path(self.path), self.column))

    @property
    def size(self) -> int:
        """How many prompts the file has."""
        return len(self._texts)

    def draw(self, drawing: Drawing) -> list[list[int]]:
        """The ids of the first texts."""
        return drawing.encode(self._texts[: drawing.count])

    def definition(self, count: int, seed: int) -> Any:
        """The texts themselves, so that an edited file is another workload, and a moved one is not."""
        return {"texts": self._texts[:count]}


def read_prompts(path: Path, column: str | None) -> list[str]:
    """The prompts of `path`, blank lines left out. Raises an error that names the file and, for JSON, the lines."""
    lines = [(number, line) for number, line in enumerate(_lines(path), start=1) if line.strip()]
    if not lines:
        raise invalid(f"{path} has no prompts: write one a line")
    if path.suffix == ".jsonl":
        return _from_json(path, lines, column or _DEFAULT_COLUMN)
    if column is not None:
        raise invalid(f"a .txt file has no column {column!r}: remove `column`, or name a .jsonl file")
    return [line for _, line in lines]


def _lines(path: Path) -> list[str]:
    if path.suffix not in (".txt", ".jsonl"):
        raise invalid(f"{path} is neither .txt (one prompt a line) nor .jsonl (one object a line): name one of these")
    try:
        readable(path)
        return path.read_text(encoding="utf-8-sig").split("\n")
    except ConfigurationError as error:
        raise invalid(str(error)) from None
    except UnicodeDecodeError as error:
        raise invalid(f"{path} is not UTF-8 at byte {error.start}: save the file as UTF-8") from None


def _from_json(path: Path, lines: Iterable[tuple[int, str]], column: str) -> list[str]:
    read = [(number, _cell(line, column)) for number, line in lines]
    wrong = [f"{path}:{number}: {cell}" for number, cell in read if isinstance(cell, _Wrong)]
    if wrong:
        raise invalid("; ".join(_first(wrong)))
    return [str(cell) for _, cell in read]


class _Wrong(str):
    """Why a line gives no prompt."""

    __slots__ = ()


def _cell(line: str, column: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return _Wrong(f"not JSON ({error.msg}): write one object a line")
    if not isinstance(row, dict) or column not in row:
        columns = ", ".join(map(repr, row)) if isinstance(row, dict) and row else "none"
        return _Wrong(f"no column {column!r}: its columns are {columns}; name one with `column`")
    if not isinstance(row[column], str) or not row[column]:
        return _Wrong(f"column {column!r} is not a text of one character or more: give it one, or remove the line")
    return str(row[column])


def _first(wrong: list[str]) -> Iterator[str]:
    yield from wrong[:_MOST_TOLD]
    if len(wrong) > _MOST_TOLD:
        yield f"and {len(wrong) - _MOST_TOLD} more lines"
