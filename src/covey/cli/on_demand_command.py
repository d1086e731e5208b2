"""`covey ondemand`: a thin layer over `covey.ondemand`."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.table import Table

from covey.cli import terminal as display
from covey.cli.flags import DeviceFlag, JsonFlag, OutFlag, RuntimeFlag, WorkersFlag, print_json, settings
from covey.cli.fleet_commands import fleet_settings
from covey.data.class_mix import Target
from covey.errors import Refusal
from covey.job.on_demand import ROUNDS, ComposedTargets, OnDemand, read_ondemand, resume_ondemand
from covey.job.on_demand import ondemand as run_ondemand
from covey.job.on_demand.class_shares import Estimator
from covey.job.on_demand.composition import Pairing
from covey.job.result_text import percent
from covey.page.on_demand_page import PRIVACY_CAPTION, PRIVACY_COLUMNS, job_rows, privacy_rows
from covey.registry import coerce

_SHOWN = 12
"""Targets whose composition is shown in full."""

_CLASSES = 12
"""Classes of a mix that are shown."""


def ondemand(
    base: Annotated[Path, typer.Argument(metavar="BASE_RUN", help="Folder of the base run.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", metavar="MIX", help="Class mix such as '0=0.5,3=0.3,7=0.2'; td1, td2, td3; local:7. Repeatable."
        ),
    ] = None,
    target_csv: Annotated[
        list[Path] | None, typer.Option("--target-csv", help="File of labels whose mix is the target. Repeatable.")
    ] = None,
    estimator: Annotated[
        str,
        typer.Option(
            "--estimator", help="Where class shares come from: learned, analytic, analytic-as-is, or ground-truth."
        ),
    ] = "learned",
    rounds: Annotated[str, typer.Option("--rounds", metavar="N", help="Rounds of fine-tuning.")] = str(ROUNDS),
    pairing: Annotated[
        str, typer.Option("--pairing", help="Columns and weights: unscaled, scaled_rn, or scaled_r (the authors').")
    ] = "unscaled",
    survey: Annotated[
        bool, typer.Option("--survey", help="Ask all clients for a fresh estimate first (learned).")
    ] = False,
    insight_dp: Annotated[
        str | None,
        typer.Option("--insight-dp", metavar="EPSILON,DELTA", help="Noise on what clients are asked for (analytic)."),
    ] = None,
    continued: Annotated[
        bool, typer.Option("--continued", help="Also go on with the base run, to compare with.")
    ] = False,
    runtime: RuntimeFlag = None,
    workers: WorkersFlag = None,
    device: DeviceFlag = None,
    fleet: Annotated[
        Path | None, typer.Option("--fleet", help="Ask and train the sites of a live fleet: its folder.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as local.rate=0.01.")
    ] = None,
    out: OutFlag = None,
    json_: JsonFlag = False,
) -> None:
    """A model for the class mix you ask for: fine-tune a run's model on clients that make that mix."""
    targets: list[Target] = [*(target or []), *(target_csv or [])]
    if not targets:
        raise Refusal("Say what mix the model is for: --target '0=0.5,3=0.5', or --target-csv FILE with labels.")
    if fleet is not None:
        fleet_settings(fleet)
        runtime = "fleet"
    given = settings(None, {"runtime": runtime, "workers": workers, "device": device}, set_)
    for key in given:
        if key in signature(run_ondemand).parameters:
            raise Refusal(f"{key} has a flag of its own: --{key.replace('_', '-')}")
    with display.comparison_progress() as (on_run, on_round):
        job = run_ondemand(
            base,
            targets,
            estimator=coerce(estimator, Estimator, "estimator"),
            rounds=coerce(rounds, int, "rounds"),
            pairing=coerce(pairing, Pairing, "pairing"),
            survey=survey,
            insight_dp=insight_dp,
            continued=continued,
            out=out,
            fleet=fleet,
            on_composed=None if json_ else show_composed,
            on_run=on_run,
            on_round=on_round,
            **given,
        )
    tell(job, json_)


