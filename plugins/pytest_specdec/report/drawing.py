"""A figure drawn as SVG that stands in the page's own text: its colours and its letters are the page's, light or dark.

Lines differ in colour (Okabe and Ito's, which colour-blind people tell apart), in marker and, where modelled, in
dashes.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

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
    names in place of numbers at x = 0, 1, …; `x_whole`: x takes whole numbers only; `x_log`: each doubling takes the
    same room. `level`: a horizontal line that divides better from worse. `marks`: (x, words) of events on the x axis,
    `marked`: what x is to them. `note`: what a reader must know. `part`: which of several, where one figure would hold
    too many lines.
    """

    kind: str
    group: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_names: tuple[str, ...] = ()
    x_whole: bool = True
    x_log: bool = False
    level: float | None = None
    marks: tuple[tuple[float, str], ...] = ()
    marked: str = "run"
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


WIDTH, PLOT_HEIGHT = 4.8, 2.4  # inches, as all that follow
LETTER, LINE = 0.062, 0.17
MARKERS = ("o", "s", "^", "D", "v", "P")
STAND_INS = {f"#c0de0{index}": f"var(--line-{index})" for index in range(1, 7)} | {
    "#c0de0a": "currentColor",
    "#c0de0b": "var(--grid)",
}
INK, GRID = "#c0de0a", "#c0de0b"
MOST_MARKERS = 24
MOST_NUMBERED_MARKS = 9
STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": GRID,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def draw_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element; names in it are escaped. Needs matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": figure.title}):
        canvas = Canvas()
        canvas.patch.set_visible(False)
        axes = canvas.add_subplot()
        _plot(axes, figure)
        _lay_out(canvas, axes, [line.name for line in figure.lines])
        written = io.StringIO()
        canvas.savefig(written, format="svg", metadata=NO_METADATA)
    return _of_the_page(written.getvalue())


def _lay_out(canvas: Any, axes: Any, names: list[str]) -> None:
    """Room by the number of letters: a layout that measures them draws all of it once more."""
    columns = 2 if len(names) > 2 and 2 * (max(map(len, names)) + 8) * LETTER < WIDTH else 1
    rows = math.ceil(len(names) / columns) if len(names) > 1 else 0
    below = 0.45 + (0.1 + rows * LINE if rows else 0)
    height = PLOT_HEIGHT + below + 0.15
    ticks = axes.yaxis.get_major_formatter().format_ticks(axes.get_yticks())
    canvas.set_size_inches(WIDTH, height)
    left = 0.35 + max(map(len, ticks)) * LETTER
    canvas.subplots_adjust(left / WIDTH, below / height, 0.98, 1 - 0.15 / height)
    if rows:
        canvas.legend(loc="lower center", ncols=columns, fontsize=8)


def _plot(axes: Any, figure: Figure) -> None:
    axes.patch.set_visible(False)
    axes.grid(True, linewidth=0.6)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    hues = list(dict.fromkeys(line.beside or line.name for line in figure.lines))
    for line in figure.lines:
        _draw_line(axes, hues.index(line.beside or line.name), line)
    axes.set_ylim(0, 1.08 * _highest(figure))
    _ticks(axes, figure)
    if figure.level is not None:
        axes.axhline(figure.level, color=INK, linewidth=0.9, linestyle=":")
    _draw_marks(axes, figure)


def _draw_line(axes: Any, index: int, line: Line) -> None:
    """Labels that begin with an underscore would be left out of the legend, so none does."""
    y = [float("nan") if value is None else value for value in line.y]
    axes.plot(
        line.x,
        y,
        color=f"#c0de0{index % 6 + 1}",
        linestyle="--" if line.modelled else "-",
        marker=MARKERS[index % 6],
        markerfacecolor="none" if line.modelled else None,
        markevery=max(1, len(y) // MOST_MARKERS),
        label=f" {line.name}" if line.name.startswith("_") else line.name,
    )


def _highest(figure: Figure) -> float:
    values = [value for line in figure.lines for value in line.y if value is not None]
    return max([*values, figure.level or 0.0]) or 1.0


def _ticks(axes: Any, figure: Figure) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=(1, 2, 2.5, 5, 10)))
    if figure.x_names:
        axes.set_xticks(range(len(figure.x_names)), figure.x_names)
    elif figure.x_log:
        places = sorted({x for line in figure.lines for x in line.x})
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{x:g}" for x in places])
    elif figure.x_whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))


def _draw_marks(axes: Any, figure: Figure) -> None:
    """Events as upright lines, numbered as the page lists them while there is room for numbers."""
    for number, (x, _) in enumerate(figure.marks, 1):
        axes.axvline(x, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        if len(figure.marks) <= MOST_NUMBERED_MARKS:
            axes.annotate(str(number), (x, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=7)


def _of_the_page(svg: str) -> str:
    """The element alone, without identifiers that a second figure has as well, in the page's colours."""
    element = svg[svg.index("<svg") :]
    for stand_in, colour in STAND_INS.items():
        element = element.replace(stand_in, colour)
    element = re.sub(
        r' id="(?:figure|axes|patch|text|line2d|[xy]tick|legend|matplotlib|PathCollection)[\w.]*"', "", element
    )
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r'<svg \1 aria-hidden="true" focusable="false"', element, count=1
    )
