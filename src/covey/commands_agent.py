"""`covey train-agent`: a thin layer over `covey.training_agent`."""

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from covey import display
from covey.aggregation.by_agent import agent_kind
from covey.config import Config, assignment, chosen, overlay, read_toml
from covey.errors import Refusal, require
from covey.methods import methods as known
from covey.training_agent import Offline
from covey.training_agent import train_agent as train


def with_agent(settings: dict[str, Any], agent: Path | None) -> dict[str, Any]:
    """Settings of a run that begins with a trained agent; the method is the agent's own where none is named."""
    if agent is None:
        return settings
    kind = agent_kind(agent)
    named, _ = chosen("aggregator", settings.get("aggregator"))
    if named is None and "method" not in settings:
        settings = overlay(settings, {"aggregator" if "selector" in settings else "method": kind})
    config = Config.of(settings)
    if config.aggregator is None or "agent" not in config.aggregator.options:
        raise Refusal(f"--agent {agent} is for the aggregator '{kind}', and '{config.method}' has another one.")
    return overlay(settings, {"aggregator": {"agent": str(agent.resolve())}})


def agents_for(methods: Sequence[str], files: Sequence[Path]) -> dict[str, str]:
    """Aggregator → file of the trained agent, for those of some methods that have one."""
    agents: dict[str, str] = {}
    for file in files:
        kind = agent_kind(file)
        wanting = [name for name in methods if name in known.names() and known[name].part.aggregator == kind]
        require(
            bool(wanting), f"--agent {file} is for the aggregator '{kind}', which none of {', '.join(methods)} has."
        )
        require(kind not in agents, f"There are two agents for '{kind}': {agents.get(kind)} and {file}.")
        agents[kind] = str(file.resolve())
    return agents


def train_agent(
    out: Annotated[Path, typer.Option("--out", help="File to write, such as agent.safetensors.")],
    method: Annotated[str | None, typer.Option("--method", help="Method with an agent: feddrl or feddrl-set.")] = None,
    selector: Annotated[str | None, typer.Option("--selector", help="Selector, instead of a method.")] = None,
    aggregator: Annotated[str | None, typer.Option("--aggregator", help="Aggregator, instead of a method.")] = None,
    environment: Annotated[str | None, typer.Option("--environment", help="Who holds what.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Data set.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model.")] = None,
    clients: Annotated[str | None, typer.Option("--clients", metavar="N", help="Number of clients.")] = None,
    cohort: Annotated[
        str | None, typer.Option("--cohort", metavar="N", help="Clients a round: a count, or a fraction such as 0.1.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="Rounds that each agent collects for.")] = 100,
    agents: Annotated[
        int, typer.Option("--agents", metavar="N", help="Agents that collect experiences side by side.")
    ] = 2,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", help="Passes of the main agent over all experiences.")
    ] = Offline.epochs,
    seed: Annotated[
        str | None, typer.Option("--seed", metavar="N", help="Decides split, initialisation and draws.")
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", help="What executes the clients' work.")] = None,
    workers: Annotated[
        str | None, typer.Option("--workers", metavar="N", help="Worker processes; 0 is one per core.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="Folder with data sets (or COVEY_DATA).")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file with settings; flags win over it.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as aggregator.noise=0.3.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
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
        "seed": seed,
        "runtime": runtime,
        "workers": workers,
        "data_dir": data_dir,
    }
    settings: dict[str, Any] = read_toml(config) if config else {}
    settings = overlay(settings, {key: value for key, value in flags.items() if value is not None})
    for text in set_ or []:
        settings = overlay(settings, assignment(text))
    settings.pop("rounds", None)
    chosen = Config.of(settings)
    done = count(1)
    with display.run_progress(f"{agents} agents", agents * rounds, 0) as on_round:
        path = train(
            chosen,
            rounds=rounds,
            workers=agents,
            out=out,
            offline=Offline(epochs=epochs),
            on_round=lambda number, record: on_round({**record, "round": next(done)}),
        )
    if json_:
        print(json.dumps({"file": str(path), "bytes": path.stat().st_size}, indent=2))
    else:
        display.say(f"Agent: {path}. Use it with: covey run ... --agent {path}")
