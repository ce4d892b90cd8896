"""The report as a page and as text, by Jinja2 templates that stand beside this file.

In the page everything is escaped but the drawings, and a policy in its head forbids scripts and any look outside. In
Markdown, what could be taken for markup is escaped in every text that comes from a record.
"""

from __future__ import annotations

import re
from typing import Any

from pytest_specdec.report.content import Content
from pytest_specdec.report.drawing import Figure, draw_svg

MARKUP = re.compile(r"([\\`*_\[\]<>|~$&#])")
MOST_ROWS = 60


def as_html(content: Content) -> str:
    """One page with its style and drawings inside. Needs Jinja2 and matplotlib."""
    from markupsafe import Markup

    def draw(figure: Figure) -> Markup:
        return Markup(draw_svg(figure))

    return _render("report.html.j2", content, autoescape=True, draw=draw, style=Markup(_text("report.css")))


def as_markdown(content: Content) -> str:
    """GitHub's Markdown: figures as tables. Needs Jinja2."""
    return _render("report.md.j2", content, autoescape=False)


def _render(template: str, content: Content, autoescape: bool, **more: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_specdec.report"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = plain
    page = environment.get_template(template)
    return page.render(content=content, table=table, **more)


def _text(name: str) -> str:
    from importlib.resources import files

    return (files("pytest_specdec.report") / "templates" / name).read_text("utf-8")


def plain(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    return MARKUP.sub(r"\\\1", " ".join(text.split()))


def table(figure: Figure) -> tuple[list[str], list[list[str]], int]:
    """The figure as a table: heads, rows of texts, and how many rows in the middle are left out of a long one."""
    values = {(line.name, x): y for line, x, y in figure.points()}
    xs = list(dict.fromkeys(x for _, x, _ in figure.points()))
    if not figure.x_names:
        xs.sort(key=float)
    kept = xs if len(xs) <= MOST_ROWS else [*xs[: MOST_ROWS // 2], *xs[-MOST_ROWS // 2 :]]
    rows = [[x, *(_cell(values.get((line.name, x))) for line in figure.lines)] for x in kept]
    return [figure.x_label, *(line.name for line in figure.lines)], rows, len(xs) - len(kept)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
