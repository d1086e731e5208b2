"""`covey report`, `evaluate`, `export` and `download`: what is made of finished runs, and data sets."""

import os
from pathlib import Path
from typing import Annotated

import typer

from covey.cli import terminal as display
from covey.cli.flags import DataDirFlag, JsonFlag, print_json
from covey.cli.on_demand_command import draw_again
from covey.data import download as fetch
from covey.errors import Refusal
from covey.job.on_demand import is_ondemand
from covey.job.runs import Run
from covey.page.run_report import report as write_report
from covey.page.tensorboard import tensorboard as write_tensorboard


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of comparisons.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; else report.html in the folder.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Also write the metrics for TensorBoard to this folder.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Write one page about runs or a comparison that opens offline in a browser."""
    jobs = any(is_ondemand(folder) for folder in folders)
    page = draw_again(folders, out) if jobs else write_report(folders, out)
    events = 0
    if tensorboard is not None:
        events = sum(write_tensorboard(folder, tensorboard) for folder in folders)
    if json_:
        print_json({"file": str(page), "tensorboard_values": events})
    else:
        display.say(f"Report: {page}")


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="MIX", help="Class mix to score on too, as for covey ondemand. Repeatable."),
    ] = None,
    target_csv: Annotated[
        list[Path] | None, typer.Option("--target-csv", help="File of labels whose mix to score on. Repeatable.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Score a run's model on the test set again, class by class, and on class mixes."""
    result = Run.open(folder).evaluate([*(target or []), *(target_csv or [])])
    if json_:
        print_json(result)
    else:
        display.evaluation(result)


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="File to write; by default model.safetensors in the run.")
    ] = None,
    client: Annotated[int | None, typer.Option("--client", help="Whose model, where every client has its own.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Write a run's model as a safetensors file with named tensors."""
    result = Run.open(folder).export(to or folder / "model.safetensors", client)
    if json_:
        print_json(result)
    else:
        print(f"{result['file']}: {result['parameters']:,} parameters, {result['bytes']:,} bytes")


def download(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10 or cifar100.")],
    data_dir: DataDirFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Fetch a data set from its official place, checked and resumable."""
    folder = data_dir or os.environ.get("COVEY_DATA")
    if folder is None:
        raise Refusal("Say where data sets are kept: --data-dir DIR, or the environment variable COVEY_DATA.")
    with display.download_progress() as progress:
        place = fetch(name, Path(folder), progress=progress)
    if json_:
        print_json({"name": name, "folder": str(place)})
    else:
        display.say(f"{name} is in {place}")
