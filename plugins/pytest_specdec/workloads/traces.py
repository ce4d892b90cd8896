"""Traces of requests: how long prompts and answers were, and when they came. The prompts are made to measure.

Each trace declares its columns and the unit of its times. Ids are drawn under the scenario's seed; the same hash id of
Mooncake is the same block here, so that prefixes are shared as they were. Sources: Azure/AzurePublicDataset
(AzureLLMInferenceDataset2023.md), kvcache-ai/Mooncake (FAST25-release/traces), HPMLL/BurstGPT (README.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pytest_specdec.workloads.datasets import FileRows
from pytest_specdec.workloads.mistakes import Positive, key
from pytest_specdec.workloads.prompts import Drawing, ordinary_ids, refuse_tiny
from pytest_specdec.workloads.rows import (
    Item,
    Malformed,
    Row,
    Wrong,
    cell,
    csv_rows,
    json_lines,
    positive,
    read_each,
    unused,
)

BLOCK = 512
"""Tokens of one block of Mooncake, unless the scenario says otherwise."""

SESSION = ("session_id", "delay")

_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")


def _nanoseconds(value: Any, column: str) -> float:
    """A date and time of day, with up to nine digits of a second, as nanoseconds; UTC where it names no zone."""
    found = _CLOCK.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        day, clock, fraction, zone = found.groups() if found else ("", "", "", "")
        moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in (None, 'Z') else zone}")
    except ValueError:
        raise Malformed(
            f"column {column!r} is {value!r}, not a date and time like 2023-11-16 18:17:03.9799600"
        ) from None
    return int(moment.timestamp()) * 10**9 + int((fraction or "").ljust(9, "0"))


def _number(value: Any, column: str) -> float:
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise Malformed(f"column {column!r} is {value!r}, not a time of 0 or more")
    return number


@dataclass(frozen=True)
class TraceColumns:
    """Where a trace has what, and how many units of its time make a second."""

    rows: Callable[[Path], Iterator[Row | Wrong]]
    time: str
    prompt: str
    output: str
    units_a_second: int
    clock: Callable[[Any, str], float] = _number
    blocks: str | None = None


TRACES = {
    "azure": TraceColumns(csv_rows, "TIMESTAMP", "ContextTokens", "GeneratedTokens", 10**9, _nanoseconds),
    "mooncake": TraceColumns(json_lines, "timestamp", "input_length", "output_length", 1000, blocks="hash_ids"),
    "burstgpt": TraceColumns(csv_rows, "Timestamp", "Request tokens", "Response tokens", 1),
}


class TraceSource(FileRows):
    """Lengths and arrivals of a trace of Azure or BurstGPT, and of Mooncake below."""

    format: Literal["azure", "burstgpt"]

    @property
    def _block(self) -> int:
        return getattr(self, "block_size", BLOCK)

    @property
    def _columns(self) -> TraceColumns:
        return TRACES[self.format]

    def find_items(self) -> Iterator[Item | Wrong]:
        """Lengths and time of each request; one that came before the one above it is wrong."""
        items = read_each(self._columns.rows(Path(self.path)), self._read)
        return self._in_time(items) if self.order == "file" else items

    def _read(self, row: Row) -> Item:
        columns = self._columns
        if "text_input" in row.values:
            raise Malformed(
                'column \'text_input\' is a text, not a length: write format = "jsonl", column = "text_input"'
            )
        remedy = f"a trace of {self.format} has {columns.time!r}, {columns.prompt!r} and {columns.output!r}"
        length = positive(row, columns.prompt, remedy)
        output = positive(row, columns.output, remedy)
        used = (columns.time, columns.prompt, columns.output, columns.blocks or "", *SESSION)
        delayed = columns.blocks is not None and columns.time not in row.values and "delay" in row.values
        time = None if delayed else columns.clock(cell(row, columns.time, remedy), columns.time)
        blocks, others = self._blocks(row, length), unused(row, *used)
        return Item(row.at, length=length, blocks=blocks, output_tokens=output, time=time, unused=others)

    def _blocks(self, row: Row, length: int) -> tuple[int, ...]:
        name = self._columns.blocks
        if name is None:
            return ()
        blocks = cell(row, name, "a trace of mooncake tells its blocks there")
        if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
            raise Malformed(f"column {name!r} is not a list of whole numbers")
        if len(blocks) != -(-length // self._block):
            told = f"column {name!r} has {len(blocks)} blocks of {self._block} tokens for a length of {length}"
            raise Malformed(f"{told}: say another block_size if the trace has one")
        return tuple(blocks)

    def _in_time(self, items: Iterator[Item | Wrong]) -> Iterator[Item | Wrong]:
        latest = -math.inf
        for item in items:
            time = item.time if isinstance(item, Item) and item.time is not None else latest
            early = f"its {self._columns.time!r} lies before that of a row above: sort the file by it"
            yield Wrong(item.at, early) if time < latest else item
            latest = max(latest, time)

    def draw(self, drawing: Drawing) -> list[list[int]]:
        """Ids of exactly the lengths of the chosen rows. Raises ConfigurationError where there are no ids to draw."""
        refuse_tiny(drawing.vocabulary)

        @cache
        def fill(block: int) -> list[int]:
            return ordinary_ids(f"{drawing.seed} block {block}", self._block, drawing.vocabulary)

        def make(place: int, item: Item) -> list[int]:
            if not item.blocks:
                return ordinary_ids(f"{drawing.seed} prompt {place}", item.length, drawing.vocabulary)
            return [token for block in item.blocks for token in fill(block)][: item.length]

        return [make(place, item) for place, item in enumerate(self.choose(drawing.count, drawing.seed).items)]

    def definition(self, count: int, seed: int) -> Any:
        """Lengths, blocks and seed: the ids follow from these, the place and the target's vocabulary."""
        size = {} if self._block == BLOCK else {"block_size": self._block}
        return {"made": [(item.length, item.blocks) for item in self.choose(count, seed).items], "seed": seed, **size}

    def output_lengths(self, count: int, seed: int) -> tuple[int, ...]:
        """Tokens of each answer, as the trace has them."""
        return tuple(item.output_tokens or 0 for item in self.choose(count, seed).items)

    def arrivals(self, count: int, seed: int) -> tuple[float, ...] | None:
        """Seconds from the first of the chosen requests to each; None where rows are shuffled, and came in no order."""
        times = [item.time for item in self.choose(count, seed).items if item.time is not None]
        if self.order == "shuffled" or len(times) < count:
            return None
        return tuple((time - times[0]) / self._columns.units_a_second for time in times)


class MooncakeSource(TraceSource):
    """A trace of Mooncake, which tells blocks as well."""

    format: Literal["mooncake"]  # type: ignore[assignment]
    block_size: Positive = key("a whole number of tokens, 1 or more", "block_size = 16", BLOCK)


Trace: TypeAlias = TraceSource | MooncakeSource
