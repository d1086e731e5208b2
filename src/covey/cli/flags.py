"""Flags that commands share, and the settings that come of them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.config.values import assignment, overlay, read_toml

MethodFlag = Annotated[str | None, typer.Option("--method", help="Method; see 'covey list methods'.")]
SelectorFlag = Annotated[str | None, typer.Option("--selector", help="Selector, instead of a method.")]
AggregatorFlag = Annotated[str | None, typer.Option("--aggregator", help="Aggregator, instead of a method.")]
EnvironmentFlag = Annotated[str | None, typer.Option("--environment", help="Who holds what.")]
DatasetFlag = Annotated[str | None, typer.Option("--dataset", help="Data set.")]
ModelFlag = Annotated[str | None, typer.Option("--model", help="Model.")]
ClientsFlag = Annotated[str | None, typer.Option("--clients", metavar="N", help="Number of clients.")]
CohortFlag = Annotated[
    str | None, typer.Option("--cohort", metavar="N", help="Clients a round: a count, or a fraction such as 0.1.")
]
RoundsFlag = Annotated[str | None, typer.Option("--rounds", metavar="N", help="Rounds to run.")]
SeedFlag = Annotated[str | None, typer.Option("--seed", metavar="N", help="Decides split, initialisation and draws.")]
RuntimeFlag = Annotated[str | None, typer.Option("--runtime", help="What executes the clients' work.")]
WorkersFlag = Annotated[
    str | None,
    typer.Option("--workers", metavar="N", help="Worker processes; 0 is one per core. Never changes a result."),
]
PrecisionFlag = Annotated[str | None, typer.Option("--precision", help="fp32, tf32, bf16 or fp64.")]
DataDirFlag = Annotated[str | None, typer.Option("--data-dir", help="Folder with data sets (or COVEY_DATA).")]
OutFlag = Annotated[Path | None, typer.Option("--out", help="Folder to write; by default one under runs/.")]
ConfigFlag = Annotated[Path | None, typer.Option("--config", help="TOML file with settings; flags win over it.")]
PoisonFlag = Annotated[
    str | None, typer.Option("--poison", metavar="SHARE", help="Share of the clients whose labels are all wrong.")
]
DeviceFlag = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda, for the stacked runtime.")]
MemoryFlag = Annotated[
    str | None,
    typer.Option("--memory-limit", metavar="SIZE", help="Device memory for the stacked runtime, such as 8GiB."),
]
_AGENT_HELP = "Trained agent to begin with, as covey train-agent writes it (aggregator.learn=false keeps it as it is)."
AgentFlag = Annotated[Path | None, typer.Option("--agent", metavar="FILE", help=_AGENT_HELP)]
AgentsFlag = Annotated[list[Path] | None, typer.Option("--agent", metavar="FILE", help=_AGENT_HELP)]
FleetFlag = Annotated[Path | None, typer.Option("--fleet", help="Ask the sites of a live fleet: its folder.")]
SetFlag = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as local.rate=0.1 or environment.alpha=0.5."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def settings(config: Path | None, flags: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """Settings from file, flags and --set; later ones win. --poison is short for altered.poison."""
    given = read_toml(config) if config else {}
    said = {key: value for key, value in flags.items() if value is not None}
    if "poison" in said:
        said["altered"] = {"poison": said.pop("poison")}
    given = overlay(given, said)
    for text in assignments or []:
        given = overlay(given, assignment(text))
    return given


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))
