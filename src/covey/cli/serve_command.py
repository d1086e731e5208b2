"""`covey serve`, and the flags of other commands as the fields of its forms."""

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import terminal as display
from covey.cli.catalogue import parts_of
from covey.errors import Refusal, install, require
from covey.storage import FolderLock

if TYPE_CHECKING:
    from covey.serve.form_fields import FormField

_NOT_IN_FORMS = (
    *("out", "config", "json_", "trust", "fleet", "data_dir", "agent", "target_csv", "csv", "draw", "name"),
    *("memory_limit", "host_memory_limit", "track"),
)
"""Parameters that name files, or concern the terminal."""

_LISTED = {
    **{"method": "methods", "methods": "methods", "selector": "selectors", "aggregator": "aggregators"},
    **{"trainer": "trainers", "environment": "environments", "dataset": "datasets", "model": "models"},
    "runtime": "runtimes",
}
"""Parameter → kind of parts that it chooses from."""

_CHOICES = {
    "precision": ("fp32", "tf32", "bf16", "fp64"),
    "device": ("auto", "cpu", "cuda"),
    "attack": ("flip", "scale", "count", "count-flip", "noise", "collude", "lie", "labels"),
    "estimator": ("learned", "analytic", "analytic-as-is", "ground-truth"),
    "pairing": ("unscaled", "scaled_rn", "scaled_r"),
    "insight": ("head", "full"),
}


def serve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with runs; it is searched.")] = Path("runs"),
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to listen at; another needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port to listen at; 0 takes a free one.")] = 8484,
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Jobs at a time; on a GPU always one.")] = 1,
    retries: Annotated[
        int, typer.Option("--retries", metavar="N", help="Times that a job that crashed is begun again.")
    ] = 3,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Require the token in this file, made if missing."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="Also answer to this name. Repeatable.")
    ] = None,
) -> None:
    """Serve a page about the runs in a folder: live, with a queue of jobs and models on demand.

    Listening at another address than this machine's own needs a token: COVEY_TOKEN, --token-file, or a new one that is
    kept in the folder.

    Example: covey serve runs --port 8484
    """
    require(hasattr(os, "killpg"), "The server needs process groups, which this system lacks; use Linux or macOS.")
    try:
        import fastapi
        import uvicorn
    except ImportError as error:
        raise Refusal(f"The server needs FastAPI and uvicorn: {install('serve')}.") from error
    _ = fastapi, uvicorn
    from covey.serve.access import is_loopback, secret_of
    from covey.serve.served_folder import OWN, ServedFolder

    require(workers >= 1, f"--workers must be at least 1, not {workers}.")
    require(retries >= 0, f"--retries must not be negative, not {retries}.")
    require(0 <= port < 65536, f"--port must be 0 to 65535, not {port}.")
    aside = ServedFolder(folder).claim()
    if aside is not None:
        display.say(
            f"{folder / OWN} was not made by a server in this place, so its jobs and its token do not count. "
            f"It is kept as {aside.name}."
        )
    token = os.environ.get("COVEY_TOKEN") or None
    where = token_file or (None if token or is_loopback(host) else folder / OWN / "token")
    if where is not None:
        token = secret_of(where)
    require(token is None or len(token) >= 16, "The token is too short: at least 16 characters.")
    # Refused here, before much is imported; the server takes the lock.
    FolderLock(folder / OWN, "folder of the server").release()
    from covey.serve.web_app import ServeOptions
    from covey.serve.web_app import serve as serve_folder

    options = ServeOptions(host, port, workers, retries, token, tuple(allow_host or ()), forms())

    def started(address: str) -> None:
        display.say(f"Runs under {folder}: {address}")
        if where is not None:
            display.say(f"The token is in {where}")

    serve_folder(folder, options, on_start=started)


def forms() -> "dict[str, Sequence[FormField]]":
    """Return the fields of the forms: the flags of `covey run`, `compare`, `analyze` and `ondemand`."""
    from covey.cli.inspect_commands import analyze
    from covey.cli.on_demand_command import ondemand
    from covey.cli.run_commands import compare, run

    commands: dict[str, Callable[..., Any]] = {
        "run": run,
        "comparison": compare,
        "analysis": analyze,
        "ondemand": ondemand,
    }
    return {kind: _fields(command) for kind, command in commands.items()}


def _fields(command: Callable[..., Any]) -> "list[FormField]":
    """Return a command's flags as fields, without those that name files of this machine."""
    from covey.serve.form_fields import FormField

    fields = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if name in _NOT_IN_FORMS:
            continue
        kind, info = parameter.annotation.__origin__, parameter.annotation.__metadata__[0]
        # In an annotation, the first argument of typer.Option is the flag.
        words = [info.default, *(info.param_decls or ())] if isinstance(info, typer.models.OptionInfo) else []
        flag = next((word for word in words if isinstance(word, str) and word.startswith("--")), "")
        default = parameter.default
        listed = tuple(part["name"] for part in parts_of(_LISTED[name])) if name in _LISTED else _CHOICES.get(name, ())
        # A command makes several models, and a form one.
        one_target = name == "target" and command.__name__ == "ondemand"
        fields.append(
            FormField(
                name=name,
                flag=flag,
                metavar=str(info.metavar or ""),
                help=str(info.help or "").removesuffix(" Repeatable.") if one_target else str(info.help or ""),
                panel=str(getattr(info, "rich_help_panel", None) or ""),
                switch=kind is bool,
                repeated="list" in str(kind) and not one_target,
                needed=name in ("base", "methods") or one_target,
                default=default if isinstance(default, str) else "",
                suggestions=listed,
            )
        )
    return fields
