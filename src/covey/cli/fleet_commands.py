"""`covey fleet`: a thin layer over `covey.fleet`."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

import covey
from covey.cli import terminal as display
from covey.cli.flags import ConfigFlag, JsonFlag, OutFlag, TrustFlag, print_json
from covey.cli.flags import settings as settings_of
from covey.cli.fleet_site_commands import FolderArgument, accept, fleet_of, join, log, register, remove, status
from covey.config.recipe import recipe_of
from covey.config.same_settings import require_same
from covey.config.schema import Config, resolve
from covey.config.values import overlay, own_names
from covey.core.client_names import read_names, write_names
from covey.core.printable_text import printable
from covey.core.runtime_traits import traits_of
from covey.errors import require
from covey.job.progress_display import run_progress
from covey.registry import coerce
from covey.storage import replace_file
from covey.trust import Trust, is_own, refused_names, require_trusted

if TYPE_CHECKING:
    from covey import Run
    from covey.fleet.fleet_folder import Fleet

app = typer.Typer(help="A real fleet: TLS, authenticated nodes, faults, restart.", no_args_is_help=True)


@app.callback()
def fleet(context: typer.Context) -> None:
    """Refuse systems on which no part of a fleet can run; have what is written readable by its owner alone."""
    require(hasattr(os, "fork"), "A fleet needs fork and file locks, which this system lacks; use Linux or macOS.")
    context.call_on_close(partial(os.umask, os.umask(0o077)))


SetFlag = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as local.rate=0.1.")
]

_SITES = 5
"""Default number of sites of a fleet on one machine."""

_FEW = 0.4
"""Default share of the clients invited: fleets on one machine are small."""


@app.command()
def up(
    clients: Annotated[
        str | None, typer.Option("--clients", metavar="N", help=f"Number of sites; by default {_SITES}.")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="Method (default: fedavg); see 'covey list methods'.")
    ] = None,
    rounds: Annotated[str | None, typer.Option("--rounds", metavar="N", help="Rounds to run (default: 50).")] = None,
    cohort: Annotated[
        str | None,
        typer.Option(
            "--cohort", metavar="N", help=f"Sites a round: count or share; by default {_FEW} (covey run invites 0.1)."
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Data set that is split among the sites (default: digits).")
    ] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", help="How data is split among clients (default: uniform).")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model (default: mlp).")] = None,
    seed: Annotated[
        str | None, typer.Option("--seed", metavar="N", help="Seed of the split and every draw (default: 0).")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="SECONDS", help="How long a round waits for answers (default: 60)."),
    ] = None,
    drill: Annotated[
        list[str] | None,
        typer.Option("--drill", metavar="SITE:KIND:ROUND", help="A site misbehaves, such as 2:nan:1. Repeatable."),
    ] = None,
    again: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Resume a run, on a new fleet.")] = None,
    out: OutFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    trust: TrustFlag = False,
    json_: JsonFlag = False,
) -> None:
    """Run a whole fleet on this machine: certificates, SuperLink, SuperNodes and a run; then take it down."""
    from covey.core.build import build_federation
    from covey.fleet.fault_injection import InjectedFault
    from covey.fleet.fleet_folder import Rules
    from covey.fleet.loopback import QUICK, Loopback, loopback_fleet
    from covey.job.fleet_dry_run import dry_run_live

    flags = {
        "clients": clients,
        "method": method,
        "rounds": rounds,
        "cohort": cohort,
        "dataset": dataset,
        "environment": environment,
        "model": model,
        "seed": seed,
        "runtime": "fleet",
        "devices": None if timeout is None else {"deadline": timeout},
    }
    given = settings_of(config, flags, set_)
    if again is None:
        settings = overlay({"clients": _SITES, "cohort": _FEW}, given)
        chosen = Config.of(settings)
        federation = dry_run_live(chosen)
    else:
        require(out is None, "A run is resumed in its own folder: leave out --out.")
        chosen = covey.Run.open(again, trust=trust).config
        chosen.require_trusted()
        settings = chosen.as_mapping()
        require_same(chosen, Config.of(overlay(settings, given)), f"The run in {again}", "leave out --resume")
        federation = build_federation(chosen)
    done = len(covey.Run.open(again).metrics) if again else 0
    drills = [InjectedFault.of(text, federation.clients, range(done + 1, chosen.rounds + 1)) for text in drill or []]
    with _sigterm_as_interrupt(), tempfile.TemporaryDirectory(prefix="covey-fleet-") as place:
        rules = Rules(**{**vars(QUICK), "timeout": chosen.devices.deadline or 60.0})
        node = {"drill": "drill.txt"} if drills else None
        fleet = loopback_fleet(Path(place) / "fleet", federation, settings, rules=rules, node=node)
        for one in drills:
            with (fleet.site(fleet.sites[one.client]) / "data" / "drill.txt").open("a", encoding="utf-8") as file:
                file.write(one.line)
        result: Run | None = None
        try:
            _say(json_, f"Starting a SuperLink at {fleet.address} and {len(fleet.sites)} SuperNodes, over TLS.")
            with Loopback(fleet):
                result = _run_live(fleet, chosen, again, out, trust)
        finally:
            logs = _keep_logs(fleet, result.folder if result else Path(place).parent / f"{Path(place).name}-logs")
        _say(json_, f"Taken down again. Logs: {logs}")
    assert result is not None
    rows = result.metrics[done:]
    _show_result(result, json_, [sentence for one in drills if (sentence := one.missed(rows)) is not None])


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write.")],
    sites: Annotated[str, typer.Option("--sites", metavar="A,B,…", help="Names of the sites.")],
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="Where sites reach the server.")
    ] = "127.0.0.1:8443",
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Another name or address of the server. Repeatable.")
    ] = None,
    shape: Annotated[str, typer.Option("--shape", metavar="N,…", help="Shape of a sample: 24, or 1,28,28.")] = "",
    classes: Annotated[str, typer.Option("--classes", metavar="N", help="Classes: how many, or their names.")] = "",
    method: Annotated[
        str | None, typer.Option("--method", help="Method (default: fedavg); see 'covey list methods'.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model (default: mlp).")] = None,
    rounds: Annotated[str | None, typer.Option("--rounds", metavar="N", help="Rounds to run (default: 20).")] = None,
    cohort: Annotated[
        str | None, typer.Option("--cohort", metavar="N", help="Sites a round: count or share; by default all.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="SECONDS", help="How long a round waits for answers (default: 600)."),
    ] = None,
    poll: Annotated[
        str, typer.Option("--poll", metavar="SECONDS", help="Time between a site's checks for orders.")
    ] = "3",
    own_keys: Annotated[
        bool,
        typer.Option("--own-keys", help="Sites make their own keys (covey fleet join), and you accept them."),
    ] = False,
    set_: SetFlag = None,
) -> None:
    """Write the files of a real fleet: certificates, keys, a start script for each site, a page for the operator."""
    from covey.fleet.certificates import SERVER_DAYS
    from covey.fleet.deployment import write_deployment
    from covey.fleet.fleet_folder import Fleet, Rules
    from covey.fleet.samples import described
    from covey.job.fleet_dry_run import dry_run_fleet

    require(bool(shape and classes), "Say what samples look like: --shape 24 --classes 4 (or --classes ok,worn).")
    names = tuple(name.strip() for name in sites.split(",") if name.strip())
    data: dict[str, Any] = {
        "shape": list(coerce(shape, tuple[int, ...], "--shape")),
        "classes": int(classes) if classes.isdecimal() else [name.strip() for name in classes.split(",")],
    }
    described(data, folder)
    flags = {"method": method, "model": model, "rounds": rounds, "cohort": cohort}
    given = settings_of(None, flags, set_)
    usual: dict[str, Any] = {"method": "fedavg", "model": "mlp", "rounds": 20}
    if "cohort" not in given:
        usual["cohort"] = len(names)
        # If all sites are invited, FedACS's pool holds all of them.
        selector = recipe_of(given.get("method", usual["method"])).selector
        usual |= {"selector": {"pool": 1.0}} if selector == "fedacs" else {}
    settings = overlay(usual, given)
    rules = Rules() if timeout is None else Rules(timeout=coerce(timeout, float, "--timeout"))
    fleet = Fleet(folder=folder, address=address, sites=names, rules=rules, run=settings, data=data)
    fleet = replace(fleet, run=_as_values(settings, dry_run_fleet(fleet)))
    fleet.write([fleet.host, *(host or [])], poll=coerce(poll, float, "--poll"), own_keys=own_keys)
    write_deployment(fleet, SERVER_DAYS, own_keys=own_keys)
    display.say(f"Written: {folder}. Begin with {folder / 'README.md'}")


@app.command()
def link(folder: FolderArgument) -> None:
    """Run the fleet's SuperLink, which sites connect to, until it is stopped."""
    from covey.fleet.loopback import superlink_command
    from covey.fleet.processes import environment

    fleet = fleet_of(folder)
    command = superlink_command(fleet, host="127.0.0.1" if fleet.host in ("127.0.0.1", "localhost") else "0.0.0.0")
    log = ["--log-file", str(fleet.server / "superlink.log")]
    os.execve(command[0], [*command, *log], environment(fleet.server / "flower"))


