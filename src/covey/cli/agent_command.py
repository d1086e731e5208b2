"""`covey train-agent`, and the --agent flag of other commands."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.cli import terminal as display
from covey.cli.flags import (
    AggregatorFlag,
    ClientsFlag,
    CohortFlag,
    ConfigFlag,
    DataDirFlag,
    DatasetFlag,
    EnvironmentFlag,
    JsonFlag,
    ModelFlag,
    RuntimeFlag,
    SeedFlag,
    SelectorFlag,
    SetFlag,
    TrainerFlag,
    WorkersFlag,
    print_json,
    settings,
)
from covey.config.recipe import recipe_of
from covey.config.schema import Config
from covey.config.values import chosen, overlay
from covey.errors import Refusal, require
from covey.job.progress_display import run_progress
from covey.registries import aggregators

_ROUNDS, _EPOCHS, _ACTOR_RATE = 100, 50, 1e-3
"""Defaults of --rounds, --epochs and --actor-rate."""


def with_agent(given: dict[str, Any], agent: Path | None) -> dict[str, Any]:
    """Return the settings of a run that starts from a trained agent; the agent's method is the default one."""
    if agent is None:
        return given
    from covey.aggregation.agent_file import agent_kind

    kind = agent_kind(agent)
    # The file is data: what it names is not imported.
    require(kind in aggregators.names(), f"--agent {agent} is for the aggregator '{kind}', which is not installed.")
    named, _ = chosen("aggregator", given.get("aggregator"))
    if named is None and "method" not in given:
        given = overlay(given, {"aggregator" if "selector" in given else "method": kind})
    config = Config.of(given)
    if config.aggregator is None or "agent" not in config.aggregator.options:
        raise Refusal(f"--agent {agent} is for the aggregator '{kind}', and '{config.method}' has another one.")
    return overlay(given, {"aggregator": {"agent": str(agent.resolve())}})


def agents_for(methods: Sequence[str], files: Sequence[Path]) -> dict[str, str]:
    """Return aggregator → agent file; each file must fit one of the methods."""
    if not files:
        return {}
    from covey.aggregation.agent_file import agent_kind

    agents: dict[str, str] = {}
    for file in files:
        kind = agent_kind(file)
        wanting = [name for name in methods if recipe_of(name).aggregator == kind]
        require(
            bool(wanting), f"--agent {file} is for the aggregator '{kind}', which none of {', '.join(methods)} has."
        )
        require(kind not in agents, f"There are two agents for '{kind}': {agents.get(kind)} and {file}.")
        agents[kind] = str(file.resolve())
    return agents


def train_agent(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write, such as agent.safetensors.")],
    method: Annotated[
        str | None, typer.Option("--method", metavar="NAME", help="Method with an agent: feddrl or feddrl-set.")
    ] = None,
    selector: SelectorFlag = None,
    aggregator: AggregatorFlag = None,
    trainer: TrainerFlag = None,
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
    model: ModelFlag = None,
    clients: ClientsFlag = None,
    cohort: CohortFlag = None,
    rounds: Annotated[
        str | None,
        typer.Option("--rounds", metavar="N", help=f"Rounds that each agent collects for (default: {_ROUNDS})."),
    ] = None,
    agents: Annotated[
        int, typer.Option("--agents", metavar="N", help="Agents that collect experiences at the same time.")
    ] = 2,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", help="Passes of the main agent over all experiences.")
    ] = _EPOCHS,
    actor_rate: Annotated[
        float,
        typer.Option(
            "--actor-rate", metavar="RATE", help="Adam's rate for the main agent's actor; the paper's is 1e-4."
        ),
    ] = _ACTOR_RATE,
    seed: SeedFlag = None,
    runtime: RuntimeFlag = None,
    workers: WorkersFlag = None,
    data_dir: DataDirFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Train FedDRL's agent in two stages, for --agent FILE.

    Several agents collect experiences online; a main agent is then trained on all of them.

    Example: covey train-agent --method feddrl --environment clusters --out agent.safetensors
    """
    from covey.job.agent_training import Offline
    from covey.job.agent_training import train_agent as train

    flags = {
        "method": method,
        "selector": selector,
        "aggregator": aggregator,
        "trainer": trainer,
        "environment": environment,
        "dataset": dataset,
        "model": model,
        "clients": clients,
        "cohort": cohort,
        "rounds": rounds,
        "seed": seed,
        "runtime": runtime,
        "workers": workers,
        "data_dir": data_dir,
    }
    chosen = Config.of(overlay({"rounds": _ROUNDS}, settings(config, flags, set_)))
    done = count(1)
    with run_progress(f"{agents} agents", agents * chosen.rounds, 0) as on_round:
        path = train(
            chosen,
            rounds=chosen.rounds,
            workers=agents,
            out=out,
            offline=Offline(epochs=epochs, actor_rate=actor_rate),
            on_round=lambda number, record: on_round({**record, "round": next(done)}),
        )
    if json_:
        print_json({"file": str(path), "bytes": path.stat().st_size})
    else:
        display.say(f"Agent: {path}. Use it with: covey run ... --agent {path}")
