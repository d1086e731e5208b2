"""The tables of a report, and the commands that reproduce its runs."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from covey.config.recipe import recipe_of
from covey.config.schema import GIVEN, NATURAL, Config
from covey.core.client_names import read_names
from covey.core.records import environment_of, extended_by
from covey.core.runtime_traits import traits_of
from covey.job.comparison.plan import is_comparison, read_plan
from covey.job.result_text import (
    BEFORE_AVERAGING,
    EPSILON,
    OWN_MIX,
    comparison_columns,
    or_dash,
    percent,
    privacy_text,
    run_summary,
    size,
)
from covey.job.score_text import score_rows
from covey.job.settings import expand
from covey.page.figures import keys_of
from covey.page.html_page import Markup, escape, folded, swatch, table
from covey.page.run_data import FederationGroup, Line, ReportData, federation_of, runs_of, settings, spell
from covey.registries import methods
from covey.task.run_metric import main_score, metric_of

_FLAGS = (
    *("method", "selector", "aggregator", "trainer", "environment", "dataset", "task", "model", "clients", "cohort"),
    *("rounds", "seed", "runtime", "workers", "precision", "data_dir"),
)
"""Settings with a flag of `covey run`; all others go through --set."""

_PASSED_IN = ("dataset", "environment", "clients")
"""Settings that a federation passed in from Python replaces."""

_OPEN_UP_TO = 6
"""Up to this many runs are shown; more are folded away."""


def results_table(group: FederationGroup, bare: bool) -> Markup:
    """Return a row of figures per line, with intervals."""
    rows, target = group.rows, group.comparison.target
    live = all(traits_of(run.config.runtime).live for line in group.lines for run in line.runs)
    against = group.comparison.against if bare or group.comparison.crossed else "the first"
    columns = comparison_columns(rows, target, against, group.comparison.metric, live=live)
    seeds = {row["seeds"] for row in rows}
    caption = "One seed each." if seeds == {1} else "Means over seeds, with 95 % intervals; differences paired by seed."
    body: list[list[str | Markup]] = [
        [_named(line), *(figure(row) for figure in columns.values())]
        for line, row in zip(group.lines, rows, strict=True)
    ]
    heading = f"{group.title}: {caption[0].lower()}{caption[1:]}" if group.title else caption
    return table(["method", *columns], body, heading, figures=True)


def runs_table(report: ReportData) -> Markup:
    """Return a row of final figures per run."""
    rows: list[list[str | Markup]] = []
    for group in report.groups:
        where = f" <small>{escape(group.title)}</small>" if group.title else ""
        for line in group.lines:
            for run in line.runs:
                figures = run_summary(run)
                metric = metric_of([figures])
                more = score_rows(figures)
                rows.append(
                    [
                        Markup(_named(line).text + where),
                        str(run.config.seed),
                        f"{figures['rounds']} of {run.config.rounds}",
                        metric.text(main_score(figures)),
                        metric.text(figures.get("raw_accuracy", figures.get("raw_score"))),
                        metric.text(figures.get("best_accuracy", figures.get("best_score"))),
                        percent(figures.get("own_accuracy")),
                        "; ".join(f"{name} {figure}" for name, figure in more) or "-",
                        or_dash(figures["loss"], "{:.3f}"),
                        privacy_text(figures) or "-",
                        size(figures["bytes_up"]),
                        size(figures["bytes_down"]),
                        f"{figures['seconds']:.1f} s",
                        str(len(figures["dropped"])),
                    ]
                )
    labels = {group.comparison.metric.test_label for group in report.groups}
    score = labels.pop() if len(labels) == 1 else "test score"
    best = {f"best {group.comparison.metric.label}" for group in report.groups}
    columns = ["method", "seed", "rounds", score, BEFORE_AVERAGING, best.pop() if len(best) == 1 else "best", OWN_MIX]
    columns += ["also", "test loss", EPSILON, "sent up", "sent down", "time", "dropped replies"]
    for place in (columns.index(name) for name in (EPSILON, "also", OWN_MIX, BEFORE_AVERAGING)):
        if all(row[place] == "-" for row in rows):
            columns.pop(place)
            for row in rows:
                row.pop(place)
    found = table(columns, rows, "Each run at its last evaluation", figures=True)
    return found if len(rows) <= _OPEN_UP_TO else folded(f"All {len(rows)} runs", found)


_Who = tuple[int, str]
"""A client's number, and its name or else its number as text."""


def _who(client: int, names: Mapping[int, str]) -> _Who:
    return client, names.get(client, str(client))


def dropped_table(report: ReportData) -> Markup | None:
    """Return why replies were dropped, and whose."""
    reasons: dict[tuple[str, str], list[_Who]] = {}
    for line in report.lines:
        for run in line.runs:
            names = read_names(run.folder)
            for row in run.metrics:
                for fault in row["dropped"]:
                    who = _who(int(fault["client"]), names)
                    reasons.setdefault((line.label, fault["reason"]), []).append(who)
    if not reasons:
        return None
    rows = []
    for (label, reason), clients in sorted(reasons.items(), key=lambda item: -len(item[1])):
        different = sorted(set(clients))
        whose = ", ".join(name for _, name in different[:12]) + (
            f" and {len(different) - 12} more" if len(different) > 12 else ""
        )
        rows.append([label, f"{len(clients):,}", reason, whose])
    return table(["method", "replies", "reason", "clients"], rows, "Why replies were dropped")


