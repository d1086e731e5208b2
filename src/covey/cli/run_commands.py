"""`covey run`, `compare` and `resume`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import covey
from covey.cli.agent_command import agents_for, with_agent
from covey.cli.flags import (
    AgentFlag,
    AgentsFlag,
    AggregatorFlag,
    AttackersFlag,
    AttackFlag,
    ClientsFlag,
    CohortFlag,
    ConfigFlag,
    DataDirFlag,
    DatasetFlag,
    DeviceFlag,
    EnvironmentFlag,
    HostMemoryFlag,
    JsonFlag,
    MemoryFlag,
    MethodFlag,
    ModelFlag,
    OutFlag,
    PoisonFlag,
    PrecisionFlag,
    RoundsFlag,
    RuntimeFlag,
    SeedFlag,
    SelectorFlag,
    SetFlag,
    TaskFlag,
    TrackFlag,
    TrainerFlag,
    TrustFlag,
    WorkersFlag,
    print_json,
    settings,
)
from covey.core.printable_text import printable
from covey.errors import Refusal, require
from covey.job.progress_display import comparison_progress, run_progress

if TYPE_CHECKING:
    from covey import Comparison, Run


def run(
    method: MethodFlag = None,
    selector: SelectorFlag = None,
    aggregator: AggregatorFlag = None,
    trainer: TrainerFlag = None,
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
    task: TaskFlag = None,
    model: ModelFlag = None,
    clients: ClientsFlag = None,
    cohort: CohortFlag = None,
    rounds: RoundsFlag = None,
    seed: SeedFlag = None,
    runtime: RuntimeFlag = None,
    workers: WorkersFlag = None,
    precision: PrecisionFlag = None,
    device: DeviceFlag = None,
    memory_limit: MemoryFlag = None,
    host_memory_limit: HostMemoryFlag = None,
    data_dir: DataDirFlag = None,
    poison: PoisonFlag = None,
    attack: AttackFlag = None,
    attackers: AttackersFlag = None,
    agent: AgentFlag = None,
    track: TrackFlag = None,
    out: OutFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Run one method on one federation.

    Example: covey run --method fedacs --environment dirichlet --set environment.alpha=0.1
    """
    flags = {
        "method": method,
        "selector": selector,
        "aggregator": aggregator,
        "trainer": trainer,
        "environment": environment,
        "dataset": dataset,
        "task": task,
        "model": model,
        "clients": clients,
        "cohort": cohort,
        "rounds": rounds,
        "seed": seed,
        "runtime": runtime,
        "workers": workers,
        "precision": precision,
        "device": device,
        "memory_limit": memory_limit,
        "host_memory_limit": host_memory_limit,
        "data_dir": data_dir,
        "poison": poison,
        "attack": attack,
        "attackers": attackers,
    }
    chosen = covey.Config.of(with_agent(settings(config, flags, set_), agent))
    with run_progress(chosen.method, chosen.rounds, 0) as on_round:
        result = covey.run(chosen, out=out, on_round=on_round, progress=False, track=track or ())
    _show_run(result, json_)


