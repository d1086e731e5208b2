"""`covey train-agent`: a thin layer over `covey.job.agent_training`."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.aggregation.agent_file import agent_kind
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
    WorkersFlag,
    print_json,
    settings,
)
from covey.config.recipe import recipe_of
from covey.config.schema import Config
from covey.config.values import chosen, overlay
from covey.errors import Refusal, require
from covey.job.agent_training import Offline
from covey.job.agent_training import train_agent as train

_ROUNDS = 100
"""That agents collect for where nothing is said."""


def with_agent(given: dict[str, Any], agent: Path | None) -> dict[str, Any]:
    """Settings of a run that begins with a trained agent; the method is the agent's own where none is named."""
    if agent is None:
        return given
    kind = agent_kind(agent)
    named, _ = chosen("aggregator", given.get("aggregator"))
    if named is None and "method" not in given:
        given = overlay(given, {"aggregator" if "selector" in given else "method": kind})
    config = Config.of(given)
    if config.aggregator is None or "agent" not in config.aggregator.options:
        raise Refusal(f"--agent {agent} is for the aggregator '{kind}', and '{config.method}' has another one.")
    return overlay(given, {"aggregator": {"agent": str(agent.resolve())}})


def agents_for(methods: Sequence[str], files: Sequence[Path]) -> dict[str, str]:
    """Aggregator → file of the trained agent, for those of some methods that have one."""
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
    out: Annotated[Path, typer.Option("--out", help="File to write, such as agent.safetensors.")],
    method: Annotated[str | None, typer.Option("--method", help="Method with an agent: feddrl or feddrl-set.")] = None,
    selector: SelectorFlag = None,
    aggregator: AggregatorFlag = None,
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
    model: ModelFlag = None,
    clients: ClientsFlag = None,
    cohort: CohortFlag = None,
    rounds: Annotated[
        str | None, typer.Option("--rounds", metavar="N", help="Rounds that each agent collects for; by default 100.")
    ] = None,
    agents: Annotated[
        int, typer.Option("--agents", metavar="N", help="Agents that collect experiences side by side.")
    ] = 2,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", help="Passes of the main agent over all experiences.")
    ] = Offline.epochs,
    seed: SeedFlag = None,
    runtime: RuntimeFlag = None,
    workers: WorkersFlag = None,
    data_dir: DataDirFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Train FedDRL's agent in two stages; use it with --agent FILE."""
    flags = {
        "method": method,
        "selector": selector,
        "aggregator": aggregator,
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
    with display.run_progress(f"{agents} agents", agents * chosen.rounds, 0) as on_round:
        path = train(
            chosen,
            rounds=chosen.rounds,
            workers=agents,
            out=out,
            offline=Offline(epochs=epochs),
            on_round=lambda number, record: on_round({**record, "round": next(done)}),
        )
    if json_:
        print_json({"file": str(path), "bytes": path.stat().st_size})
    else:
        display.say(f"Agent: {path}. Use it with: covey run ... --agent {path}")
