"""`covey reproduce`: declared here, implemented in `papers/`, which lies beside `src/` in a checkout."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import covey
from covey.cli.flags import DataDirFlag, JsonFlag
from covey.errors import require


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(metavar="PAPER", help="Paper to reproduce; leave it out to see which there are.")
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", metavar="SCALE", help="smoke (seconds on a CPU), short, or paper.")
    ] = "paper",
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="N",
            help="Number of seeds (0, 1, …), or a list such as 3,7 (default: those of the scale).",
        ),
    ] = None,
    environments: Annotated[
        str | None, typer.Option("--environments", metavar="A,B,…", help="Run only these environments (default: all).")
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", metavar="A,B,…", help="Run only these methods (default: all).")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", help="Rounds of every run (default: those of the scale).")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option("--runtime", metavar="NAME", help="stacked or local (default: stacked on a GPU).")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="A,B,…",
            help="Run only table-2, figure-7, … (default: all); 'tables' writes the page alone.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", metavar="M", help="Stop after this many minutes (default: when done); the next call resumes."
        ),
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--results", metavar="DIR", help="Folder of stored results (default: results/).")
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option("--work", metavar="DIR", help="Folder of unfinished runs (default: runs/reproduce/)."),
    ] = None,
    pages: Annotated[
        Path | None, typer.Option("--pages", metavar="DIR", help="Folder of the page (default: docs/results/).")
    ] = None,
    data_dir: DataDirFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Reproduce a paper's tables and figures.

    Without PAPER, list the papers, what they cost and how much is done. Runs that were stopped resume. Needs a checkout
    of Covey's repository.

    Example: covey reproduce fedacs --scale smoke
    """
    with _checkout() as command:
        command(
            paper=paper,
            scale=scale,
            seeds=seeds,
            environments=environments,
            methods=methods,
            rounds=rounds,
            runtime=runtime,
            only=only,
            minutes=minutes,
            results=results,
            work=work,
            pages=pages,
            data_dir=data_dir,
            json_=json_,
        )


@contextmanager
def _checkout() -> Iterator[Callable[..., None]]:
    """Yield the implementation in `papers/`, with the checkout's root on the path."""
    root = Path(covey.__file__).resolve().parents[2]
    require(
        (root / "papers" / "command.py").is_file(),
        "covey reproduce needs a checkout of Covey's repository, whose folder papers/ holds the reproductions, and "
        "this is an installation without it.",
    )
    sys.path.insert(0, str(root))
    try:
        yield import_module("papers.command").reproduce_command
    finally:
        sys.path.remove(str(root))
