"""Forms for what is new: runs, comparisons, analyses and models on demand; and the sliders of a class mix."""

from collections.abc import Mapping, Sequence

from covey.job.on_demand.nearest_mix import BaseShares
from covey.page.html_page import escape
from covey.serve.form_fields import FormField
from covey.serve.page_shell import notice, shell

KINDS = {"run": "Run", "comparison": "Comparison", "analysis": "Analysis", "ondemand": "Model on demand"}
"""Kind of job → heading of its form."""

COMMANDS = {"run": "run", "comparison": "compare", "analysis": "analyze", "ondemand": "ondemand"}
"""Kind of job → command that it stands for."""


def form_page(
    kind: str, fields: Sequence[FormField], filled: Mapping[str, str], bases: Sequence[str], word: str, fault: str = ""
) -> str:
    """Return the form of a kind of job, with what was filled in and what was wrong with it."""
    tabs = "".join(
        f'<li><a href="/new/{name}"{" aria-current=page" if name == kind else ""}>{heading}</a></li>'
        for name, heading in KINDS.items()
    )
    panels: dict[str, list[str]] = {}
    for field in fields:
        shown = field if field.name not in ("base", "from_") else _choosing(field, bases)
        panels.setdefault(field.panel, []).append(_field(shown, filled.get(field.name, "")))
    inside = "".join(
        f'<details class="panel"><summary>{escape(panel)}</summary><div class="fields">{"".join(parts)}</div></details>'
        if panel
        else f'<div class="fields">{"".join(parts)}</div>'
        for panel, parts in panels.items()
    )
    wrong = f'<p class="notice" role="alert">{escape(fault)}</p>' if fault else ""
    body = (
        f'<nav aria-label="Kinds" class="tabs"><ul>{tabs}</ul></nav>{wrong}'
        f'<form method="post" action="/new/{kind}" id="new" data-command="{COMMANDS[kind]}">'
        f'<input type="hidden" name="word" value="{word}">{inside}'
        '<h2>As a command</h2><pre><code id="command" aria-live="polite"></code></pre>'
        f'<p class="tools"><button class="main">Begin</button></p></form>'
    )
    lead = "Empty fields keep their defaults."
    return shell(f"New: {KINDS[kind].lower()}", body, current="/new/run", lead=lead, live={"page": "new"})


def _choosing(field: FormField, bases: Sequence[str]) -> FormField:
    return FormField(**{**vars(field), "suggestions": tuple(bases)})


def _field(field: FormField, filled: str) -> str:
    name, id_ = escape(field.name), f"field-{escape(field.name)}"
    label = escape(field.flag.lstrip("-").replace("-", " ") or field.name)
    about = f'<span class="help" id="{id_}-help">{escape(field.help)}</span>'
    common = f'id="{id_}" name="{name}" data-flag="{escape(field.flag)}" aria-describedby="{id_}-help"'
    needed = " required" if field.needed else ""
    if field.switch:
        checked = " checked" if filled else ""
        control = f'<input type="checkbox" value="yes" {common}{checked}>'
        return f'<div class="field switch">{control}<label for="{id_}">{label}</label>{about}</div>'
    if field.repeated:
        hint = f"{field.metavar}, one a line" if field.metavar else "one a line"
        control = (
            f'<textarea rows="2" spellcheck="false" placeholder="{escape(hint)}" {common}{needed}>'
            f"{escape(filled)}</textarea>"
        )
    else:
        listed = f' list="{id_}-list"' if field.suggestions else ""
        value = escape(filled)
        control = (
            f'<input type="text" autocomplete="off" spellcheck="false" value="{value}" '
            f'placeholder="{escape(field.default or (field.metavar if field.needed else ""))}" '
            f"{common}{listed}{needed}>"
        )
        if field.suggestions:
            options = "".join(f'<option value="{escape(one)}"></option>' for one in field.suggestions)
            control += f'<datalist id="{id_}-list">{options}</datalist>'
    return f'<div class="field"><label for="{id_}">{label}</label>{control}{about}</div>'


def mix_page(base: str, bases: Sequence[str], found: BaseShares | None, word: str, fault: str = "") -> str:
    """Return the page on which a class mix is drawn with sliders."""
    options = "".join(
        f'<option value="{escape(one)}"{" selected" if one == base else ""}>{escape(one)}</option>' for one in bases
    )
    choose = (
        '<form method="get" action="/mix" class="filter"><label for="base">Base run</label>'
        f'<select id="base" name="base">{options}</select><button>Take it</button></form>'
    )
    if not bases:
        choose = '<p>There is no run with a finished round yet. <a href="/new/run">Begin one</a>.</p>'
    wrong = notice(fault) if fault else ""
    if found is None:
        return shell("On demand", choose + wrong, current="/mix", lead=_LEAD)
    sliders = "".join(
        f'<div class="slider"><label for="class-{number}">{escape(name)}</label>'
        f'<input type="range" min="0" max="100" step="1" value="0" id="class-{number}" name="class-{number}" '
        f'data-name="{escape(name)}"><output for="class-{number}" id="share-{number}">0 %</output></div>'
        for number, name in enumerate(found.class_names)
    )
    body = (
        f"{choose}{wrong}"
        f'<form method="post" action="/mix" id="mix"><input type="hidden" name="word" value="{word}">'
        f'<input type="hidden" name="base" value="{escape(base)}">'
        f'<div class="content"><fieldset class="figure"><legend>The mix that you want</legend>'
        f'<div class="sliders">{sliders}</div></fieldset>'
        '<figure class="figure"><h2>The nearest that the clients can make</h2>'
        "<figcaption>Outlined: the mix that you want.</figcaption>"
        '<p id="nearest" aria-live="polite">Move a slider.</p>'
        '<div class="drawing" id="nearest-chart" role="img" aria-label="The nearest mix: nothing yet"></div>'
        "</figure></div>"
        '<div class="fields"><div class="field"><label for="rounds">Rounds of fine-tuning</label>'
        '<input id="rounds" name="rounds" type="number" min="1" max="100000" value="20"></div></div>'
        '<p class="tools"><button class="main" id="order" disabled>Order this model</button></p></form>'
    )
    lead = (
        f"A model for your class mix, from {len(found.shares):,} clients of {base}, after {found.base_round:,} rounds."
    )
    return shell("On demand", body, current="/mix", lead=lead, live={"page": "mix", "base": base})


_LEAD = "A model for the class mix that you draw, fine-tuned on the clients whose data together make it."
