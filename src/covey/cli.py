"""The command line. Each command is a thin layer over the Python functions of the same name."""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import covey
from covey import display
from covey.analytics import ROUNDS
from covey.commands_agent import agents_for, train_agent, with_agent
from covey.commands_fleet import app as fleet_app
from covey.commands_fleet import use as use_fleet
from covey.commands_ondemand import draw_again, go_on, ondemand
from covey.comparison import Comparison, Interrupted, is_comparison, resume_comparison
from covey.config import assignment, overlay, read_toml
from covey.data import download as fetch
from covey.description import describe as description_of
from covey.errors import Refusal
from covey.experiment import Run
from covey.experiments.command import reproduce
from covey.registry import Registry, coerce
from covey.report import report as write_report
from covey.report.tensorboard import tensorboard as write_tensorboard
from covey.runtimes import runtimes
from covey.tailoring import is_ondemand

app = typer.Typer(
    name="covey",
    help="Federated learning for clients whose data differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

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
AGENT_HELP = "Trained agent to begin with, as covey train-agent writes it (aggregator.learn=false keeps it as it is)."
AgentFlag = Annotated[Path | None, typer.Option("--agent", metavar="FILE", help=AGENT_HELP)]
AgentsFlag = Annotated[list[Path] | None, typer.Option("--agent", metavar="FILE", help=AGENT_HELP)]
FleetFlag = Annotated[Path | None, typer.Option("--fleet", help="Ask the sites of a live fleet: its folder.")]
SetFlag = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as local.rate=0.1 or environment.alpha=0.5."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def main() -> NoReturn:
    """Entry point: refusals become one sentence and exit code 2, warnings one sentence, said once."""
    warnings.formatwarning = _SayOnce()
    try:
        app()
    except Refusal as refusal:
        print(f"covey: {refusal}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as interrupted:
        print(f"covey: {interrupted}", file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        print("covey: Stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    sys.exit(0)


class _SayOnce:
    """Warnings as users read them: what is said, not from which line of code, and not again for every run."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, message: Warning | str, *_: object, **__: object) -> str:
        sentence = str(message)
        if sentence in self._said:
            return ""
        self._said.add(sentence)
        return f"covey: {sentence}\n"


@app.command()
def demo(out: OutFlag = None, json_: JsonFlag = False) -> None:
    """What does skew cost? FedAvg on 60 skewed clients against the same clients without skew; under a minute."""
    comparison = _compare(
        json_,
        methods=["fedavg", "iid"],
        seeds=5,
        out=out or _fresh(Path("runs/demo")),
        given={
            "dataset": "digits",
            "environment": {"name": "uniform", "samples": 24},
            "clients": 60,
            "cohort": 6,
            "rounds": 40,
            "local": {"epochs": 20, "batch": 20, "rate": 0.05},
        },
        question="What does skew cost? 60 clients with handwritten digits, each leaning to one of them by α ~ U[0, 1].",
    )
    if not json_:
        display.say(f"Report: {write_report([comparison.folder])}")


@app.command()
def run(
    method: MethodFlag = None,
    selector: SelectorFlag = None,
    aggregator: AggregatorFlag = None,
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
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
    data_dir: DataDirFlag = None,
    poison: PoisonFlag = None,
    agent: AgentFlag = None,
    out: OutFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Run one method on one federation."""
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
        "precision": precision,
        "device": device,
        "memory_limit": memory_limit,
        "data_dir": data_dir,
        "altered": None if poison is None else {"poison": poison},
    }
    chosen = covey.Config.of(with_agent(_settings(config, flags, set_), agent))
    with display.run_progress(chosen.method, chosen.rounds, 0) as on_round:
        result = covey.run(chosen, out=out, on_round=on_round)
    _tell_run(result, json_)


@app.command()
def compare(
    methods: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas; the first is the yardstick.")
    ],
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N", help="How many seeds (0, 1, …), or a list such as 3,7.")
    ] = "3",
    vary: Annotated[
        list[str] | None, typer.Option("--vary", metavar="KEY=V1,V2", help="Sweep a setting over values.")
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", help="Accuracy to count rounds and bytes to, in (0, 1].")
    ] = None,
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
    model: ModelFlag = None,
    clients: ClientsFlag = None,
    cohort: CohortFlag = None,
    rounds: RoundsFlag = None,
    runtime: RuntimeFlag = None,
    workers: WorkersFlag = None,
    precision: PrecisionFlag = None,
    device: DeviceFlag = None,
    memory_limit: MemoryFlag = None,
    data_dir: DataDirFlag = None,
    poison: PoisonFlag = None,
    agent: AgentsFlag = None,
    out: OutFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Compare methods over seeds: same federations, same initialisations, paired differences."""
    flags = {
        "environment": environment,
        "dataset": dataset,
        "model": model,
        "clients": clients,
        "cohort": cohort,
        "rounds": rounds,
        "runtime": runtime,
        "workers": workers,
        "precision": precision,
        "device": device,
        "memory_limit": memory_limit,
        "data_dir": data_dir,
        "altered": None if poison is None else {"poison": poison},
    }
    given = _settings(config, flags, set_)
    given.pop("method", None)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    _compare(
        json_,
        methods=names,
        agents=agents_for(names, agent or []),
        seeds=_seeds(seeds),
        vary=_vary(vary or []),
        target=target,
        out=out,
        given=given,
    )


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="Run folder, or folder of a comparison.")],
    workers: WorkersFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Go on with a run or a comparison that was stopped, from its last finished round."""
    if is_ondemand(folder):
        go_on(folder, json_)
        return
    if is_comparison(folder):
        with display.comparison_progress() as (on_run, on_round):
            comparison = resume_comparison(folder, on_run=on_run, on_round=on_round)
        _tell_comparison(comparison, json_)
        return
    before = Run.open(folder)
    count = None if workers is None else covey.Config.of(workers=workers).workers
    with display.run_progress(before.config.method, before.config.rounds, len(before.metrics)) as on_round:
        result = covey.resume(folder, on_round=on_round, workers=count)
    _tell_run(result, json_)


@app.command()
def describe(
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
    clients: ClientsFlag = None,
    seed: SeedFlag = None,
    data_dir: DataDirFlag = None,
    poison: PoisonFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    draw: Annotated[Path | None, typer.Option("--draw", help="Also draw it as an HTML page.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Who holds what: the class mix, size and skew of every client of a federation."""
    flags = {
        "environment": environment,
        "dataset": dataset,
        "clients": clients,
        "seed": seed,
        "data_dir": data_dir,
        "altered": None if poison is None else {"poison": poison},
    }
    description = description_of(covey.Config.of(_settings(config, flags, set_)))
    if json_:
        _print_json(description.as_mapping())
    else:
        description.show(display.console)
    if draw is not None:
        print(f"Drawn: {description.draw(draw)}", file=sys.stderr)


@app.command()
def analyze(
    environment: EnvironmentFlag = None,
    dataset: DatasetFlag = None,
    model: ModelFlag = None,
    clients: ClientsFlag = None,
    seed: SeedFlag = None,
    insight: Annotated[
        str, typer.Option("--insight", help="What clients send: head, full, or package.module:function.")
    ] = "head",
    rounds: Annotated[
        str | None, typer.Option("--rounds", metavar="N", help="Insight rounds, each from a fresh model; by default 3.")
    ] = None,
    level: Annotated[
        str, typer.Option("--level", metavar="P", help="Chance of calling any client odd if all were alike.")
    ] = "0.05",
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Use the model, and the federation, of a run.")
    ] = None,
    runtime: RuntimeFlag = None,
    device: DeviceFlag = None,
    fleet: FleetFlag = None,
    data_dir: DataDirFlag = None,
    poison: PoisonFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write a line for each client to this file.")] = None,
    draw: Annotated[Path | None, typer.Option("--draw", help="Also draw it as an HTML page.")] = None,
    json_: JsonFlag = False,
) -> None:
    """How skewed is each client, and which ones are odd? Without their data, and without training."""
    flags = {
        "environment": environment,
        "dataset": dataset,
        "model": model,
        "clients": clients,
        "seed": seed,
        "runtime": runtime,
        "device": device,
        "data_dir": data_dir,
        "altered": None if poison is None else {"poison": poison},
    }
    count = None if rounds is None else coerce(rounds, int, "rounds")
    live = {} if fleet is None else use_fleet(fleet)
    with display.run_progress("analyze", count or (1 if from_ else ROUNDS), 0) as on_round:
        analysis = covey.analyze(
            overlay(live, _settings(config, flags, set_)),
            model_of=from_,
            insight=insight,
            rounds=count,
            level=coerce(level, float, "level"),
            on_round=on_round,
        )
    if json_:
        _print_json(analysis.as_mapping())
    else:
        display.analysis(analysis)
    if csv is not None:
        print(f"Written: {analysis.write_csv(csv)}", file=sys.stderr)
    if draw is not None:
        print(f"Drawn: {analysis.draw(draw)}", file=sys.stderr)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of comparisons.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; else report.html in the folder.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Also write the metrics for TensorBoard to this folder.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Write one page about runs or a comparison that opens offline in a browser."""
    jobs = any(is_ondemand(folder) for folder in folders)
    page = draw_again(folders, out) if jobs else write_report(folders, out)
    events = 0
    if tensorboard is not None:
        events = sum(write_tensorboard(folder, tensorboard) for folder in folders)
    if json_:
        _print_json({"file": str(page), "tensorboard_values": events})
    else:
        display.say(f"Report: {page}")


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10 or cifar100.")],
    data_dir: DataDirFlag = None,
    json_: JsonFlag = False,
) -> None:
    """Fetch a data set from its official place, checked and resumable."""
    folder = data_dir or os.environ.get("COVEY_DATA")
    if folder is None:
        raise Refusal("Say where data sets are kept: --data-dir DIR, or the environment variable COVEY_DATA.")
    with display.download_progress() as progress:
        place = fetch(name, Path(folder), progress=progress)
    if json_:
        _print_json({"name": name, "folder": str(place)})
    else:
        display.say(f"{name} is in {place}")


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="MIX", help="Class mix to score on too, as for covey ondemand. Repeatable."),
    ] = None,
    target_csv: Annotated[
        list[Path] | None, typer.Option("--target-csv", help="File of labels whose mix to score on. Repeatable.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Score a run's model on the test set again, class by class, and on class mixes."""
    result = Run.open(folder).evaluate([*(target or []), *(target_csv or [])])
    if json_:
        _print_json(result)
    else:
        display.evaluation(result)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="File to write; by default model.safetensors in the run.")
    ] = None,
    client: Annotated[int | None, typer.Option("--client", help="Whose model, where every client has its own.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Write a run's model as a safetensors file with named tensors."""
    result = Run.open(folder).export(to or folder / "model.safetensors", client)
    if json_:
        _print_json(result)
    else:
        print(f"{result['file']}: {result['parameters']:,} parameters, {result['bytes']:,} bytes")


app.command()(reproduce)
app.command()(ondemand)
app.command()(train_agent)
app.add_typer(fleet_app, name="fleet")


_LISTS: dict[str, Registry[Any]] = {
    registry.plural: registry
    for registry in (
        covey.methods,
        covey.environments,
        covey.datasets,
        covey.models,
        covey.selectors,
        covey.aggregators,
        covey.manymodels,
        runtimes,
    )
}


@app.command("list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(help="methods, environments, datasets, models, selectors, aggregators, manymodels or runtimes."),
    ],
    json_: JsonFlag = False,
) -> None:
    """What there is to choose from, with options and their defaults."""
    if kind not in _LISTS:
        raise Refusal(f"There is no list of '{kind}'. Lists: {', '.join(_LISTS)}.")
    entries = [
        {
            "name": entry.name,
            "summary": entry.summary,
            "options": {option.name: _plain(option.default) for option in entry.options.values()},
        }
        for entry in _LISTS[kind]
    ]
    if json_:
        _print_json(entries)
    else:
        display.entries(kind, entries)


def _settings(config: Path | None, flags: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """Settings from file, flags and --set; later ones win."""
    settings = read_toml(config) if config else {}
    settings = overlay(settings, {key: value for key, value in flags.items() if value is not None})
    for text in assignments or []:
        settings = overlay(settings, assignment(text))
    return settings


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


def _compare(json_: bool, question: str | None = None, **arguments: Any) -> Comparison:
    if question and not json_:
        display.say(question)
    with display.comparison_progress() as (on_run, on_round):
        comparison = covey.compare(**arguments, on_run=on_run, on_round=on_round)
    _tell_comparison(comparison, json_)
    return comparison


def _tell_run(result: Run, json_: bool) -> None:
    if json_:
        _print_json(display.run_summary(result))
    else:
        display.run_result(result)
    if not result.finished:
        print(f"covey: Stopped. Go on with: covey resume {result.folder}", file=sys.stderr)
        raise typer.Exit(130)


def _tell_comparison(comparison: Comparison, json_: bool) -> None:
    if json_:
        _print_json({"folder": str(comparison.folder), "target": comparison.target, "rows": comparison.rows})
    else:
        display.comparison(comparison)


def _fresh(folder: Path) -> Path:
    """`folder`, or the first of `folder-2`, `folder-3`, … that does not exist."""
    number, candidate = 2, folder
    while candidate.exists():
        candidate = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return candidate


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str, list, tuple, dict)) else str(value)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


if __name__ == "__main__":
    main()