def absence_table(report: ReportData) -> Markup | None:
    """Return, for runs on a live fleet, in which rounds a client's answer was lost, or it was away or rested."""
    found: dict[tuple[str, _Who], dict[str, list[int]]] = {}
    for line in report.lines:
        for run in line.runs:
            names = read_names(run.folder)
            for row in run.metrics:
                if "away" not in row:
                    continue
                lost = [int(fault["client"]) for fault in row["dropped"]]
                for kind, clients in (("lost", lost), ("away", row["away"]), ("rested", row["resting"])):
                    for client in clients:
                        key = (line.label, _who(client, names))
                        kinds = found.setdefault(key, {"lost": [], "away": [], "rested": []})
                        kinds[kind].append(int(row["round"]))
    if not found:
        return None
    rows = [
        [label, name, *(_in_rounds(rounds) for rounds in kinds.values())]
        for (label, (_, name)), kinds in sorted(found.items(), key=lambda item: item[0])
    ]
    return table(["method", "client", "answer lost", "away", "rested"], rows, "Faults by client, with their rounds")


def refused_table(report: ReportData) -> Markup | None:
    """Return the nodes that connected to a live run with a key of no client, and got no order."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for line in report.lines:
        for run in line.runs:
            for row in run.metrics:
                for node in row.get("refused", ()):
                    found.setdefault((line.label, node["key"], node["reason"]), []).append(int(row["round"]))
    if not found:
        return None
    rows = [[label, reason, key, _in_rounds(rounds)] for (label, key, reason), rounds in sorted(found.items())]
    return table(["method", "reason", "key", "connected in"], rows, "Nodes that got no orders")


def _in_rounds(rounds: list[int]) -> str:
    """Return text such as `3: rounds 2, 5, 6`."""
    if not rounds:
        return "0"
    listed = ", ".join(map(str, rounds[:8])) + (" …" if len(rounds) > 8 else "")
    return f"{len(rounds)}: {'round' if len(rounds) == 1 else 'rounds'} {listed}"


def configuration(report: ReportData) -> list[Markup]:
    """Return the settings that all lines share, and tables of those in which methods or federations differ."""
    flat = []
    for line in report.lines:
        flat.append({**settings(line.config), "seed": ", ".join(map(str, line.seeds))})
    keys = list(dict.fromkeys(key for one in flat for key in one))
    common = [key for key in keys if all(key in one and one[key] == flat[0][key] for one in flat)]
    entries = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(spell(flat[0][key]))}</dd></div>" for key in common)
    parts: list[Markup | None] = [Markup(f'<dl class="settings">{entries}</dl>')]
    different = [key for key in keys if key not in common]
    federations = {group.title: federation_of(group.lines[0].config) for group in report.groups}
    theirs = {key for one in federations.values() for key in one}
    own = [key for key in different if key not in theirs]
    lines = {line.place: one for line, one in zip(reversed(report.lines), reversed(flat), strict=True)}
    parts.append(
        _differences(
            "Settings in which methods differ",
            "method" if report.bare else "label",
            [(_named(line), lines[line.place]) for line in report.legend],
            [key for key in own if not (report.bare and key == "method")],
        )
    )
    parts.append(
        _differences("Settings in which federations differ", "federation", list(federations.items()), different)
    )
    return [part for part in parts if part is not None]


def _differences(
    caption: str, head: str, named: Sequence[tuple[str | Markup, Mapping[str, Any]]], keys: Sequence[str]
) -> Markup | None:
    shown = [key for key in keys if len({repr(one.get(key)) for _, one in named}) > 1]
    if not shown:
        return None
    rows: list[list[str | Markup]] = [
        [name, *(spell(one[key]) if key in one else "-" for key in shown)] for name, one in named
    ]
    return table([head, *shown], rows, caption)


def machines(report: ReportData) -> Markup | None:
    """Return machine and versions of the runs; several values where runs differ."""
    found: dict[str, dict[str, None]] = {}
    for line in report.lines:
        for run in line.runs:
            about = environment_of(run.folder)
            versions = about.pop("versions", None)
            versions = versions if isinstance(versions, dict) else {}
            about.pop("command", None)
            for key, value in {**about, **versions}.items():
                if value is not None:
                    found.setdefault(str(key), {}).setdefault(str(value))
    if not found:
        return None
    starts = [_time(text) for text in sorted(found.pop("started", {}))]
    rows = [[key, ", ".join(values)] for key, values in found.items()]
    if starts:
        when = starts[0] if len(starts) == 1 else f"{starts[0]} to {starts[-1]}"
        rows.insert(0, ["started", when])
    return table(["", ""], rows, "Machine and versions", head=False)


def commands(report: ReportData) -> Markup:
    """Return, for each folder, the command that made it and one that reproduces it."""
    parts = []
    for folder in report.folders:
        made = next((text for _, run in runs_of(folder) if (text := made_by(run.folder))), None)
        head = f"<h3>{escape(folder)}</h3>" if len(report.folders) > 1 else ""
        before = f"<p>Made by</p>{_command(made)}" if made else ""
        parts.append(f"{head}{before}<p>Reproduced by</p>{_command(reproduced_by(folder))}")
    return Markup(f"<div>{''.join(parts)}</div>")


def _command(text: str) -> str:
    """Return a command line as HTML that wraps only before flags."""
    return f"<pre><code><span>{escape(text).replace(' --', '</span> <span>--')}</span></code></pre>"


def made_by(folder: Path) -> str | None:
    """Return the command line that made a run folder, if it is recorded."""
    command = environment_of(folder).get("command")
    if not isinstance(command, list) or not command or command[0] in ("", "-", "-c"):
        return None
    program, *rest = map(str, command)
    name = Path(program).name
    if name in ("covey", "covey.exe") or program.replace("\\", "/").endswith(
        ("covey/cli.py", "covey/__main__.py", "covey/cli/__main__.py", "covey/cli/main.py")
    ):
        return shlex.join(["covey", *rest]) + extended_by(folder)
    return shlex.join(["python", program, *rest])


def reproduced_by(folder: Path) -> str:
    """Return a command line that reproduces a run or a comparison; a Python call if the data came from Python."""
    if is_comparison(folder):
        return _compare_command(read_plan(folder))
    _, run = runs_of(folder)[0]
    if run.config.dataset.name == GIVEN:
        given = {key: value for key, value in _needed(run.config).items() if key.split(".")[0] not in _PASSED_IN}
        return f"covey.run(federation=..., **{given})"
    return shlex.join(["covey", "run", *_arguments(_needed(run.config))])


def _compare_command(plan: Mapping[str, Any]) -> str:
    seeds = list(plan["seeds"])
    given = _flat(expand(plan["given"]))
    if given.get("dataset") == GIVEN:
        own = {key: value for key, value in given.items() if key.split(".")[0] not in _PASSED_IN}
        asked = {key: plan[key] for key in ("vary", "target", "agents", "fairness") if plan.get(key)}
        return f"covey.compare({plan['methods']}, {seeds}, federation=..., **{ {**asked, **own} })"
    text = str(len(seeds)) if seeds == list(range(len(seeds))) else ",".join(map(str, seeds))
    words = ["covey", "compare", "--methods", ",".join(plan["methods"])]
    words += ["--seeds", text if "," in text or seeds == list(range(len(seeds))) else f"{text},"]
    for key, values in plan["vary"].items():
        words += ["--vary", f"{key}={','.join(map(spell, values))}"]
    if plan.get("target") is not None:
        words += ["--target", spell(plan["target"])]
    words += ["--fairness"] if plan.get("fairness") else []
    for file in plan.get("agents", {}).values():
        words += ["--agent", file]
    return shlex.join([*words, *_arguments(given)])


def _needed(config: Config) -> dict[str, Any]:
    """Return the settings that a user has to give to get `config`: those that names and defaults do not imply."""
    named = {"method": config.method}
    if "+" in config.method and config.selector and config.aggregator:
        named = {"selector": config.selector.name, "aggregator": config.aggregator.name}
    if config.trainer and (config.method not in methods.names() or recipe_of(config.method).trainer == "sgd"):
        named |= {"trainer": config.trainer.name} if config.trainer.name != "sgd" else {}
    for section in ("dataset", "task", "environment", "model"):
        named[section] = getattr(config, section).name
    # To count the clients of a natural split, the data would have to be read.
    counted = {"clients": config.clients} if config.environment.name == NATURAL else {}
    # A user's own parts may no longer be installed: then only their names are implied.
    parts = {name: part.name for name in ("selector", "aggregator") if (part := getattr(config, name))}
    implied = settings(Config.stored({**parts, **named, **counted}, earlier=False))
    own = settings(config)
    if named["task"] == "auto":
        del named["task"]
    more = {key: value for key, value in own.items() if key not in implied or implied[key] != value}
    # A command that names the seed is clearer, even if it is the default.
    return {**named, **{key: value for key, value in more.items() if key != "method"}, "seed": config.seed}


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, Mapping):
            flat.update({key if option == "name" else f"{key}.{option}": one for option, one in value.items()})
        else:
            flat[key] = value
    return flat


def _arguments(flat: Mapping[str, Any]) -> list[str]:
    words = []
    for key in sorted(flat, key=lambda key: _FLAGS.index(key) if key in _FLAGS else len(_FLAGS)):
        value = spell(flat[key])
        words += [f"--{key.replace('_', '-')}", value] if key in _FLAGS else ["--set", f"{key}={value}"]
    return words


def _named(line: Line) -> Markup:
    """Return the line's stroke and label as HTML; a label wraps only between its settings."""
    label = " ".join(f"<span>{escape(word)}</span>" for word in line.label.split(" "))
    return Markup(f'<span class="named">{swatch(keys_of([line])[0])}<span>{label}</span></span>')


def _time(text: str) -> str:
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    except ValueError:
        return text
