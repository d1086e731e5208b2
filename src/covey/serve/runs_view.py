"""The pages with all runs, and with all jobs."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

from covey.job.run_summary import KINDS, STATES, RunSummary, common_label
from covey.page.html_page import escape
from covey.serve.job_record import Job
from covey.serve.page_shell import badge, breakable, button, facts, link, percent, rounded, served_score, shell, when
from covey.serve.round_stream import GONE
from covey.serve.served_folder import ServedFolder

PAGE = 250
"""Runs on one page."""

_COLUMNS = (
    ("path", "run"),
    ("name", "method"),
    ("dataset", "data"),
    ("state", "state"),
    ("done", "rounds"),
    ("score", ""),
    ("changed", "changed"),
)
"""Order and heading; the heading of the main metric is its name, where all runs share it."""

ORDERS = (*(name for name, _ in _COLUMNS), "accuracy")


def runs_page(lines: Sequence[RunSummary], jobs: Sequence[Job], asked: Mapping[str, str], word: str, total: int) -> str:
    """Return the list of what is under the folder, with the jobs that are not over."""
    waiting = [job for job in jobs if not job.over]
    queue = (
        f'<section aria-labelledby="waiting"><h2 id="waiting">Not done yet</h2>{jobs_table(waiting, word)}</section>'
    )
    begin = (int(asked.get("page") or "1") - 1) * PAGE
    shown = lines[begin : begin + PAGE]
    live = {"page": "runs", "running": str(any(line.state == "running" for line in shown) or bool(waiting)).lower()}
    body = (
        (queue if waiting else "")
        + _filter(asked)
        + _table(shown, asked)
        + _pages("Runs", "/", len(lines), begin, asked)
    )
    lead = f"{total:,} under this folder" + (f", {len(lines):,} shown." if len(lines) != total else ".")
    return shell("Runs", body, current="/", lead=lead, live=live)


def _filter(asked: Mapping[str, str]) -> str:
    def options(name: str, values: Sequence[str]) -> str:
        inside = "".join(
            f"<option{' selected' if asked.get(name) == value else ''}>{value}</option>" for value in values
        )
        return f'<select name="{name}" id="{name}"><option value="">all</option>{inside}</select>'

    return (
        '<form class="filter" method="get" action="/" role="search">'
        '<div class="field"><label for="text">Words</label>'
        f'<input id="text" name="text" type="search" value="{escape(asked.get("text", ""))}"></div>'
        f'<div class="field"><label for="kind">Kind</label>{options("kind", KINDS)}</div>'
        f'<div class="field"><label for="state">State</label>{options("state", STATES)}</div>'
        f'<input type="hidden" name="order" value="{escape(asked.get("order", "changed"))}">'
        "<button>Show</button></form>"
    )


def _table(lines: Sequence[RunSummary], asked: Mapping[str, str]) -> str:
    if not lines:
        if any(asked.get(name) for name in ("text", "kind", "state")):
            return '<p>Nothing here is like that. <a href="/">Show all</a>.</p>'
        return '<p>There is nothing here yet. <a href="/new/run">Begin a run</a>.</p>'
    order, descending = asked.get("order", "changed"), asked.get("descending", "1") != "0"
    metric = common_label(lines)
    headings = {**dict(_COLUMNS), "score": escape(metric or "score")}
    heads = []
    for name, label in headings.items():
        turned = "0" if name == order and descending else "1"
        query = urlencode({**asked, "order": name, "descending": turned, "page": "1"})
        sorted_ = f' aria-sort="{"descending" if descending else "ascending"}"' if name == order else ""
        figure = ' class="number"' if name in ("done", "score") else ""
        heads.append(f'<th scope="col"{figure}{sorted_}><a href="/?{escape(query)}">{label}</a></th>')
    rows = "".join(_row(line, named=metric is None) for line in lines)
    return (
        '<form method="get" action="/report" id="compare"><p class="tools"><button id="compare-button">'
        'Compare the ticked ones</button> <span class="quiet" id="ticked" aria-live="polite"></span></p>'
        '<p class="quiet" id="about-runs">Tick two or more to compare them; a name leads to the live page.</p>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Runs" aria-describedby="about-runs">'
        '<table class="runs">'
        f'<thead><tr><th scope="col"><span class="hidden">tick</span></th>{"".join(heads)}'
        '<th scope="col">report</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></form>"
    )


def _row(line: RunSummary, named: bool) -> str:
    name = escape(line.path)
    tick = (
        ""
        if line.kind == "fleet" or line.state == "damaged"
        else f'<input type="checkbox" name="run" value="{name}" aria-label="tick {name}">'
    )
    about = f'<span class="quiet">{escape(line.kind)}</span>' if line.kind != "run" else ""
    kept = line.kind != "fleet" and line.state != "damaged"
    page = (
        f'<a href="/report?run={escape(quote(line.path))}" aria-label="report on {name}">report</a>'
        if kept and line.done
        else ""
    )
    made = f'<br><span class="quiet">{escape(line.on_demand)}</span>' if line.on_demand else ""
    # Both are "given" where a program brought its own federation.
    data = " ".join(dict.fromkeys(part for part in (line.dataset, line.environment) if part))
    return (
        f'<tr data-run="{name}"><td>{tick}</td><th scope="row">{link(line.path, line.path)} {about}</th>'
        f"<td>{breakable(rounded(line.name))}{made}</td><td>{escape(data or '-')}</td><td>{badge(line.state)}"
        f'{f" {escape(line.fault)}" if line.fault else ""}</td><td class="number">{line.done:,} of {line.rounds:,}</td>'
        f'<td class="number">{served_score(line, named=named)}</td><td class="time">{when(line.changed)}</td>'
        f"<td>{page}</td></tr>"
    )


def _pages(what: str, address: str, count: int, begin: int, asked: Mapping[str, str]) -> str:
    if count <= PAGE:
        return ""
    last = (count - 1) // PAGE + 1
    links = " ".join(
        f"<b>{number}</b>"
        if (number - 1) * PAGE == begin
        else f'<a href="{address}?{escape(urlencode({**asked, "page": number}))}">{number}</a>'
        for number in range(1, last + 1)
    )
    return f'<nav aria-label="{what}, by page"><p>Page {links}</p></nav>'


def jobs_page(jobs: Sequence[Job], word: str, page: int = 1) -> str:
    """Return a page of the list of all jobs."""
    begin = (page - 1) * PAGE
    running = str(any(not job.over for job in jobs)).lower()
    shown = jobs_table(jobs[begin:], word) + _pages("Jobs", "/queue", len(jobs), begin, {})
    body = shown if jobs else '<p>No job yet. <a href="/new/run">Begin a run</a>.</p>'
    return shell(
        "Jobs",
        body,
        current="/queue",
        lead="What was asked for, the last first.",
        live={"page": "runs", "running": running},
    )


def jobs_table(jobs: Sequence[Job], word: str) -> str:
    """Return a table of jobs with their buttons."""
    rows = []
    for job in jobs[:PAGE]:
        acts = button(f"/job/{job.id}/cancel", "Cancel", word, quiet=True) if not job.over else ""
        where = job.meaning.place
        rows.append(
            f'<tr data-run="job {job.id}"><th scope="row"><a href="/job/{job.id}">{breakable(title_of(job))}</a></th>'
            f'<td>{badge(job.state)}</td><td class="time asked">{when(job.asked)}</td>'
            f'<td class="where">{link(where, where) if where else "-"}</td><td>{acts}</td></tr>'
        )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Jobs"><table class="jobs"><thead><tr>'
        '<th scope="col">job</th><th scope="col">state</th><th scope="col" class="asked">asked</th>'
        '<th scope="col">folder</th><th scope="col"><span class="hidden">cancel</span></th>'
        "</tr>"
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def title_of(job: Job) -> str:
    """Return a job in a few words."""
    asked = job.request
    settings = asked.get("settings") or {}
    return {
        "run": lambda: f"run {_method(settings)} {_named(settings.get('environment'))}".strip(),
        "comparison": lambda: f"compare {', '.join(asked['methods'])}",
        "analysis": lambda: f"analyze {asked['of'] or _named(settings.get('environment')) or 'a federation'}",
        "ondemand": lambda: f"model of {asked['base']} for {rounded(asked['target'])}",
        "resume": lambda: f"resume {asked['path']}",
    }.get(asked["kind"], lambda: str(asked["kind"]))()[:120]


def _method(settings: Mapping[str, object]) -> str:
    """Return the method of a run, or the parts that were named in its place."""
    parts = [_named(settings.get(part)) for part in ("selector", "aggregator")]
    return str(settings.get("method") or " ".join(filter(None, parts)) or "fedavg")


def _named(part: object) -> str:
    return str(part.get("name", "")) if isinstance(part, Mapping) else str(part or "")


def job_page(job: Job, view: Mapping[str, object], log: str, word: str, folder: ServedFolder) -> str:
    """Return the page of one job: its state, its command, its result."""
    where = job.meaning.place
    rows = [("state", badge(job.state)), ("asked", when(job.asked))]
    rows += [("processes", f"{job.starts} begun, {job.crashes} crashed")]
    rows += [("folder", link(where, where))] if where else []
    parts = [facts(rows)]
    if not job.over:
        parts.append(button(f"/job/{job.id}/cancel", "Cancel", word))
    elif job.state != "done" or view.get("lost"):
        label = "Make it again" if view.get("lost") else "Try again" if job.state == "failed" else "Go on"
        parts.append(button(f"/job/{job.id}/retry", label, word))
    if view.get("lost"):
        gone = "Its model is no longer in its folder." if job.request["kind"] == "ondemand" else GONE
        parts.append(f'<p class="notice">{gone}</p>')
    if view.get("waits_for"):
        parts.append(f'<p class="notice">{escape(view["waits_for"])}</p>')
    if job.error:
        parts.append(f'<p class="notice" role="alert">{escape(job.error)}</p>')
    if view.get("command"):
        parts.append(f"<h2>As a command</h2><pre><code>{escape(view['command'])}</code></pre>")
    if isinstance(view.get("model"), dict):
        parts.append(_model(job, view["model"], lost=bool(view.get("lost"))))  # type: ignore[arg-type]
    if job.request["kind"] == "analysis" and job.state == "done":
        parts.append(f'<p><a href="/job/{job.id}/page">See the analysis</a></p>')
    parts.append('<h2>Events</h2><ol id="events" class="events"></ol>')
    if log:
        parts.append(f"<details><summary>What it said</summary><pre>{escape(log)}</pre></details>")
    live = {"page": "job", "job": job.id, "over": str(job.over).lower()}
    title = title_of(job)
    return shell(title[:1].upper() + title[1:], "\n".join(parts), live=live)


def _model(job: Job, model: Mapping[str, object], *, lost: bool = False) -> str:
    names, wanted, mix = model["class_names"], model["target"], model["mix"]
    assert isinstance(names, list) and isinstance(wanted, list) and isinstance(mix, list)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="number">{percent(one)}</td>'
        f'<td class="number">{percent(other)}</td></tr>'
        for name, one, other in zip(names, wanted, mix, strict=True)
        if one or other > 0.001
    )
    clients = model["clients"]
    assert isinstance(clients, list)
    accuracy, before = model["accuracy"], model["base_accuracy"]
    shown = [
        ("accuracy on the mix", percent(accuracy if isinstance(accuracy, float) else None)),
        ("of the base model", percent(before if isinstance(before, float) else None)),
        ("clients used", escape(f"{len(clients)}: {', '.join(map(str, clients[:40]))}")),
        ("privacy", escape(model["privacy"])),
    ]
    if (together := model["epsilon_of_all_models"]) is not None:
        shown.append(("ε of all answers for models of this base", escape(f"{together:g}")))
    notes = model["notes"]
    assert isinstance(notes, list)
    said = "".join(f"<li>{escape(note)}</li>" for note in notes)
    file = f'<p><a class="button" href="/models/{job.id}.safetensors" download>Download the model</a></p>'
    return (
        f"<h2>The model</h2>{'' if lost else file}"
        f"{facts(shown)}<table><caption>Class mix</caption><thead><tr><th scope=col>class</th>"
        '<th scope="col" class="number">asked for</th><th scope="col" class="number">achieved</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>{f'<ul>{said}</ul>' if said else ''}"
    )
