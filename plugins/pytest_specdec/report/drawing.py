"""A figure drawn as SVG that stands in the page's own text: its colours and its letters are the page's, light or dark.

Lines differ in colour (Okabe and Ito's, which colour-blind people tell apart), in marker and, where modelled, in
dashes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

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
    `marked`: what x is to them, empty where the words say it. `note`: what a reader must know. `part`: which of
    several, where one figure would hold too many lines.
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
    seen: Counter[str] = Counter()
    lines: list[Line] = []
    for line in figure.lines:
        if line.measured_points:
            seen[line.name] += 1  # lines of the same name, as of one engine gated by two tests, are numbered
            number = seen[line.name]
            lines.append(line if number == 1 else replace(line, name=f"{line.name} #{number}"))
    count = math.ceil(len(lines) / MOST_LINES)
    size = math.ceil(len(lines) / count) if count else 1
    parts = [tuple(lines[at : at + size]) for at in range(0, len(lines), size)]
    if count < 2:
        return [replace(figure, lines=part) for part in parts]
    return [replace(figure, lines=part, part=f"{at} of {count}") for at, part in enumerate(parts, 1)]


WIDTH, PLOT_HEIGHT, ABOVE = 346.0, 173.0, 11.0
LETTER, ROW = 4.5, 12.2
LEGEND = ABOVE + PLOT_HEIGHT + 40
NICE, NICE_WHOLE = (1, 2, 2.5, 5, 10), (1, 2, 5, 10)
MARKERS = (
    "m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0z",
    "m-2.5-2.5h5v5h-5z",
    "m0-2.8l2.8 5h-5.6z",
    "m0-3.4l3.4 3.4-3.4 3.4-3.4-3.4z",
    "m0 2.8l2.8-5h-5.6z",
    "m-1-2.8h2v1.8h1.8v2h-1.8v1.8h-2v-1.8h-1.8v-2h1.8z",
)
MOST_MARKERS = 24
MOST_NUMBERED_MARKS = 9


@dataclass(frozen=True)
class _Axis:
    """Values from `low` to `high`, or their logarithms, drawn from `start` to `end`; those at ticks are written."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False
    start: float = 0.0
    end: float = 0.0

    def at(self, value: float) -> float:
        """Where a value stands."""
        share = ((math.log2(value) if self.log else value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def draw_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element; names in it are escaped."""
    y = _y_axis(figure)
    x = replace(_x_axis(figure), start=25 + LETTER * max(len(text) for _, text in y.ticks), end=WIDTH - 7)
    names = [line.name for line in figure.lines]
    columns = 2 if len(names) > 2 and 2 * (max(map(len, names)) + 8) * LETTER < WIDTH else 1
    rows = math.ceil(len(names) / columns) if len(names) > 1 else 0  # one line alone needs no legend
    parts = [*_frame(figure, x, y), *_marks(figure, x), *_lines(figure, x, y), *_legend(figure.lines, columns, rows)]
    size = f'viewBox="0 0 {WIDTH:g} {LEGEND + ROW * rows:g}"'
    return f'<svg {size} font-size="9" fill="currentColor" aria-hidden="true" focusable="false">{"".join(parts)}</svg>'


def _y_axis(figure: Figure) -> _Axis:
    values = [value for line in figure.lines for value in line.y if value is not None]
    low, high = 1.08 * min([*values, 0.0]), 1.08 * max([*values, figure.level or 0.0])
    high = high if high > low else 1.0
    return _Axis(low, high, _ticks(low, high, 5, NICE), start=ABOVE + PLOT_HEIGHT, end=ABOVE)


def _x_axis(figure: Figure) -> _Axis:
    drawn = [*(x for line in figure.lines for x in line.x), *(x for x, _ in figure.marks)]
    low, high = (math.log2(x) if figure.x_log else x for x in (min(drawn), max(drawn)))
    room = 0.05 * (high - low) or 0.5
    low, high = low - room, high + room
    return _Axis(low, high, _x_ticks(figure, low, high), log=figure.x_log)


def _x_ticks(figure: Figure, low: float, high: float) -> tuple[tuple[float, str], ...]:
    if figure.x_names:
        return tuple(enumerate(figure.x_names))
    if figure.x_log:
        return _space_out(sorted({x for line in figure.lines for x in line.x}), (high - low) * LETTER / WIDTH)
    return _ticks(low, high, 8, NICE_WHOLE if figure.x_whole else NICE, int(figure.x_whole))


def _space_out(values: Sequence[float], letter: float) -> tuple[tuple[float, str], ...]:
    """Those whose text does not run into the one before, as far as they lie apart in doublings."""
    told: list[tuple[float, str]] = []
    for each in values:
        wide = letter * (len(f"{each:g}") + 1)
        if not told or math.log2(each / told[-1][0]) >= wide:
            told.append((each, f"{each:g}"))
    return tuple(told)


def _ticks(
    low: float, high: float, most: int, nice: tuple[float, ...], least: float = 0
) -> tuple[tuple[float, str], ...]:
    """Round values within, at most one more than `most`, `least` apart or more."""
    unit = 10.0 ** math.floor(math.log10((high - low) / most))
    step = max(least, next(unit * each for each in nice if unit * each * most >= high - low))
    places = range(math.ceil(low / step), math.floor(high / step) + 1)
    return tuple((place * step, f"{place * step:g}") for place in places)


def _frame(figure: Figure, x: _Axis, y: _Axis) -> Iterator[str]:
    across = "".join(f"M{x.at(value):g} {y.start:g}V{y.end:g}" for value, _ in x.ticks)
    up = "".join(f"M{x.start:g} {y.at(value):g}H{x.end:g}" for value, _ in y.ticks)
    yield f'<path d="{across}{up}" stroke="var(--grid)" stroke-width=".6"/>'
    axes = f"M{x.start:g} {y.end:g}V{y.start:g}H{x.end:g}"
    yield f'<path d="{axes}" fill="none" stroke="currentColor" stroke-width=".8"/>'
    yield from (_text(x.at(value), y.start + 12, text) for value, text in x.ticks)
    yield from (_text(x.start - 5, y.at(value) + 3, text, "end") for value, text in y.ticks)
    yield _text((x.start + x.end) / 2, y.start + 25, figure.x_label)
    middle = (y.start + y.end) / 2
    yield _text(10, middle, figure.y_label, more=f' transform="rotate(-90 10 {middle:g})"')


def _marks(figure: Figure, x: _Axis) -> Iterator[str]:
    for number, (value, _) in enumerate(figure.marks, 1):
        yield _draw_dotted(f"M{x.at(value):g} {ABOVE:g}v{PLOT_HEIGHT:g}")
        if len(figure.marks) <= MOST_NUMBERED_MARKS:
            yield _text(x.at(value), ABOVE - 2, str(number), more=' font-size="7"')


def _lines(figure: Figure, x: _Axis, y: _Axis) -> Iterator[str]:
    if figure.level is not None:
        yield _draw_dotted(f"M{x.start:g} {y.at(figure.level):g}H{x.end:g}")
    for hue, line in zip(_hues(figure.lines), figure.lines, strict=True):
        points = [
            None if value is None else f"{x.at(place):g} {y.at(value):g}"
            for place, value in zip(line.x, line.y, strict=True)
        ]
        yield _draw_line(hue, line.modelled, points, max(1, len(points) // MOST_MARKERS))


def _hues(lines: Sequence[Line]) -> list[int]:
    names = list(dict.fromkeys(line.beside or line.name for line in lines))
    return [names.index(line.beside or line.name) % len(MARKERS) for line in lines]


def _draw_line(hue: int, modelled: bool, points: Sequence[str | None], every: int = 1) -> str:
    ours = f"var(--line-{hue + 1})"
    path = "".join(f"{'L' if last else 'M'}{at}" for last, at in zip((None, *points), points, strict=False) if at)
    beside = zip((None, *points), points, (*points[1:], None), strict=False)  # a point alone has no line to show it
    alone = {number for number, (last, at, after) in enumerate(beside) if at and not last and not after}
    marked = sorted({*range(every // 2, len(points), every), *alone})
    markers = "".join(f"M{points[number]}{MARKERS[hue]}" for number in marked if points[number])
    dashes, fill = (' stroke-dasharray="6 2.6"', "none") if modelled else ("", ours)
    return (
        f'<path d="{path}" fill="none" stroke="{ours}" stroke-width="1.6" stroke-linejoin="round"{dashes}/>'
        f'<path d="{markers}" fill="{fill}" stroke="{ours}"/>'
    )


def _legend(lines: Sequence[Line], columns: int, rows: int) -> Iterator[str]:
    wide = (max(len(line.name) for line in lines) + 8) * LETTER
    left = max(4.0, (WIDTH - columns * wide) / 2)
    for number, (hue, line) in enumerate(zip(_hues(lines), lines, strict=True) if rows else ()):
        x, y = round(left + number // rows * wide, 1), round(LEGEND + ROW * (number % rows), 1)
        yield _draw_line(hue, line.modelled, [f"{x:g} {y:g}", f"{x + 9:g} {y:g}", f"{x + 18:g} {y:g}"], every=2)
        yield _text(x + 24, y + 3, line.name, "start", ' font-size="8"')


def _draw_dotted(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-width=".9" stroke-dasharray=".9 1.8"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
