"""Flags that commands share, and the settings they make."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.config.values import assignment, overlay, read_toml
from covey.errors import require

_EXECUTION = "Execution"
"""Help panel of the flags that say where and how fast a run computes."""


def _option(flag: str, metavar: str, help_: str, panel: str | None = None) -> Any:
    return typer.Option(flag, metavar=metavar, help=help_, rich_help_panel=panel)


MethodFlag = Annotated[
    str | None, _option("--method", "NAME", "Method to run (default: fedavg); see 'covey list methods'.")
]
SelectorFlag = Annotated[
    str | None, _option("--selector", "NAME", "Select clients this way, instead of naming a method (default: uniform).")
]
AggregatorFlag = Annotated[
    str | None,
    _option("--aggregator", "NAME", "Aggregate replies this way, instead of naming a method (default: average)."),
]
TrainerFlag = Annotated[
    str | None, _option("--trainer", "NAME", "Have clients train this way (default: the method's, or sgd).")
]
EnvironmentFlag = Annotated[
    str | None,
    _option("--environment", "NAME", "Split the data this way (default: uniform); see 'covey list environments'."),
]
DatasetFlag = Annotated[
    str | None,
    _option("--dataset", "NAME", "Data set (default: digits), or a file such as x.csv; see 'covey list datasets'."),
]
TaskFlag = Annotated[
    str | None,
    _option("--task", "NAME", "What models learn (default: auto, from the labels); see 'covey list tasks'."),
]
ModelFlag = Annotated[str | None, _option("--model", "NAME", "Model (default: mlp); see 'covey list models'.")]
ClientsFlag = Annotated[str | None, _option("--clients", "N", "Number of clients (default: 60).")]
CohortFlag = Annotated[
    str | None, _option("--cohort", "N", "Clients per round: a count, or a fraction of all (default: 0.1).")
]
RoundsFlag = Annotated[str | None, _option("--rounds", "N", "Rounds to run (default: 50).")]
SeedFlag = Annotated[
    str | None, _option("--seed", "N", "Seed of the split, the initial model and every draw (default: 0).")
]
PoisonFlag = Annotated[
    str | None, _option("--poison", "SHARE", "Share of the clients whose labels are all wrong (default: 0).")
]
_AGENT = _option(
    "--agent",
    "FILE",
    "Start from an agent of 'covey train-agent'; aggregator.learn=false stops it from learning (default: a new one).",
)
AgentFlag = Annotated[Path | None, _AGENT]
AgentsFlag = Annotated[list[Path] | None, _AGENT]
RuntimeFlag = Annotated[
    str | None,
    _option(
        "--runtime",
        "NAME",
        "Execute the clients' work on this runtime (default: auto, stacked on a GPU, else local).",
        _EXECUTION,
    ),
]
WorkersFlag = Annotated[
    str | None,
    _option("--workers", "N", "Worker processes (default: 0, one per core). Never changes a result.", _EXECUTION),
]
PrecisionFlag = Annotated[
    str | None,
    _option("--precision", "NAME", "Compute in fp32, tf32, bf16 or fp64 (default: fp32).", _EXECUTION),
]
DeviceFlag = Annotated[
    str | None,
    _option("--device", "NAME", "Run the stacked runtime on auto, cpu or cuda (default: auto).", _EXECUTION),
]
MemoryFlag = Annotated[
    str | None,
    _option(
        "--memory-limit",
        "SIZE",
        "Limit the stacked runtime's device memory, such as 8GiB (default: all of it).",
        _EXECUTION,
    ),
]
HostMemoryFlag = Annotated[
    str | None,
    _option(
        "--host-memory-limit",
        "SIZE",
        "Limit the memory for samples and for what clients keep (default: none).",
        _EXECUTION,
    ),
]
FleetFlag = Annotated[
    Path | None, _option("--fleet", "DIR", "Ask the sites of a live fleet: the fleet's folder.", _EXECUTION)
]
DataDirFlag = Annotated[
    str | None, _option("--data-dir", "DIR", "Folder with data sets (default: the variable COVEY_DATA).")
]
OutFlag = Annotated[Path | None, _option("--out", "DIR", "Folder to write (default: a new one under runs/).")]
ConfigFlag = Annotated[Path | None, _option("--config", "FILE", "Read settings from a TOML file; flags override it.")]
SetFlag = Annotated[
    list[str] | None,
    _option("--set", "KEY=VALUE", "Set any option, such as local.rate=0.1 or environment.alpha=0.5. Repeatable."),
]
AttackFlag = Annotated[
    str | None,
    _option(
        "--attack",
        "KIND",
        "Hostile clients: flip, scale, count, count-flip, noise, collude, lie or labels (default: none).",
    ),
]
AttackersFlag = Annotated[
    str | None, _option("--attackers", "SHARE", "Share of the clients that are hostile (default: 0.1).")
]
TrackFlag = Annotated[
    list[str] | None,
    _option(
        "--track",
        "NAME",
        "Follow with tensorboard, mlflow or wandb while it runs (default: none). Repeatable.",
        _EXECUTION,
    ),
]
TrustFlag = Annotated[
    bool,
    typer.Option("--trust", help="Import and run code that the folder names (package.module:name)."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def settings(config: Path | None, flags: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """Return the settings of a file, the flags and --set; later ones win. --poison is short for altered.poison."""
    given = read_toml(config) if config else {}
    chosen = {key: value for key, value in flags.items() if value is not None}
    if "poison" in chosen:
        chosen["altered"] = {"poison": chosen.pop("poison")}
    require("attackers" not in chosen or "attack" in chosen, "--attackers goes with --attack, such as --attack flip.")
    if "attack" in chosen:
        attackers = {"attackers": chosen.pop("attackers")} if "attackers" in chosen else {}
        chosen["attack"] = {"kind": chosen["attack"], **attackers}
    given = overlay(given, chosen)
    for text in assignments or []:
        given = overlay(given, assignment(text))
    return given


def print_json(value: object) -> None:
    """Print a result for programs."""
    print(json.dumps(value, indent=2, allow_nan=False))