@app.command()
def node(
    folder: Annotated[Path, typer.Argument(metavar="SITE", help="The site's folder.")], trust: TrustFlag = False
) -> None:
    """Run the node of a site, until it is stopped."""
    from covey.fleet.fleet_folder import Site
    from covey.fleet.node import main
    from covey.fleet.processes import environment

    site = Site.read(folder)
    allowed = [name.strip() for name in str(site.node.get("allow", "")).split(",")]
    named = {f"allow ({name})": name for name in allowed if is_own(name)}
    named |= {"app": site.app} if site.app != Site.app else {}
    require_trusted(refused_names(named, trust, folder), f"{folder / 'site.toml'}")
    for option in ("memory", "ledger"):
        require(
            trust or site.writes_inside(option),
            f"{folder / 'site.toml'}: {option} lies outside the site's folder, and would be written. If it is yours, "
            "give --trust.",
        )
    os.environ.update(environment(folder / "flower"))
    raise typer.Exit(main([str(folder)]))


@app.command("run")
def run_(
    folder: FolderArgument,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder; by default 'run' in the fleet's.")] = None,
    set_: SetFlag = None,
    trust: TrustFlag = False,
    json_: JsonFlag = False,
) -> None:
    """Run a fleet's job, or resume it after the last finished round, with the settings that it was begun with."""
    from covey.core.checkpoint import FORMAT
    from covey.core.records import folder_format
    from covey.flower.live_method import require_live

    fleet = fleet_of(folder)
    given = overlay(fleet_settings(folder, trust), settings_of(None, {}, set_))
    place = out or fleet.folder / "run"
    begun = place if (place / "config.json").is_file() else None
    chosen = resolve(given, earlier=folder_format(place) < FORMAT)
    require_live(chosen.method)
    if begun:
        before = covey.Run.open(place, trust=own_names(given).values()).config
        require_same(before, chosen, f"The run in {place}", "begin another run: --out FOLDER")
    _show_result(_run_live(fleet, chosen, begun, place, own_names(given).values()), json_)


