"""The command line: every command of `covey.cli`, and what becomes of refusals and warnings."""

import sys
import warnings
from pathlib import Path
from typing import NoReturn

import typer

from covey.cli.agent_command import train_agent
from covey.cli.file_commands import download, evaluate, export, report
from covey.cli.fleet_commands import app as fleet_app
from covey.cli.inspect_commands import analyze, describe, list_
from covey.cli.on_demand_command import ondemand
from covey.cli.run_commands import compare, demo, resume, run
from covey.errors import Refusal
from covey.job.comparison.execution import Interrupted
from papers.command import reproduce

app = typer.Typer(
    name="covey",
    help="Federated learning for clients whose data differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for command in (demo, run, compare, resume, describe, analyze, report, download, evaluate, export, reproduce, ondemand):
    app.command()(command)
app.command()(train_agent)
app.add_typer(fleet_app, name="fleet")
app.command("list")(list_)


def main() -> NoReturn:
    """Entry point: refusals become one sentence and exit code 2, warnings one sentence, said once."""
    warnings.formatwarning = _SayOnce()
    # Parts of one's own (package.module:name) are looked for in the current folder too, after everything else.
    sys.path.append(str(Path.cwd()))
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


if __name__ == "__main__":
    main()
