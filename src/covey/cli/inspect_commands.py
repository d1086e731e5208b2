"""`covey describe` and `analyze`: look at a federation before anything trains."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import covey
from covey.cli import terminal as display
from covey.cli.flags import (
    ClientsFlag,
    ConfigFlag,
    DataDirFlag,
    DatasetFlag,
    DeviceFlag,
    EnvironmentFlag,
    FleetFlag,
    JsonFlag,
    ModelFlag,
    PoisonFlag,
    RuntimeFlag,
    SeedFlag,
    SetFlag,
    TaskFlag,
    TrustFlag,
    print_json,
    settings,
)
from covey.config.values import overlay
from covey.core.printable_text import printable
from covey.job.progress_display import run_progress
from covey.registry import coerce

DrawFlag = Annotated[Path | None, typer.Option("--draw", metavar="FILE", help="Also write an HTML page.")]

_ROUNDS = 3
"""Default of `covey analyze --rounds`."""


def describe(
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
    task: TaskFlag = None,
    clients: ClientsFlag = None,
    seed: SeedFlag = None,
    data_dir: DataDirFlag = None,
    poison: PoisonFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    draw: DrawFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Show each client's class mix, size and skew.

    Example: covey describe --environment dirichlet --set environment.alpha=0.1
    """
    flags = {
        "environment": environment,
        "dataset": dataset,
        "task": task,
        "clients": clients,
        "seed": seed,
        "data_dir": data_dir,
        "poison": poison,
    }
    description = covey.describe(covey.Config.of(settings(config, flags, set_)))
    if json_:
        print_json(description.as_mapping())
    else:
        description.show(display.console)
    if draw is not None:
        print(printable(f"Drawn: {description.draw(draw)}"), file=sys.stderr)


def analyze(
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
    task: TaskFlag = None,
    model: ModelFlag = None,
    clients: ClientsFlag = None,
    seed: SeedFlag = None,
    insight: Annotated[
        str,
        typer.Option("--insight", metavar="NAME", help="What clients send: head, full, or package.module:function."),
    ] = "head",
    rounds: Annotated[
        str | None,
        typer.Option(
            "--rounds",
            metavar="N",
            help=f"Insight rounds, each from a new model (default: {_ROUNDS}; 1 with --from).",
        ),
    ] = None,
    level: Annotated[
        str, typer.Option("--level", metavar="P", help="Probability of calling any client odd if all were alike.")
    ] = "0.05",
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Use the model and the federation of a run.")
    ] = None,
    runtime: RuntimeFlag = None,
    device: DeviceFlag = None,
    fleet: FleetFlag = None,
    data_dir: DataDirFlag = None,
    poison: PoisonFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write a CSV file with a line per client.")
    ] = None,
    draw: DrawFlag = None,
    trust: TrustFlag = False,
    json_: JsonFlag = False,
) -> None:
    """Estimate each client's skew without seeing its data.

    Clients send insights for a few rounds; no client trains. Clients with an odd class mix are flagged.

    Example: covey analyze --environment dirichlet --clients 100
    """
    from covey.cli.fleet_commands import fleet_settings
    from covey.cli.result_tables import show_analysis

    flags = {
        "environment": environment,
        "dataset": dataset,
        "task": task,
        "model": model,
        "clients": clients,
        "seed": seed,
        "runtime": runtime,
        "device": device,
        "data_dir": data_dir,
        "poison": poison,
    }
    count = None if rounds is None else coerce(rounds, int, "rounds")
    live = {} if fleet is None else fleet_settings(fleet, trust)
    with run_progress("analyze", count or (1 if from_ else _ROUNDS), 0) as on_round:
        analysis = covey.analyze(
            overlay(live, settings(config, flags, set_)),
            model_of=from_,
            insight=insight,
            rounds=count,
            level=coerce(level, float, "level"),
            fleet=fleet,
            trust=trust,
            on_round=on_round,
        )
    if json_:
        print_json(analysis.as_mapping())
    else:
        show_analysis(analysis)
    if csv is not None:
        print(printable(f"Written: {analysis.write_csv(csv)}"), file=sys.stderr)
    if draw is not None:
        print(printable(f"Drawn: {analysis.draw(draw)}"), file=sys.stderr)
