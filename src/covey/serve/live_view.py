"""The live page of a run, or of the runs of a job: the frame that the script fills as rounds end."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from covey.job.run_summary import RunSummary, label_of
from covey.page.html_page import escape
from covey.serve.page_shell import badge, button, facts, link, rounded, served_score, shell
from covey.task.run_metric import main_score, metric_of

_LAST = 15
"""Rounds in the table for readers without the script."""


def live_page(
    path: str, line: RunSummary | None, state: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], word: str
) -> str:
    """Return the live page; `rows` are the last rounds of its first run."""
    parts = [_top(path, line, state, word)]
    if line is not None and line.fault:
        parts.append(f'<p class="notice" role="alert">{escape(line.fault)}</p>')
    parts.append(_figures(label_of(line) if line else "accuracy"))
    parts.append(f"<noscript>{_rounds(rows)}</noscript>")
    if line is not None and line.runs and line.kind != "run":
        listed = "".join(f"<li>{link(one, one)}</li>" for one in line.runs)
        parts.append(f'<section aria-labelledby="members"><h2 id="members">Its runs</h2><ul>{listed}</ul></section>')
    lead = "" if line is None else _lead(line)
    live = {"page": "live", "path": path, "events": f"/runs/{quote(path)}/events", "state": state["state"]}
    live |= {"known": str(line is not None and line.done > 0).lower()}
    return shell(path, "\n".join(parts), lead=lead, live=live)


def _top(path: str, line: RunSummary | None, state: Mapping[str, Any], word: str) -> str:
    done, rounds = state["done"], state["rounds"]
    running, over = state["state"] in ("running", "waiting"), state["state"] == "finished"
    address = f"/live/{quote(path)}"
    stop = button(f"{address}/stop", "Stop after this round", word)
    stop = f'<span id="stop"{"" if running else " hidden"}>{stop}</span>'
    resume = (
        f'<span id="resume"{" hidden" if running or over else ""}>{button(f"{address}/resume", "Resume", word)}</span>'
    )
    report = (
        f'<a class="button quiet" href="/report?run={escape(quote(path))}">Report</a>'
        if line is not None and line.kind != "fleet"
        else ""
    )
    model = f'<a class="button quiet" href="/mix?base={escape(quote(path))}">Order a model of it</a>'
    has_classes = line is not None and line.metric is None
    model = model if line is not None and line.kind in ("run", "fleet") and done and has_classes else ""
    job = f'<a href="/job/{state["job"]}">job</a>' if state["job"] else ""
    error = escape(state["error"] or "")
    shown = [
        ("state", f'<span id="state" aria-live="polite">{badge(state["state"])}</span>'),
        ("round", f'<span id="round">{done:,} of {rounds:,}</span>'),
        (label_of(line) if line else "accuracy", f'<span id="accuracy">{served_score(line) if line else "-"}</span>'),
        ("time left", '<span id="left">-</span>'),
        ("sent up / down", '<span id="bytes">-</span>'),
        ("time of a round", '<span id="seconds">-</span>'),
    ]
    return (
        f'<p class="notice" id="error" role="alert"{"" if error else " hidden"}>{error}</p>'
        f'<progress id="progress" aria-label="rounds done" max="{max(rounds, 1)}" value="{done}"></progress>'
        f"{facts(shown)}"
        f'<div class="tools" id="actions">{stop}{resume}{report}{model}{job}</div>'
        '<p class="quiet" id="link" role="status"></p>'
    )


def _lead(line: RunSummary) -> str:
    parts = [line.kind if line.kind != "run" else "", rounded(line.name), line.dataset, line.environment, line.model]
    clients = f"{line.clients:,} clients, {line.cohort:,} a round" if line.clients and line.cohort else ""
    seed = f"seed {line.seed}" if line.seed is not None else ""
    # Data and environment are both "given" where a program brought its own federation.
    return ", ".join(dict.fromkeys(part for part in (*parts, clients, seed, line.runtime) if part))


def _figures(metric: str) -> str:
    """Return the empty figures; the script draws them, and says in words what they show."""
    kinds = (
        ("accuracy-chart", escape(metric[:1].upper() + metric[1:]), "On the test set, by round."),
        ("loss-chart", "Loss", "On the test set, and the clients' own in training (dashed)."),
        ("class-chart", "Accuracy by class", "At the last evaluation."),
        ("mix-chart", "Class mix of the cohort", "What the invited clients hold together, and all clients (outlined)."),
        (
            "part-chart",
            "Who takes part",
            "A square is a client: stronger in colour if invited more often, outlined in the last round.",
        ),
        ("time-chart", "Seconds of a round, by phase", "Selection, clients, aggregation, evaluation."),
    )
    figures = "".join(
        f'<figure class="figure" id="{name}-figure"><h2>{heading}</h2><figcaption>{caption}</figcaption>'
        f'<div class="drawing" id="{name}" role="img" aria-label="{heading}: nothing yet"></div></figure>'
        for name, heading, caption in kinds
    )
    return (
        '<p class="tools" id="focus-line" hidden><label for="focus">Details of</label> <select id="focus"></select></p>'
        f'<ul class="legend" id="legend"></ul><div class="content">{figures}</div>'
        "<section><h2>Faults by site</h2>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Faults by site"><table id="faults"><thead><tr>'
        '<th scope="col">client</th><th scope="col">faults</th><th scope="col">last round</th>'
        '<th scope="col">last reason</th></tr></thead><tbody><tr><td colspan="4">none</td></tr></tbody></table>'
        "</div></section>"
    )


def _rounds(rows: Sequence[Mapping[str, Any]]) -> str:
    metric = metric_of(rows)
    body = "".join(
        f'<tr><th scope="row">{int(row["round"])}</th><td>{metric.text(main_score(row))}</td>'
        f"<td>{len(row.get('clients', ()))}</td><td>{len(row.get('dropped', ()))}</td></tr>"
        for row in rows[-_LAST:]
    )
    return (
        "<p>Without its script this page does not move; load it again for more.</p>"
        "<table><caption>Last rounds</caption>"
        f"<thead><tr><th scope=col>round</th><th scope=col>{escape(metric.label)}</th><th scope=col>clients</th>"
        f"<th scope=col>lost replies</th></tr></thead><tbody>{body}</tbody></table>"
    )
