"""`covey runs`, `show` and `rm`: the runs under a folder."""

import re
import shutil
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.table import Table

from covey.cli import terminal as display
from covey.cli.flags import JsonFlag, print_json
from covey.errors import Refusal, require

if TYPE_CHECKING:
    from covey.job.run_summary import RunSummary

_WIDE = 110
"""Characters of a line from which on a list also has data, time, and what is said of models on demand."""

_NARROWEST, _BESIDE = 12, 3
"""Characters that a column of words keeps beside long paths; those between two columns."""

_SHOWN = 30
"""Most lines of a list; --all shows every one."""


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to search.")] = Path("runs"),
    text: Annotated[
        str, typer.Option("--filter", metavar="WORDS", help="Only those whose path, method or data has these words.")
    ] = "",
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="run, comparison, ondemand or fleet.")] = "",
    state: Annotated[str, typer.Option("--state", metavar="STATE", help="running, finished, stopped or damaged.")] = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="FIGURE", help="changed, score, accuracy, loss, done, name or path.")
    ] = "changed",
    all_: Annotated[
        bool, typer.Option("--all", help=f"List all: more than {_SHOWN}, and every job for the same targets.")
    ] = False,
    json_: JsonFlag = False,
) -> None:
    """List runs, comparisons, on-demand jobs and fleets.

    FOLDER is searched with its subfolders (default: runs). Nothing that a folder names is imported.

    Example: covey runs --state stopped
    """
    from covey.job.run_index import RunIndex, filtered
    from covey.job.run_summary import KINDS, STATES

    for flag, value, allowed in (("--kind", kind, ("", *KINDS)), ("--state", state, ("", *STATES))):
        require(value in allowed, f"{flag} is {', '.join(allowed[1:])}, not '{value}'.")
    figures = ("changed", "score", "accuracy", "loss", "done", "name", "path")
    require(sort in figures, f"--sort is {', '.join(figures)}, not '{sort}'.")
    require(folder.is_dir(), f"There is no folder {folder}; runs are written to runs/ unless --out says otherwise.")
    lines = RunIndex(folder).all()
    ascending = sort in ("loss", "name", "path")
    kept = filtered(lines, text=text, kind=kind, state=state, order=sort, descending=not ascending)
    if json_:
        print_json([line.as_mapping() for line in kept])
        return
    chosen = bool(text or kind or state)
    shown = kept if all_ else (kept if chosen else _first_of_each_job(kept))[:_SHOWN]
    display.console.print(_table(shown, folder), highlight=False)
    hidden = len(kept) - len(shown)
    display.say(
        f"{len(kept):,} of {len(lines):,}" + (f"; {hidden:,} more with --all" if hidden else "") + ". "
        "Look at one with: covey show FOLDER"
    )


def _first_of_each_job(lines: "list[RunSummary]") -> "list[RunSummary]":
    """Return the lines without on-demand jobs for the same targets beside one that is listed, as the demo has ten."""
    seen: set[tuple[PurePosixPath, str]] = set()
    kept = []
    for line in lines:
        job = PurePosixPath(line.path).parent, line.name
        if line.kind != "ondemand" or job not in seen:
            kept.append(line)
        if line.kind == "ondemand":
            seen.add(job)
    return kept


def _table(lines: "list[RunSummary]", folder: Path) -> Table:
    from covey.job.run_summary import common_label, score_text

    label = common_label(lines)
    score = label or "score"
    columns: dict[str, Callable[[RunSummary], str]] = {
        "folder": lambda line: str(folder / line.path),
        "kind": lambda line: line.kind,
        "state": lambda line: line.state,
        "method": lambda line: line.name + (f" ({line.on_demand})" if line.on_demand else ""),
        "data": lambda line: ", ".join(filter(None, (line.dataset, line.environment))),
        "rounds": lambda line: f"{line.done:,}/{line.rounds:,}" if line.rounds else "",
        score: lambda line: score_text(line, named=label is None),
        "changed": lambda line: f"{datetime.fromtimestamp(line.changed):%Y-%m-%d %H:%M}",
    }
    if all(line.kind == "run" for line in lines):
        del columns["kind"]
    if display.console.width < _WIDE:
        # Folders and methods need the room; folders that Covey has named tell kind and method.
        del columns["data"], columns["changed"]
        columns["method"] = lambda line: line.name
        if all(_named_by_covey(line) for line in lines):
            columns.pop("kind", None)
            del columns["method"]
    table = Table(box=box.SIMPLE_HEAD)
    cells = {name: [text(line) for line in lines] for name, text in columns.items()}
    others = [name for name in ("method", "data") if name in columns]
    fixed = sum(max(map(len, [name, *cells[name]])) for name in columns if name not in ("folder", *others))
    room = max(display.console.width - fixed - _BESIDE * len(columns) - _NARROWEST * len(others), _NARROWEST)
    cells["folder"] = [_broken(path, room) for path in cells["folder"]]
    longest = max((len(part) for path in cells["folder"] for part in path.split("\n")), default=0)
    for name in columns:
        wide = name in ("folder", "method", "data")
        justify: Literal["left", "right"] = "right" if name in ("rounds", score) else "left"
        least = min(longest, room) if name == "folder" else None
        table.add_column(name, justify=justify, overflow="fold", no_wrap=not wide or name == "folder", min_width=least)
    for row in zip(*(cells[name] for name in columns), strict=True):
        table.add_row(*row)
    return table


