"""`covey fleet register`, `status`, `log`, `join`, `accept` and `remove`: the sites of a fleet and their keys."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from covey.cli import terminal as display
from covey.cli.flags import JsonFlag, print_json
from covey.errors import Refusal, install, require

if TYPE_CHECKING:
    from covey.fleet.fleet_folder import Fleet
    from covey.fleet.superlink import Link

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The fleet's folder.")]


def fleet_of(folder: Path) -> "Fleet":
    """Return the fleet that a folder describes."""
    try:
        from covey.fleet.fleet_folder import Fleet
    except ImportError as error:
        raise Refusal(f"A fleet needs Flower: {install('flower')} ({error}).") from error
    return Fleet.read(folder)


def register(
    folder: FolderArgument,
    replace: Annotated[bool, typer.Option("--replace", help="Remove other keys under the sites' names.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Register the pinned keys of a fleet's sites with its SuperLink."""
    fleet = fleet_of(folder)
    from covey.fleet.site_keys import pinned_keys

    having = list(pinned_keys(fleet).values())
    known = _link(fleet).register(((name, fleet.key(name)) for name in having), replace=replace)
    if json_:
        print_json(known)
        return
    display.say(f"Registered: {', '.join(known) or 'nobody'}")
    if len(having) < len(fleet.sites):
        display.say(f"Without a key yet: {', '.join(name for name in fleet.sites if name not in having)}")


def status(folder: FolderArgument, json_: JsonFlag = False) -> None:
    """Show which sites of a fleet are connected, the fingerprints of their keys, and nodes that are no site's."""
    from covey.fleet.site_keys import site_rows

    fleet = fleet_of(folder)
    link = _link(fleet)
    rows, warning = site_rows(fleet, link.nodes()), link.open_to_all()
    if json_:
        print_json(rows)
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("site", "status", "key"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["site"], row["status"], row["key"])
    display.console.print(table, highlight=False)
    for row in rows:
        if "reason" in row:
            display.say(f"A node gets no orders: {row['reason']} ({row['key']}).")
    if warning:
        display.say(warning)


def log(
    folder: FolderArgument,
    last: Annotated[int, typer.Option("--last", metavar="N", help="Events to show; 0 shows all.")] = 50,
    json_: JsonFlag = False,
) -> None:
    """Show a fleet's audit log: who registered, joined, was refused, opened and stopped runs."""
    fleet = fleet_of(folder)
    from covey.fleet.audit_log import read_events, sentence

    require(last >= 0, f"--last is a number of events, not {last}.")
    events = read_events(fleet.folder)
    events = events[-last:] if last else events
    if json_:
        print_json(events)
        return
    for event in events:
        display.say(f"{event.get('time', '?')}  {sentence(event)}")
    if not events:
        display.say("Nothing has happened yet.")


def join(
    folder: Annotated[Path, typer.Argument(metavar="SITE", help="The site's folder, as the operator gave it.")],
    contact: Annotated[
        str, typer.Option("--contact", help="Whom the operator may ask: a name, a telephone number.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Make a new pair in place of the site's present one.")
    ] = False,
) -> None:
    """Make a site's key pair on its own machine, and a request for the fleet's operator."""
    try:
        from covey.fleet.site_request import make_request
    except ImportError as error:
        raise Refusal(f"A fleet needs Flower: {install('flower')} ({error}).") from error
    made = make_request(folder, contact=contact, replace=replace)
    display.say(f"Written: {made.path}. Send it to the operator of the fleet; it holds no secret.")
    display.say(f"Read this out to the operator, who compares it: {made.fingerprint}")


def accept(
    folder: FolderArgument,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The file that covey fleet join wrote.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="The site has another key, which loses its place.")
    ] = False,
) -> None:
    """Pin the key of a site's request: from now on, the site is whoever holds it."""
    fleet = fleet_of(folder)
    from covey.fleet.site_request import accept_request

    accepted = accept_request(fleet, request, replace=replace)
    display.say(f"Accepted: {accepted.site}, {accepted.fingerprint}. Compare it with what the site says.")
    again = " --replace" if replace else ""
    display.say(f"Next, with the SuperLink running: covey fleet register {folder}{again}")


def remove(
    folder: FolderArgument,
    site: Annotated[str, typer.Argument(metavar="SITE", help="The site's name.")],
) -> None:
    """Take away a site's key, here and from the SuperLink: it can return with another key only."""
    fleet = fleet_of(folder)
    from covey.fleet.site_request import remove_site

    removed = remove_site(fleet, site, _link(fleet))
    display.say(
        f"Removed: {site} ({removed} of its nodes). Its name stays in fleet.toml, so that runs keep their order."
    )


def _link(fleet: "Fleet") -> "Link":
    from covey.fleet.superlink import Link

    return Link(fleet.address, fleet.server / "ca.crt", fleet.secret)
