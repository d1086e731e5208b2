"""`covey report`, `evaluate` and `export` for finished runs, and `covey download` for data sets."""

import os
from pathlib import Path
from typing import Annotated

import typer

import covey
from covey.cli import terminal as display
from covey.cli.flags import DataDirFlag, JsonFlag, TrustFlag, print_json
from covey.core.printable_text import printable, printable_lines
from covey.errors import Refusal, require
from covey.storage import replace_file

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, or of an on-demand job with one target.")
]


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs or comparisons.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write (default: report.html in the folder).")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="DIR", help="Also write the metrics for TensorBoard here.")
    ] = None,
    trust: TrustFlag = False,
    json_: JsonFlag = False,
) -> None:
    """Write an HTML page about runs; it opens offline.

    RUN is the folder of a run, a comparison or an on-demand job. --trust matters to on-demand jobs alone, whose models
    are scored again.

    Example: covey report runs/demo/skew
    """
    from covey.cli.on_demand_command import redraw
    from covey.job.on_demand import is_ondemand
    from covey.page.tensorboard import tensorboard as write_tensorboard

    on_demand = any(is_ondemand(folder) for folder in folders)
    page = redraw(folders, out, trust) if on_demand else covey.report(folders, out)
    events = 0
    if tensorboard is not None:
        events = sum(write_tensorboard(folder, tensorboard) for folder in folders)
    if json_:
        print_json({"file": str(page), "tensorboard_values": events})
    else:
        display.say(f"Report: {page}")


def one_run(folder: Path) -> Path:
    """Return a run's folder; of an on-demand job, that of its only target, and refuse one with several."""
    from covey.job.on_demand import is_ondemand
    from covey.job.on_demand.on_demand_folder import read_job, run_folders

    if not is_ondemand(folder):
        return folder
    targets = read_job(folder)["plan"]["targets"]
    places = run_folders(folder, {"targets": targets, "continued": False})
    named = [f"{place} ({target['name']})" for place, target in zip(places, targets, strict=True)]
    more = f" and {len(named) - 10} more" if len(named) > 10 else ""
    require(
        len(places) == 1, f"{folder} holds models for {len(places)} targets; name one: {', '.join(named[:10])}{more}."
    )
    return places[0]


def evaluate(
    folder: RunArgument,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="MIX", help="Also score on a class mix, such as '0=0.5,3=0.5'. Repeatable."),
    ] = None,
    target_csv: Annotated[
        list[Path] | None,
        typer.Option("--target-csv", metavar="FILE", help="Also score on the mix of a file of labels. Repeatable."),
    ] = None,
    trust: TrustFlag = False,
    json_: JsonFlag = False,
) -> None:
    """Score a run's model per class and on class mixes.

    Example: covey evaluate runs/mine --target '0=0.5,3=0.5'
    """
    from covey.cli.result_tables import show_evaluation

    result = covey.Run.open(one_run(folder), trust=trust).evaluate([*(target or []), *(target_csv or [])])
    if json_:
        print_json(result)
    else:
        show_evaluation(result)


def predict(
    folder: RunArgument,
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="New rows: a CSV, Parquet or Feather file.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="CSV file to write (default: print it).")
    ] = None,
    client: Annotated[
        int | None, typer.Option("--client", metavar="N", help="Use this client's model, if each has its own.")
    ] = None,
    trust: TrustFlag = False,
    json_: JsonFlag = False,
) -> None:
    """Score new rows of a table with a run's model.

    The rows need the columns that the run trained on, in any order; the label is not needed. Missing values and words
    are treated as in training. A line is written for each row, in their order.

    Example: covey predict runs/mine --data new.csv --out scored.csv
    """
    from covey.job.prediction import answers_csv

    answers = covey.Run.open(one_run(folder), trust=trust).predict(data, client)
    rows = len(next(iter(answers.values())))
    if out is not None:
        try:
            replace_file(out, answers_csv(answers).encode())
        except OSError as error:
            raise Refusal(f"The file {out} cannot be written: {error.strerror or error}.") from error
    if json_:
        print_json({"rows": rows, **({"file": str(out)} if out else {"answers": answers})})
    elif out is not None:
        display.say(f"{out}: {rows:,} rows")
    else:
        print(printable_lines(answers_csv(answers)), end="")


def export(
    folder: RunArgument,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="File to write (default: model.safetensors in the run folder)."),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="safetensors, onnx, torchscript or state-dict (default: by the ending of the file).",
        ),
    ] = None,
    client: Annotated[
        int | None, typer.Option("--client", metavar="N", help="Export this client's model, if each has its own.")
    ] = None,
    trust: TrustFlag = False,
    json_: JsonFlag = False,
) -> None:
    """Write a run's model to a file, and a card about it beside it.

    The ending says the format: .safetensors, .onnx, .ts (TorchScript) or .pt (a state dict).

    ONNX and TorchScript take samples as they are stored.
    They return a logit for each class, or the targets of a regression in their own unit.

    Example: covey export runs/mine --to model.onnx
    """
    from covey.job.model_export import FORMATS

    folder = one_run(folder)
    ending = FORMATS.get(format_ or "", ".safetensors")
    result = covey.Run.open(folder, trust=trust).export(to or folder / f"model{ending}", client, format_)
    if json_:
        print_json(result)
    else:
        print(printable(f"{result['file']}: {result['parameters']:,} parameters, {result['bytes']:,} bytes"))
        print(printable(f"{result['card']}: what it was trained on, and how well it does"))


def download(
    name: Annotated[str, typer.Argument(metavar="NAME", help="mnist, fashion-mnist, cifar10 or cifar100.")],
    data_dir: DataDirFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Download a data set from its official source.

    NAME is mnist, fashion-mnist, cifar10 or cifar100. Files are checked, and a download that was stopped resumes.
    """
    from covey.data import download as fetch

    folder = data_dir or os.environ.get("COVEY_DATA")
    if folder is None:
        raise Refusal("Say where data sets are kept: --data-dir DIR, or the environment variable COVEY_DATA.")
    with display.download_progress() as progress:
        place = fetch(name, Path(folder), progress=progress)
    if json_:
        print_json({"name": name, "folder": str(place)})
    else:
        display.say(f"{name} is in {place}")
