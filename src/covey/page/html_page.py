"""HTML pages: one self-contained file that needs no network."""

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path

from covey.errors import Refusal
from covey.page import palette
from covey.page.figures import Figure, LegendEntry, PlotlyChart
from covey.page.packed_script import packed_element, plotly, unpacking
from covey.storage import replace_file

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
"""With this policy the browser blocks all network requests of the page."""


_UNDRAWN = (
    "This browser cannot draw the charts: they need Chrome or Edge 80, Firefox 113, Safari 16.4, or newer. The tables "
    "are complete."
)
"""Shown where the browser cannot unpack the charts' library."""

_KEYS_BESIDE = 6
"""A figure with more legend entries than this takes the whole width."""


@dataclass(frozen=True)
class Markup:
    """Finished HTML."""

    text: str


@dataclass(frozen=True)
class Section:
    """A heading and its content."""

    name: str
    heading: str
    content: Sequence[Markup | Figure]


@dataclass(frozen=True)
class HtmlPage:
    """The content of a page."""

    title: str
    headline: str
    lead: str
    sections: Sequence[Section]
    notices: Sequence[str] = field(default=())
    footer: str = ""


def write_page(page: HtmlPage, path: Path) -> Path:
    """Write `page` atomically."""
    text = render(page)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise Refusal(f"The page {path} cannot be written: {error.strerror or error}.") from error
    return path


def render(page: HtmlPage) -> str:
    """Return the page as HTML."""
    sections = [section for section in page.sections if section.content]
    charts: list[PlotlyChart] = []
    body = "\n".join(_section(section, charts) for section in sections)
    links = "".join(f'<li><a href="#{section.name}">{escape(section.heading)}</a></li>' for section in sections)
    notices = "".join(f"<li>{escape(notice)}</li>" for notice in page.notices)
    notice = f'<aside class="notice"><h2>Notes</h2><ul>{notices}</ul></aside>' if notices else ""
    # The charts' data is in a script element, which only a "<" could end.
    data = json.dumps([asdict(chart) for chart in charts], allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{escape(page.title)}</title>
<style>
{palette.style()}{_asset("page.css")}</style>
</head>
<body>
<header>
<div class="top"><p class="mark">Covey</p><button type="button" id="theme" hidden>Dark</button></div>
<h1>{escape(page.headline)}</h1>
<p class="lead">{escape(page.lead)}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{notice}
<noscript><p class="notice">The charts need JavaScript; the tables do not.</p></noscript>
<p class="notice" id="undrawn" hidden>{_UNDRAWN}</p>
{body}
</main>
<footer><p>{escape(page.footer)}</p></footer>
<script type="application/json" id="charts">{data}</script>
{packed_element("plotly", plotly())}
<script>
{unpacking()}{_asset("page.js")}</script>
</body>
</html>
"""


def escape(text: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(text))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Markup]],
    caption: str,
    *,
    head: bool = True,
    figures: bool = False,
) -> Markup:
    """Return a table whose first column names the row. `figures` aligns the other columns to the right."""
    heading = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>' + "".join(f"<td>{_cell(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    kind = ' class="figures"' if figures else ""
    top = f"<thead><tr>{heading}</tr></thead>" if head else ""
    return Markup(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table{kind}><caption>{escape(caption)}</caption>{top}<tbody>{body}</tbody></table></div>"
    )


def folded(summary: str, content: Markup) -> Markup:
    """Return content that is hidden until the reader opens it."""
    return Markup(f"<details><summary>{escape(summary)}</summary>{content.text}</details>")


def swatch(key: LegendEntry) -> str:
    """Return the stroke or the box of a legend entry."""
    if key.line is None:
        return f'<svg class="swatch" aria-hidden="true"><rect width="14" height="12" y="1" fill="{key.colour}"/></svg>'
    dash = f' stroke-dasharray="{key.stroke}"' if key.stroke else ""
    return (
        '<svg class="swatch" aria-hidden="true">'
        f'<line x1="0" y1="7" x2="26" y2="7" stroke="{key.colour}" stroke-width="3"{dash}/></svg>'
    )


def _cell(cell: str | Markup) -> str:
    return cell.text if isinstance(cell, Markup) else escape(cell)


def _section(section: Section, charts: list[PlotlyChart]) -> str:
    parts = [part.text if isinstance(part, Markup) else _figure(part, charts) for part in _paired(section.content)]
    return (
        f'<section id="{section.name}" aria-labelledby="{section.name}-heading">'
        f'<h2 id="{section.name}-heading">{escape(section.heading)}</h2>\n'
        f'<div class="content">{chr(10).join(parts)}</div></section>'
    )


def _paired(content: Sequence[Markup | Figure]) -> list[Markup | Figure]:
    """Widen figures that have a long legend or no neighbour to stand beside."""
    parts = [
        replace(part, wide=True) if isinstance(part, Figure) and len(part.keys) > _KEYS_BESIDE else part
        for part in content
    ]
    alone: tuple[int, Figure] | None = None
    for place, part in enumerate([*parts, Markup("")]):
        if isinstance(part, Figure) and not part.wide:
            alone = (place, part) if alone is None else None
        elif alone is not None:
            parts[alone[0]] = replace(alone[1], wide=True)
            alone = None
    return parts


def _figure(figure: Figure, charts: list[PlotlyChart]) -> str:
    panels = []
    for chart in figure.charts:
        title = f"<h4>{escape(chart.title)}</h4>" if chart.title else ""
        panels.append(
            f'<div class="panel">{title}<div class="chart" id="chart-{len(charts)}" role="img" '
            f'aria-label="{escape(chart.alt)}" style="height: {chart.height}px"></div></div>'
        )
        charts.append(chart)
    wide = " wide" if figure.wide else ""
    return (
        f'<figure class="figure{wide}" id="figure-{figure.name}">'
        f"<h3>{escape(figure.heading)}</h3><figcaption>{escape(figure.caption)}</figcaption>"
        f'{_legend(figure.keys)}<div class="panels">{"".join(panels)}</div></figure>'
    )


def _legend(keys: Sequence[LegendEntry]) -> str:
    if not keys:
        return ""
    entries = []
    for key in keys:
        content = f"{swatch(key)}<span>{escape(key.label)}</span>"
        if key.line is None:
            entries.append(f"<li>{content}</li>")
        else:
            entries.append(
                f'<li><button type="button" aria-pressed="true" data-line="{key.line}" '
                f'title="Show or hide in all charts">{content}</button></li>'
            )
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _asset(name: str) -> str:
    return files("covey.page").joinpath(name).read_text(encoding="utf-8")
