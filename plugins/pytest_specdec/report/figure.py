"""A figure as plain numbers: lines over one axis, units in the labels. Each format of the report shows the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

MOST_LINES = 6


@dataclass(frozen=True)
class Line:
    """One line: `x` and `y` of equal length, a gap in `y` is None.

    `modelled`: derived by a model, not measured as it is. `beside`: the name of the line that it goes with.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    modelled: bool = False
    beside: str = ""

    @property
    def measured_points(self) -> int:
        """How many of its points have a value."""
        return sum(value is not None for value in self.y)


@dataclass(frozen=True)
class Figure:
    """Lines that share their axes.

    `kind`: what is shown, the same over all groups. `group`: of which scenario, engine, target and device. `x_names`:
    names in place of numbers at x = 0, 1, …; `x_whole`: x takes whole numbers only. `level`: a horizontal line that
    divides better from worse. `marks`: (x, words) of events on the x axis. `note`: what a reader must know. `part`:
    which of several, where one figure would hold too many lines.
    """

    kind: str
    group: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_names: tuple[str, ...] = ()
    x_whole: bool = True
    level: float | None = None
    marks: tuple[tuple[float, str], ...] = ()
    note: str = ""
    part: str = ""

    @property
    def caption(self) -> str:
        """What is shown."""
        return f"{self.kind} ({self.part})" if self.part else self.kind

    @property
    def title(self) -> str:
        """What is shown, and of what."""
        return f"{self.caption}: {self.group}"

    def x_text(self, x: float) -> str:
        """An x value as the reader knows it."""
        return self.x_names[int(x)] if self.x_names else f"{x:g}"

    def points(self) -> Iterator[tuple[Line, str, float | None]]:
        """Every point of every line: (line, x as text, y)."""
        for line in self.lines:
            for x, y in zip(line.x, line.y, strict=True):
                yield line, self.x_text(x), y


def readable(figure: Figure) -> list[Figure]:
    """The figure in parts of few lines each, lines without a value left out; nothing where none has one."""
    lines = _number_names([line for line in figure.lines if line.measured_points])
    count = math.ceil(len(lines) / MOST_LINES)
    size = math.ceil(len(lines) / count) if count else 1
    parts = [tuple(lines[at : at + size]) for at in range(0, len(lines), size)]
    if count < 2:
        return [replace(figure, lines=part) for part in parts]
    return [replace(figure, lines=part, part=f"{at} of {count}") for at, part in enumerate(parts, 1)]


def _number_names(lines: list[Line]) -> list[Line]:
    """Lines of the same name, as of one engine gated by two tests, are numbered."""
    seen: Counter[str] = Counter()
    named = []
    for line in lines:
        seen[line.name] += 1
        number = seen[line.name]
        named.append(line if number == 1 else replace(line, name=f"{line.name} #{number}"))
    return named