for command in (register, status, log, join, accept, remove):
    app.command()(command)


def fleet_settings(folder: Path, trust: bool) -> dict[str, Any]:
    """Return the settings of a live fleet's jobs, for `--fleet`; code that they name is refused unless trusted."""
    fleet = fleet_of(folder)
    # Imported late, so that without Flower the refusal says so.
    from covey.fleet.samples import settings

    given = settings(fleet)
    require_trusted(refused_names(own_names(given), trust, folder), f"{folder / 'fleet.toml'}")
    return given


def resume_on_fleet(folder: Path, begun: Path, json_: bool, trust: bool) -> None:
    """Resume a run on a live fleet, for `covey resume --fleet`."""
    chosen = covey.Run.open(begun, trust=trust).config
    require(traits_of(chosen.runtime).takes_fleet, f"The run in {begun} is not one of a fleet: leave out --fleet.")
    fleet, sites = fleet_of(folder), list(read_names(begun).values())
    require(
        not sites or sites == list(fleet.sites),
        f"The run in {begun} is one of the sites {', '.join(sites)}; those of {folder} are {', '.join(fleet.sites)}.",
    )
    _show_result(_run_live(fleet, chosen, begun, None, trust), json_)


def _as_values(settings: Mapping[str, Any], resolved: Config) -> dict[str, Any]:
    """Return settings typed as text as the values that they stand for, in their given form."""

    def value(given: Any, meant: Any) -> Any:
        if isinstance(given, Mapping) and isinstance(meant, Mapping):
            return {name: value(one, meant.get(name)) for name, one in given.items()}
        return given if meant is None or isinstance(meant, Mapping) else meant

    meant = resolved.as_mapping()
    return {key: value(given, meant.get(key)) for key, given in settings.items()}


