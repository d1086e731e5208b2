"""The command line: all commands, and how refusals, interrupts and warnings are printed.

Command modules import jobs inside their functions, so that `covey --help` loads neither torch nor any algorithm.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import covey
from covey.cli.agent_command import train_agent
from covey.cli.demo_command import demo
from covey.cli.file_commands import download, evaluate, export, predict, report
from covey.cli.fleet_commands import app as fleet_app
from covey.cli.inspect_commands import analyze, describe
from covey.cli.inspect_file import inspect
from covey.cli.list_command import list_parts
from covey.cli.on_demand_command import ondemand
from covey.cli.reproduce_command import reproduce
from covey.cli.run_commands import compare, resume, run
from covey.cli.run_folder_commands import rm, runs, show
from covey.cli.serve_command import serve
from covey.cli.usage import usage_sentence
from covey.core.printable_text import printable_lines
from covey.errors import Interrupted, Refusal
from covey.trust import also_search

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Run and compare": {"demo": demo, "run": run, "compare": compare, "resume": resume},
    "Inspect data and federations": {"inspect": inspect, "describe": describe, "analyze": analyze},
    "Runs so far": {"runs": runs, "show": show, "rm": rm},
    "On a page": {"serve": serve},
    "Use a finished run": {
        "report": report,
        "evaluate": evaluate,
        "predict": predict,
        "export": export,
        "ondemand": ondemand,
    },
    "Parts, data and papers": {
        "list": list_parts,
        "download": download,
        "train-agent": train_agent,
        "reproduce": reproduce,
    },
}
"""Panel of `covey --help` → command → function."""

_MISUSE: type[Exception] = typer.BadParameter.__mro__[2]
"""The class of all errors about how a command was typed, of whichever parser typer brings."""

app = typer.Typer(
    name="covey",
    help="Federated learning for clients whose data differ.",
    epilog="Start with: covey demo. See the flags of a command with: covey COMMAND --help",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
app.add_typer(fleet_app, name="fleet", rich_help_panel="Real clients")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"covey {covey.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning for clients whose data differ."""


def main() -> NoReturn:
    """Run the command line. A refusal is one sentence and exit code 2; a warning is one sentence, printed once."""
    warnings.formatwarning = _WarnOnce()
    # Users' own parts (package.module:name) may lie in the current folder. Nothing else is imported from there.
    also_search(Path.cwd())
    try:
        sys.exit(app(prog_name="covey", standalone_mode=False) or 0)
    except _MISUSE as misuse:
        if not str(misuse):  # No command was given: the help was printed.
            sys.exit(2)
        print(printable_lines(f"covey: {usage_sentence(misuse)}"), file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        print("covey: Nothing was done.", file=sys.stderr)
        sys.exit(1)
    except Refusal as refusal:
        print(printable_lines(f"covey: {refusal}"), file=sys.stderr)
        sys.exit(2)
    except Interrupted as interrupted:
        print(printable_lines(f"covey: {interrupted}"), file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        print("covey: Stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)


class _WarnOnce:
    """Formats a warning as one sentence, without the line of code, and only the first time."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def __call__(self, message: Warning | str, *_: object, **__: object) -> str:
        sentence = str(message)
        if sentence in self._printed:
            return ""
        self._printed.add(sentence)
        return printable_lines(f"covey: {sentence}\n")


if __name__ == "__main__":
    main()
