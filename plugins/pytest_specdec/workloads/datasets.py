"""Datasets: prompts that are rows of data, of texts and conversations, encoded by the target's tokenizer.

Each source says how rows are read (`find_items`) and how a row becomes a conversation; how many, in which order, and
what happens to malformed ones is the same for all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo

from pytest_specdec.workloads.mistakes import Mistake, Switch, Text, key
from pytest_specdec.workloads.prompts import Drawing, PromptSource, beside_scenario
from pytest_specdec.workloads.rows import (
    Chosen,
    Item,
    Malformed,
    Row,
    Turns,
    Wrong,
    cell,
    choose,
    csv_rows,
    hub_rows,
    json_lines,
    json_list,
    parquet_rows,
    positive,
    read_each,
    readable,
    select_turns,
    text_of,
    turns_of,
    unused,
)

READERS: Mapping[str, Callable[[Path], Iterator[Row | Wrong]]] = {
    "jsonl": json_lines,
    "json": json_list,
    "csv": csv_rows,
    "parquet": parquet_rows,
}
SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "assistant"), "assistant"),
    "system": "system",
}
UNPREPARED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"

_Turns = Annotated[Turns, Field(description='"first", "joined" or "conversation"', examples=['turns = "conversation"'])]


class RowsSource(PromptSource):
    """Prompts from rows. Which key names the data is `data_key`; an error points at it."""

    data_key: ClassVar[str]

    order: Literal["file", "shuffled"] = key('"file" or "shuffled"', 'order = "shuffled"', "file")
    skip_malformed: Switch = key("true or false", "skip_malformed = true", False)
    _kept: dict[tuple[int | None, int | None], Chosen] = PrivateAttr(default_factory=dict)

    @property
    def data_name(self) -> str:
        """What the data are called in an error, in full."""
        return str(getattr(self, self.data_key))

    @property
    def short_name(self) -> str:
        return Path(self.data_name).name

    @abstractmethod
    def find_items(self) -> Iterator[Item | Wrong]:
        """Every row in the order of the file, as what it asks for; rows that are not wanted are left out."""

    def available(self, count: int | None, seed: int) -> int | None:
        return len(self.choose(count, seed).items)

    def choose(self, count: int | None, seed: int) -> Chosen:
        """The first `count` rows in the wanted order, all for None. Raises Mistake."""
        drawn = seed if self.order == "shuffled" else None
        if (count, drawn) not in self._kept:
            try:
                chosen = choose(self.find_items(), self.data_name, count, drawn, self.skip_malformed)
            except Mistake as mistake:
                mistake.key = self.data_key
                raise
            if not chosen.items:
                raise self.nothing(chosen)
            self._kept[count, drawn] = self._kept[len(chosen.items), drawn] = chosen
        return self._kept[count, drawn]

    def nothing(self, chosen: Chosen) -> Mistake:
        """The error that no row is left to be asked."""
        if chosen.first_skipped is None:
            return Mistake(f"{self.data_name} has no rows: name one with data", self.data_key)
        where = f"{self.data_name}{chosen.first_skipped.at}: {chosen.first_skipped.why}"
        return Mistake(f"each of its {chosen.skipped} rows is malformed, the first {where}", self.data_key)


def _openable(path: str, info: ValidationInfo) -> str:
    whole = beside_scenario(path, info)
    readable(whole)
    return str(whole)


class FileRows(RowsSource):
    """Rows of a file beside the scenario."""

    data_key: ClassVar[str] = "path"

    path: Annotated[Text, AfterValidator(_openable)] = key(
        "a file, relative to the folder of the scenario file", 'path = "data.jsonl"'
    )


class Conversations(RowsSource):
    """Rows that are conversations: encoded by the chat template, or as their bare texts, a blank line between."""

    def draw(self, drawing: Drawing) -> list[list[int]]:
        """The ids of the chosen conversations; tokenizer and chat template are called once each, if at all."""
        items = self.choose(drawing.count, drawing.seed).items
        plain = [bare_text(item) for item in items if not item.templated]
        chats = [
            [{"role": role, "content": content} for role, content in item.messages] for item in items if item.templated
        ]
        encoded = {
            False: iter(drawing.encode(plain) if plain else ()),
            True: iter(drawing.encode_messages(chats) if chats else ()),
        }
        return [next(encoded[item.templated]) for item in items]

    def definition(self, count: int, seed: int) -> Any:
        """The texts and conversations themselves: an edited file is another workload, and a moved one is not."""
        items = self.choose(count, seed).items
        if any(item.templated for item in items):
            return {"conversations": [(item.templated, item.messages) for item in items]}
        return {"texts": [bare_text(item) for item in items]}


def bare_text(item: Item) -> str:
    """What the messages say, without who says it."""
    return "\n\n".join(content for _, content in item.messages)


class Columns(Conversations):
    """A column that holds texts, or conversations as lists of objects with `role` and `content`."""

    column: Text = key("the name of the column that holds the prompt or the messages", 'column = "messages"', "prompt")
    turns: _Turns = "first"
    chat_template: Switch | None = key("true or false", "chat_template = true", None)

    def read(self, row: Row) -> Item:
        """A text as it stands, or the turns of a conversation. Raises Malformed."""
        value = cell(row, self.column, "name one with `column`")
        if isinstance(value, list):
            turns = turns_of(value, f"column {self.column!r}", "role", "content")
            messages, left_out = select_turns(turns, self.turns)
            return Item(row.at, messages, self.chat_template is not False, left_out, unused=unused(row, self.column))
        text = text_of(value, f"column {self.column!r}")
        return Item(row.at, (("user", text),), self.chat_template is True, unused=unused(row, self.column))


class ColumnSource(Columns, FileRows):
    """A column of a JSONL, JSON, CSV or Parquet file."""

    format: Literal["jsonl", "json", "csv", "parquet"]

    def find_items(self) -> Iterator[Item | Wrong]:
        return read_each(READERS[self.format](Path(self.path)), self.read)


class HubSource(Columns):
    """A column of a dataset of the Hugging Face Hub. It is opened in the run only, and streamed."""

    data_key: ClassVar[str] = "dataset"
    why_no_size: ClassVar[str] = "a dataset of the Hugging Face Hub is not opened before the run"

    format: Literal["hugging_face"]
    dataset: Text = key("the name of a dataset on the Hugging Face Hub", 'dataset = "openai/openai_humaneval"')
    config: Text | None = key("the name of one of the dataset's configurations", 'config = "main"', None)
    split: Text = key("the name of a split", 'split = "test"')
    revision: Text | None = key("a branch, tag or commit of the dataset", 'revision = "7dce605"', None)

    @property
    def short_name(self) -> str:
        return self.dataset

    def available(self, count: int | None, seed: int) -> int | None:
        return None

    def find_items(self) -> Iterator[Item | Wrong]:
        return read_each(hub_rows(self.dataset, self.config, self.split, self.revision), self.read)

    def choose(self, count: int | None, seed: int) -> Chosen:
        """The first `count` rows. Raises Mistake, also where there are fewer."""
        chosen = super().choose(count, seed)
        if count is not None and len(chosen.items) < count:
            raise Mistake(
                f"{count} prompts asked for, {self.dataset} has {len(chosen.items)}: lower count", self.data_key
            )
        return chosen


class QuestionSource(Conversations, FileRows):
    """Questions of Spec-Bench and MT-Bench, with user turns in `turns`, and of SPEED-Bench, with `messages` too.

    No answer stands in these files, so a second turn can be asked only together with the first. `reference` is never
    looked at.
    """

    format: Literal["spec_bench", "mt_bench", "speed_bench"]
    category: Text | None = key("a text, the category of the rows that are wanted", 'category = "coding"', None)
    turns: Literal["first", "joined"] = key('"first" or "joined"', 'turns = "joined"', "first")
    chat_template: Switch = key("true or false", "chat_template = true", True)

    def find_items(self) -> Iterator[Item | Wrong]:
        rows = self._rows()
        wanted = (row for row in rows if isinstance(row, Wrong) or self.category in (None, row.values.get("category")))
        return read_each(wanted, self.read)

    def _rows(self) -> Iterator[Row | Wrong]:
        path = Path(self.path)
        return parquet_rows(path) if path.suffix == ".parquet" else json_lines(path)

    def read(self, row: Row) -> Item:
        """The turns of a question. Raises Malformed."""
        if "messages" in row.values and "turns" not in row.values:
            turns = turns_of(row.values["messages"], "column 'messages'", "role", "content")
        else:
            turns = _user_turns(cell(row, "turns", f'a question of {self.format} has "turns"'))
        if any(text.startswith(UNPREPARED) for _, text in turns):
            raise Malformed("a placeholder, not a question: prepare the dataset with SPEED-Bench's own script")
        messages, left_out = select_turns(turns, self.turns)
        named = row.values.get("category")
        return Item(row.at, messages, self.chat_template, left_out, category=None if named is None else str(named))

    def nothing(self, chosen: Chosen) -> Mistake:
        """Where no row is of the wanted category, the error lists those that are there."""
        if self.category is None or chosen.first_skipped is not None:
            return super().nothing(chosen)
        known = sorted({repr(row.values.get("category")) for row in self._rows() if isinstance(row, Row)})
        return Mistake(
            f"no row of {self.path} is of category {self.category!r}: there are {', '.join(known)}", "category"
        )


def _user_turns(value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, list) or not value:
        raise Malformed("column 'turns' is not a list of one text or more: give it one")
    return [("user", text_of(turn, f"turn {number} of column 'turns'")) for number, turn in enumerate(value, 1)]


class ShareGptSource(Conversations, FileRows):
    """Conversations of ShareGPT: a list of objects whose `conversations` have `from` and `value`."""

    format: Literal["sharegpt"]
    turns: _Turns = "first"
    chat_template: Switch = key("true or false", "chat_template = true", True)

    def find_items(self) -> Iterator[Item | Wrong]:
        path = Path(self.path)
        return read_each(json_lines(path) if path.suffix == ".jsonl" else json_list(path), self.read)

    def read(self, row: Row) -> Item:
        """Turns by their role, whatever their place. Raises Malformed."""
        value = cell(row, "conversations", 'a row of ShareGPT has "conversations"')
        of_openai = isinstance(value, list) and value and isinstance(value[0], Mapping) and "role" in value[0]
        keys = ("role", "content") if of_openai else ("from", "value")
        turns = turns_of(value, "column 'conversations'", *keys, SHAREGPT_ROLES)
        messages, left_out = select_turns(turns, self.turns)
        return Item(row.at, messages, self.chat_template, left_out, unused=unused(row, "conversations"))


class CustomSource(Conversations, FileRows):
    """The custom dataset of vLLM's benchmark: JSONL with `prompt`, and `output_tokens` if one likes."""

    format: Literal["vllm_custom"]
    chat_template: Switch = key("true or false", "chat_template = true", True)

    def find_items(self) -> Iterator[Item | Wrong]:
        return read_each(json_lines(Path(self.path)), self.read)

    def read(self, row: Row) -> Item:
        """A prompt, and how long its answer was. Raises Malformed."""
        text = text_of(cell(row, "prompt", 'a row of vLLM\'s custom dataset has "prompt"'), "column 'prompt'")
        length = positive(row, "output_tokens", "") if "output_tokens" in row.values else None
        more = unused(row, "prompt", "output_tokens")
        return Item(row.at, (("user", text),), self.chat_template, output_tokens=length, unused=more)

    def output_lengths(self, count: int, seed: int) -> tuple[int, ...]:
        """The rows' `output_tokens`. Raises Mistake that names rows without."""
        items = self.choose(count, seed).items
        without = [f"{self.path}{item.at}" for item in items if item.output_tokens is None]
        if without:
            more = f" and {len(without) - 1} more rows" if len(without) > 1 else ""
            sentence = f"{without[0]}{more}: no column 'output_tokens': add it, or write output_length = \"max_tokens\""
            raise Mistake(sentence, self.data_key)
        return tuple(item.output_tokens for item in items if item.output_tokens is not None)


FileDataset: TypeAlias = ColumnSource | QuestionSource | ShareGptSource | CustomSource