def compare(
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            metavar="A,B,…",
            help="Methods; combinations such as fedacs+feddrl or fedacs+average+moon (selector+aggregator+trainer); "
            "your own as module:Class. The first is the baseline.",
        ),
    ],
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N", help="Number of seeds (0, 1, …), or a list such as 3,7.")
    ] = "3",
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="KEY=V1,V2", help="Sweep an option over values, for the methods that have it. Repeatable."
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            "--target",
            metavar="SCORE",
            help="Count rounds and bytes to this accuracy, or main metric (default: the best that all runs reached).",
        ),
    ] = None,
    fairness: Annotated[
        bool, typer.Option("--fairness", help="Also measure how evenly the model serves the clients.")
    ] = False,
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
    task: TaskFlag = None,
    model: ModelFlag = None,
    clients: ClientsFlag = None,
    cohort: CohortFlag = None,
    rounds: RoundsFlag = None,
    runtime: RuntimeFlag = None,
    workers: WorkersFlag = None,
    precision: PrecisionFlag = None,
    device: DeviceFlag = None,
    memory_limit: MemoryFlag = None,
    host_memory_limit: HostMemoryFlag = None,
    data_dir: DataDirFlag = None,
    poison: PoisonFlag = None,
    attack: AttackFlag = None,
    attackers: AttackersFlag = None,
    agent: AgentsFlag = None,
    track: TrackFlag = None,
    out: OutFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Compare methods over seeds, with paired differences.

    All methods run on the same federations and initial models. The same command resumes a comparison that was stopped.
    With the --out of a comparison, more seeds, methods or rounds extend it.

    Example: covey compare --methods fedavg,fedprox,iid --seeds 5 --environment dirichlet
    """
    from covey.job.comparison.execution import ONE_SEED

    flags = {
        "environment": environment,
        "dataset": dataset,
        "task": task,
        "model": model,
        "clients": clients,
        "cohort": cohort,
        "rounds": rounds,
        "runtime": runtime,
        "workers": workers,
        "precision": precision,
        "device": device,
        "memory_limit": memory_limit,
        "host_memory_limit": host_memory_limit,
        "data_dir": data_dir,
        "poison": poison,
        "attack": attack,
        "attackers": attackers,
    }
    given = settings(config, flags, set_)
    given.pop("method", None)
    # A settings file may be shared with `covey run`, so its seed is ignored; --set seed=… contradicts --seeds.
    require("seed" not in settings(None, {}, set_), ONE_SEED)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    _compare(
        json_,
        methods=names,
        agents=agents_for(names, agent or []),
        seeds=_seeds(seeds),
        vary=_vary(vary or []),
        target=target,
        fairness=fairness,
        track=track or (),
        out=out,
        given=given,
    )


def resume(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a run, a comparison or an on-demand job.")
    ],
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            metavar="N",
            help="Extend a run, or all of a comparison: it ends as one planned for N rounds (default: as planned).",
        ),
    ] = None,
    workers: WorkersFlag = None,
    fleet: Annotated[
        Path | None,
        typer.Option(
            "--fleet", metavar="DIR", help="Folder of the live fleet that the run is on (default: COVEY_FLEET)."
        ),
    ] = None,
    track: TrackFlag = None,
    trust: TrustFlag = False,
    json_: JsonFlag = False,
) -> None:
    """Resume a run, a comparison or an on-demand job.

    It continues after its last finished round, with the settings that it began with.

    Example: covey resume runs/mine --rounds 100
    """
    from covey.cli.fleet_commands import fleet_settings, resume_on_fleet
    from covey.cli.on_demand_command import resume_job
    from covey.job.comparison.execution import resume_comparison
    from covey.job.comparison.plan import is_comparison
    from covey.job.on_demand import is_ondemand

    require(
        rounds is None or not (is_ondemand(folder) or fleet),
        "--rounds extends a run or a comparison; an on-demand job or a run on a fleet is begun anew.",
    )
    if fleet is not None:
        fleet_settings(fleet, trust)
    if is_ondemand(folder):
        resume_job(folder, json_, fleet, trust)
        return
    if is_comparison(folder):
        with comparison_progress() as (on_run, on_round):
            comparison = resume_comparison(
                folder, on_run=on_run, on_round=on_round, fleet=fleet, trust=trust, track=track or (), rounds=rounds
            )
        _show_comparison(comparison, json_)
        return
    if fleet is not None:
        resume_on_fleet(fleet, folder, json_, trust)
        return
    before = covey.Run.open(folder)
    count = None if workers is None else covey.Config.of(workers=workers).workers
    with run_progress(before.config.method, rounds or before.config.rounds, len(before.metrics)) as on_round:
        result = covey.resume(
            folder, on_round=on_round, workers=count, trust=trust, rounds=rounds, progress=False, track=track or ()
        )
    _show_run(result, json_)


def _seeds(text: str) -> int | list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()] if "," in text else int(text)
    except ValueError:
        raise Refusal(f"--seeds takes a number such as 3, or a list such as 0,4,7, not '{text}'.") from None


def _vary(texts: list[str]) -> dict[str, list[str]]:
    sweep = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise Refusal(f"'{text}' is not of the form key=value1,value2, such as local.rate=0.1,0.01.")
        sweep[key.strip()] = [value.strip() for value in values.split(",") if value.strip()]
    return sweep


def _compare(json_: bool, **arguments: Any) -> None:
    with comparison_progress() as (on_run, on_round):
        comparison = covey.compare(**arguments, on_run=on_run, on_round=on_round, progress=False)
    _show_comparison(comparison, json_)


def _show_run(result: "Run", json_: bool) -> None:
    from covey.cli.result_tables import show_run
    from covey.job.result_text import run_summary

    if json_:
        print_json(run_summary(result))
    else:
        show_run(result)
    if not result.finished:
        print(printable(f"covey: Stopped. Resume with: covey resume {result.folder}"), file=sys.stderr)
        raise typer.Exit(130)


def _show_comparison(comparison: "Comparison", json_: bool) -> None:
    from covey.cli.result_tables import show_comparison
    from covey.job.result_text import comparison_summary

    if json_:
        print_json(comparison_summary(comparison))
    else:
        show_comparison(comparison)