def _run_live(fleet: "Fleet", chosen: Config, begun: Path | None, out: Path | None, trust: Trust) -> "Run":
    """Run or resume on a live fleet, and show the progress."""
    from covey.job.settings import default_folder

    done = len(covey.Run.open(begun).metrics) if begun else 0
    place = begun or out or default_folder(chosen)
    with run_progress(chosen.method, chosen.rounds, done) as progress:

        def on_round(record: dict[str, Any]) -> None:
            write_names(place, fleet.sites)
            progress(record)

        if begun is not None:
            return covey.resume(begun, on_round=on_round, fleet=fleet.folder, trust=trust, progress=False)
        return covey.run(chosen, out=place, on_round=on_round, fleet=fleet.folder, progress=False)


def _show_result(result: "Run", json_: bool, missed: Sequence[str] = ()) -> None:
    """Show a run's result; `missed` are drills that did not take place."""
    from covey.cli.result_tables import show_run
    from covey.job.result_text import run_summary

    names = read_names(result.folder)
    faults = [(row["round"], fault) for row in result.metrics for fault in row["dropped"]]
    refused = {one["key"]: one for row in result.metrics for one in row.get("refused", ())}
    if json_:
        lost = [{"round": number, **fault, "name": names.get(fault["client"])} for number, fault in faults]
        nodes = {"refused": list(refused.values())} if refused else {}
        print_json({**run_summary(result), "faults": lost, **nodes, "missed_drills": list(missed)})
    else:
        show_run(result)
        for number, fault in faults[:20]:
            who = names.get(fault["client"], f"client {fault['client']}")
            display.say(f"Round {number}: the answer of {who} was lost: {fault['reason']}.")
        for one in refused.values():
            display.say(f"A node got no orders: {one['reason']} (key {one['key']}).")
        for sentence in missed:
            display.say(sentence)
    if not result.finished:
        said = f"covey: Stopped after round {len(result.metrics)}; what is done is in {result.folder}."
        print(printable(said), file=sys.stderr)
        raise typer.Exit(130)


def _keep_logs(fleet: "Fleet", place: Path) -> Path:
    """Copy the processes' logs and return their folder; keys are left behind and deleted."""
    logs = place / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    found = [*fleet.folder.glob("*.log"), *fleet.server.glob("*.log"), *fleet.folder.glob("sites/*/node.log")]
    for path in found:
        name = f"{path.parent.name}.log" if path.name == "node.log" else path.name
        replace_file(logs / name, path.read_bytes())
    return logs


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM into an exception like Ctrl-C, so that processes are taken down."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(json_: bool, text: str) -> None:
    if not json_:
        display.say(text)