def go_on(folder: Path, json_: bool, fleet: Path | None = None) -> None:
    """`covey resume` of a job."""
    with display.comparison_progress() as (on_run, on_round):
        job = resume_ondemand(
            folder, on_composed=None if json_ else show_composed, on_run=on_run, on_round=on_round, fleet=fleet
        )
    tell(job, json_)


def draw_again(folders: Sequence[Path], out: Path | None) -> Path:
    """`covey report` of a job: its page once more, from what the folder holds."""
    if len(folders) > 1:
        raise Refusal("An on-demand job has a page of its own: report on it alone, or on the runs inside it.")
    path = out or folders[0]
    return read_ondemand(folders[0]).draw(path / "report.html" if path.is_dir() else path)


def tell(job: OnDemand, json_: bool) -> None:
    """What came of a job; the page is written where it can be."""
    page: Path | None = None
    why = ""
    try:
        page = job.draw(job.folder / "report.html")
    except Refusal as refusal:
        why = str(refusal)
    if json_:
        print_json({**job.as_mapping(), "report": None if page is None else str(page)})
        return
    show(job)
    display.say(f"Report: {page}" if page else f"No report: {why}")


def show_composed(composed: ComposedTargets) -> None:
    """The composed mix beside the target, and the chosen clients with their ratios."""
    for note in composed.notes:
        display.say(note)
    for wish, composition, notes in composed.targets[:_SHOWN]:
        weight = np.maximum(wish.mix, composition.mix)
        most = np.sort(np.argsort(-weight, kind="stable")[:_CLASSES])
        table = Table(box=box.SIMPLE_HEAD, title=f"Target {wish.name}")
        table.add_column("class")
        for name in ("target", "composed"):
            table.add_column(name, justify="right", no_wrap=True)
        for label in most[weight[most] > 0].tolist():
            table.add_row(composed.class_names[label], f"{wish.mix[label]:.1%}", f"{composition.mix[label]:.1%}")
        display.console.print(table, highlight=False)
        order = np.argsort(-composition.ratios, kind="stable").tolist()
        who, ratios = composition.clients, composition.ratios
        chosen = [f"{composed.client_name(int(who[at]))} ({ratios[at]:.1%})" for at in order]
        display.say(
            f"{len(chosen)} of {composed.clients} clients, n·MAE {composition.distance:.2f} from the target: "
            + ", ".join(chosen)
        )
        for note in notes:
            display.say(note)
    if len(composed.targets) > _SHOWN:
        display.say(f"{len(composed.targets) - _SHOWN} more targets are not shown.")


def show(job: OnDemand) -> None:
    """What each target gained."""
    summary = Table(box=box.SIMPLE, show_header=False)
    for name, figure in job_rows(job):
        summary.add_row(name, figure)
    display.console.print(summary, highlight=False)
    if job.composed.privacy:
        display.console.print(_privacy_table(job), highlight=False)
    table = Table(box=box.SIMPLE_HEAD, title="Accuracy on the target")
    table.add_column("target")
    for name in ("at the end", "best", "on its test set"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in job.tailored[:_SHOWN]:
        table.add_section()
        table.add_row(one.wanted.name, "", "", f"{one.test_samples:,} samples")
        models = [("base model", one.base), (f"on demand, {len(one.composition.clients)} clients", one.scored)]
        if one.continued is not None:
            models.insert(1, ("base run gone on with", one.continued))
        for name, scored in models:
            table.add_row(f"  {name}", percent(scored.accuracy), percent(scored.peak), percent(scored.tested))
    display.console.print(table, highlight=False)
    display.say(job.verdict)
    for one in job.tailored[:_SHOWN]:
        display.say(f"Model: {one.model}")
    if len(job.tailored) > _SHOWN:
        display.say(
            f"and {len(job.tailored) - _SHOWN} more targets; all models are in {job.folder}/target-*, and all figures "
            f"are told by: covey resume {job.folder} --json"
        )


def _privacy_table(job: OnDemand) -> Table:
    """Accuracy of estimated class shares against ε."""
    table = Table(box=box.SIMPLE_HEAD, title=PRIVACY_CAPTION)
    for name in PRIVACY_COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in privacy_rows(job):
        table.add_row(*row)
    return table
