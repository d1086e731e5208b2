"""`covey list`."""

from typing import Annotated

import typer

from covey.cli import terminal as display
from covey.cli.flags import JsonFlag, print_json


def list_parts(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="Kind of parts; leave it out to see which kinds there are.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """List the parts to choose from, with their options.

    KIND is methods, environments, datasets, models, selectors, aggregators, trainers, manymodels or runtimes; or
    settings, for all that --set takes.

    Example: covey list selectors
    """
    from covey.cli.catalogue import KINDS, SETTINGS, parts_of, settings_list

    kinds = {**KINDS, SETTINGS: "All settings: --set KEY=VALUE, a TOML file, or arguments in Python."}
    if kind == SETTINGS:
        listed = settings_list()
        if json_:
            print_json(listed)
        else:
            display.show_settings(listed)
    elif kind is not None:
        parts = parts_of(kind)
        if json_:
            print_json(parts)
        else:
            display.show_parts(kind, parts)
    elif json_:
        print_json([{"name": name, "summary": summary} for name, summary in kinds.items()])
    else:
        display.show_kinds(kinds)
