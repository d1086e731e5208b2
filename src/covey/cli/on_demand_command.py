"""`covey ondemand`, and its jobs in `covey resume` and `covey report`."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import covey
from covey.cli import terminal as display
from covey.cli.flags import (
    DeviceFlag,
    FleetFlag,
    JsonFlag,
    OutFlag,
    RuntimeFlag,
    SetFlag,
    TrustFlag,
    WorkersFlag,
    print_json,
    settings,
)
from covey.errors import Refusal
from covey.job.progress_display import comparison_progress
from covey.registry import coerce

if TYPE_CHECKING:
    from covey.data.class_mix import Target
    from covey.job.on_demand import OnDemand

_ROUNDS = 50
"""Default of --rounds."""


def ondemand(
    base: Annotated[Path, typer.Argument(metavar="BASE_RUN", help="Folder of the base run.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="MIX",
            help="Class mix: '0=0.5,3=0.3,7=0.2', td1, td2, td3, or local:NAME for a client's. Repeatable.",
        ),
    ] = None,
    target_csv: Annotated[
        list[Path] | None,
        typer.Option("--target-csv", metavar="FILE", help="Class mix of a file of labels. Repeatable."),
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            "--estimator",
            metavar="NAME",
            help="Estimate class shares: learned, analytic, analytic-as-is, or ground-truth (default: learned where "
            "the base run keeps estimates, else analytic).",
        ),
    ] = None,
    rounds: Annotated[str, typer.Option("--rounds", metavar="N", help="Rounds of fine-tuning.")] = str(_ROUNDS),
    pairing: Annotated[
        str,
        typer.Option(
            "--pairing", metavar="NAME", help="Weigh clients: unscaled, scaled_rn, or scaled_r (the authors')."
        ),
    ] = "unscaled",
    survey: Annotated[
        bool, typer.Option("--survey", help="Ask all clients for a fresh estimate first (learned).")
    ] = False,
    insight_dp: Annotated[
        str | None,
        typer.Option(
            "--insight-dp", metavar="EPSILON,DELTA", help="Add noise to what clients send (analytic; default: none)."
        ),
    ] = None,
    continued: Annotated[bool, typer.Option("--continued", help="Also continue the base run, for comparison.")] = False,
    without: Annotated[
        str,
        typer.Option(
            "--without", metavar="NAME,NAME", help="Clients, by name or number, to compose no mix of (default: none)."
        ),
    ] = "",
    runtime: RuntimeFlag = None,
    workers: WorkersFlag = None,
    device: DeviceFlag = None,
    fleet: FleetFlag = None,
    set_: SetFlag = None,
    out: OutFlag = None,
    trust: TrustFlag = False,
    json_: JsonFlag = False,
) -> None:
    """Fine-tune a run's model for a class mix.

    It trains on clients whose data together make up the mix. Settings not given are those of the base run.

    Example: covey ondemand runs/mine --target '0=0.5,3=0.3,7=0.2'
    """
    from covey.cli.fleet_commands import fleet_settings
    from covey.cli.on_demand_tables import show_composed
    from covey.job.on_demand.class_shares import Estimator
    from covey.job.on_demand.composition import Pairing

    targets: list[Target] = [*(target or []), *(target_csv or [])]
    if not targets:
        raise Refusal("Say what mix the model is for: --target '0=0.5,3=0.5', or --target-csv FILE with labels.")
    if fleet is not None:
        fleet_settings(fleet, trust)
        runtime = "fleet"
    given = settings(None, {"runtime": runtime, "workers": workers, "device": device}, set_)
    for key in given:
        if key in signature(covey.ondemand).parameters:
            raise Refusal(f"{key} has a flag of its own: --{key.replace('_', '-')}")
    with comparison_progress() as (on_run, on_round):
        job = covey.ondemand(
            base,
            targets,
            estimator=None if estimator is None else coerce(estimator, Estimator, "estimator"),
            rounds=coerce(rounds, int, "rounds"),
            pairing=coerce(pairing, Pairing, "pairing"),
            survey=survey,
            insight_dp=insight_dp,
            continued=continued,
            without=without,
            out=out,
            fleet=fleet,
            trust=trust,
            on_composed=None if json_ else show_composed,
            on_run=on_run,
            on_round=on_round,
            **given,
        )
    _show(job, json_)


def resume_job(folder: Path, json_: bool, fleet: Path | None = None, trust: bool = False) -> None:
    """Resume a job, for `covey resume`."""
    from covey.cli.on_demand_tables import show_composed
    from covey.job.on_demand import resume_ondemand

    with comparison_progress() as (on_run, on_round):
        job = resume_ondemand(
            folder,
            on_composed=None if json_ else show_composed,
            on_run=on_run,
            on_round=on_round,
            fleet=fleet,
            trust=trust,
        )
    _show(job, json_)


def redraw(folders: Sequence[Path], out: Path | None, trust: bool = False) -> Path:
    """Write a job's page again from its folder, for `covey report`."""
    from covey.job.on_demand import read_ondemand

    if len(folders) > 1:
        raise Refusal("An on-demand job has a page of its own: report on it alone, or on the runs inside it.")
    path = out or folders[0]
    return read_ondemand(folders[0], trust=trust).draw(path / "report.html" if path.is_dir() else path)


def _show(job: "OnDemand", json_: bool) -> None:
    """Print a job's result, and write its page if plotly is installed."""
    from covey.cli.on_demand_tables import show_job

    page: Path | None = None
    reason = ""
    try:
        page = job.draw(job.folder / "report.html")
    except Refusal as refusal:
        reason = str(refusal)
    if json_:
        print_json({**job.as_mapping(), "report": None if page is None else str(page)})
        return
    show_job(job)
    display.say(f"Report: {page}" if page else f"No report: {reason}")