def _broken(path: str, width: int) -> str:
    """Return a path on as many lines as it needs, broken behind its slashes and hyphens."""
    broken = [""]
    for name in re.findall(r"[^/]+/?|/", path):
        for part in [name] if len(name) <= width else re.findall(r"[^-]+-*|-+", name):
            if broken[-1] and len(broken[-1]) + len(part) > width:
                broken.append("")
            broken[-1] += part
    return "\n".join(broken)


def _named_by_covey(line: "RunSummary") -> bool:
    """True if the folder's name has the method, or all methods of a comparison."""
    return not line.on_demand and all(name.replace(":", "-") in line.path for name in line.name.split(", "))


def show(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run, a comparison or a job.")],
    json_: JsonFlag = False,
) -> None:
    """Show what a run or a comparison came to, and how it was made.

    Example: covey show runs/mine
    """
    from covey.job.run_index import RunIndex

    line = RunIndex(folder).one(".")
    if line is None:
        raise Refusal(f"{folder} holds no run, comparison, on-demand job or fleet; covey runs FOLDER lists them.")
    require(line.state != "damaged", f"{folder} is damaged: {line.fault}.")
    if line.kind == "run":
        _show_run(folder, line, json_)
    elif line.kind == "comparison" and line.state == "finished":
        _show_comparison(folder, json_)
    elif json_:
        print_json(line.as_mapping())
    else:
        display.console.print(_table([line, *_members(folder, line)], folder), highlight=False)
        if line.on_demand:
            display.say(f"{line.on_demand}.")
        display.say(_next_step(folder, line))


def _members(folder: Path, line: "RunSummary") -> "list[RunSummary]":
    from covey.job.run_index import RunIndex

    index = RunIndex(folder)
    return [found for path in line.runs if (found := index.one(path)) is not None]


def _show_run(folder: Path, line: "RunSummary", json_: bool) -> None:
    from covey.cli.result_tables import show_run
    from covey.core.records import made_by
    from covey.job.result_text import run_summary
    from covey.job.runs import Run

    run = Run.open(folder)
    config = run.config
    if json_:
        print_json(
            {**run_summary(run), "state": line.state, "settings": config.as_mapping(), "command": made_by(folder)}
        )
        return
    local = config.local
    about = [
        ("state", line.state),
        ("data", f"{config.dataset.name}, split by {config.environment.name}, seed {config.seed}"),
        ("clients", f"{config.clients:,}, {config.cohort:,} a round"),
        ("model", config.model.name),
        ("local training", f"{local.epochs} epochs, batches of {local.batch}, rate {local.rate:g}"),
        ("runtime", config.runtime),
    ]
    display.console.print(display.table_of(about), highlight=False)
    if run.metrics:
        show_run(run)
    if command := made_by(folder):
        display.say(f"Made by: {command}")
    display.say(_next_step(folder, line))


def _show_comparison(folder: Path, json_: bool) -> None:
    from covey import Comparison
    from covey.cli.result_tables import show_comparison
    from covey.job.result_text import comparison_summary

    comparison = Comparison.open(folder)
    if json_:
        print_json(comparison_summary(comparison))
    else:
        show_comparison(comparison)


def _next_step(folder: Path, line: "RunSummary") -> str:
    if line.kind == "fleet":
        return f"See its sites with: covey fleet status {folder}"
    if line.state == "running":
        return "It is being written by another process."
    if line.state == "stopped":
        return f"Resume with: covey resume {folder}"
    return f"See it in pictures with: covey report {folder}"


def rm(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders of runs or comparisons.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Remove runs, after a question.

    Only folders that hold a run, a comparison or an on-demand job are removed, and none that is being written.

    Example: covey rm runs/20260101-120000-fedavg
    """
    from covey.job.run_index import RunIndex

    for folder in folders:
        line = None if folder.is_symlink() else RunIndex(folder).one(".")
        if line is None or line.kind == "fleet":
            raise Refusal(f"{folder} holds no run, comparison or on-demand job of its own; nothing was removed.")
        require(line.state != "running", f"{folder} is being written; stop it first. Nothing was removed.")
    if not yes:
        require(sys.stdin.isatty(), "Nothing was removed: say --yes where nobody can be asked.")
        noun = "folder" if len(folders) == 1 else "folders"
        typer.confirm(f"Remove {len(folders)} {noun} ({', '.join(map(str, folders))})?", abort=True, err=True)
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise Refusal(f"{folder} cannot be removed: {error.strerror or error}.") from error
    if json_:
        print_json({"removed": [str(folder) for folder in folders]})
    else:
        display.say(f"Removed {len(folders)}.")
