"""What all pages share: the frame, badges, buttons and small tables."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from urllib.parse import quote

from covey.job.run_summary import RunSummary, score_text
from covey.page import palette
from covey.page.html_page import escape

_LINKS = (("/", "Runs"), ("/new/run", "New"), ("/mix", "On demand"), ("/queue", "Jobs"))


def shell(title: str, body: str, *, current: str = "", lead: str = "", live: Mapping[str, str] | None = None) -> str:
    """Return a whole page; `live` are data attributes of its main part, which the script reads."""
    links = "".join(
        f'<li><a href="{href}"{" aria-current=page" if href == current else ""}>{name}</a></li>'
        for href, name in _LINKS
    )
    data = "".join(f' data-{name}="{escape(value)}"' for name, value in (live or {}).items())
    shown = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/serve.css">
<script src="/static/serve.js" defer></script>
<title>{escape(title)} - Covey</title>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
<div class="top"><p class="mark">Covey</p><button type="button" id="theme" hidden>Dark</button></div>
<nav aria-label="Pages"><ul>{links}</ul></nav>
<h1>{escape(title)}</h1>
{shown}
</header>
<main id="main" tabindex="-1"{data}>
{body}
</main>
</body>
</html>
"""


def style() -> str:
    """Return the style of all pages."""
    own = files("covey.serve").joinpath("serve.css").read_text(encoding="utf-8")
    return palette.style() + files("covey.page").joinpath("page.css").read_text(encoding="utf-8") + own


def script() -> str:
    """Return the script of all pages."""
    return files("covey.serve").joinpath("serve.js").read_text(encoding="utf-8")


def badge(state: str) -> str:
    """Return a state as a word with a mark, told by more than its colour."""
    marks = {"running": "▶", "finished": "✓", "done": "✓", "damaged": "!", "failed": "!", "waiting": "…"}
    mark = f'<span aria-hidden="true">{marks.get(state, "■")}</span>'
    return f'<span class="badge {escape(state)}">{mark} {escape(state)}</span>'


def button(action: str, label: str, word: str, *, quiet: bool = False, **fields: str) -> str:
    """Return a form that is one button."""
    hidden = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">' for name, value in fields.items()
    )
    kind = ' class="quiet"' if quiet else ""
    return (
        f'<form method="post" action="{escape(action)}" class="inline"><input type="hidden" name="word" value="{word}">'
        f"{hidden}<button{kind}>{escape(label)}</button></form>"
    )


def link(path: str, text: str) -> str:
    """Return a link to the live page of a run or job of runs."""
    return f'<a href="{live_address(path)}">{escape(text)}</a>'


def live_address(path: str) -> str:
    """Return the address of a run's live page."""
    return escape(f"/live/{quote(path)}")


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and values, the values as finished HTML."""
    inside = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in rows)
    return f'<dl class="facts">{inside}</dl>'


def percent(value: float | None) -> str:
    """Return a fraction as a percentage."""
    return "-" if value is None else f"{100 * value:.1f} %"


def served_score(line: RunSummary, *, named: bool = False) -> str:
    """Return the main metric of a line as HTML, with its name if `named`."""
    return escape(score_text(line, "{:.1f} %", named=named))


def rounded(text: str) -> str:
    """Return text with the shares of classes in it as people write them."""
    return re.sub(r"\b0?\.\d{4,}\b", lambda found: f"{float(found[0]):.3g}", text)


def breakable(text: str) -> str:
    """Return text as HTML that may be broken after a comma; the class mixes of models are long."""
    return escape(text).replace(",", ",<wbr>")


def when(time: float | None) -> str:
    """Return a time, in seconds since 1970, as a date and a minute."""
    return datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M") if time else "-"


def notice(sentence: str) -> str:
    """Return a sentence that stands out."""
    return f'<p class="notice" role="status">{escape(sentence)}</p>'
