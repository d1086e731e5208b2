"""The keys of a fleet's sites: a site is whoever holds the private half of the public key that is pinned here."""

import shutil
from collections.abc import Sequence

from covey.errors import require
from covey.fleet.fleet_folder import Fleet
from covey.flower.private_api import NodeInfo
from covey.flower.public_keys import fingerprint, openssh_form, public_bytes, unpinned
from covey.storage import replace_file


def pinned_keys(fleet: Fleet) -> dict[bytes, str]:
    """Return public key → site, for all sites that have a key. Two sites with one key are refused."""
    found: dict[bytes, str] = {}
    for name in fleet.sites:
        path = fleet.key(name)
        if not path.is_file():
            continue
        key = public_bytes(path)
        require(
            key not in found,
            f"The sites {found.get(key)} and {name} have the same key in {fleet.folder}: each needs one of its own.",
        )
        found[key] = name
    return found


def pin(fleet: Fleet, name: str, public: bytes) -> None:
    """Make a public key (the SuperLink's form) that of a site."""
    keys = fleet.folder / "keys"
    if not keys.is_dir():
        # A folder of an earlier version: its keys are with the sites' files. All move, or none.
        moved = fleet.folder / "keys.part"
        shutil.rmtree(moved, ignore_errors=True)
        moved.mkdir(mode=0o700)
        for site in fleet.sites:
            if fleet.key(site).is_file():
                shutil.copyfile(fleet.key(site), moved / f"{site}.pub")
        moved.rename(keys)
    replace_file(fleet.key(name), openssh_form(public) + b"\n")


def site_rows(fleet: Fleet, nodes: Sequence[NodeInfo]) -> list[dict[str, str]]:
    """Return each site with its state and the fingerprint of its key, then the nodes that are no site's."""
    pinned = pinned_keys(fleet)
    states = {node.public_key: str(node.status) for node in nodes}
    key_of = {name: key for key, name in pinned.items()}
    rows = []
    for name in fleet.sites:
        key = key_of.get(name)
        state = "has no key yet" if key is None else states.get(key, "not registered")
        rows.append({"site": name, "status": state, "key": "" if key is None else fingerprint(key)})
    for node in sorted(nodes, key=lambda node: (node.name, node.public_key)):
        if node.public_key not in pinned:
            refused = unpinned(node.name, node.public_key, fleet.sites)
            status = f"refused ({node.status})"
            rows.append({"site": refused["name"], "status": status, "key": refused["key"], "reason": refused["reason"]})
    return rows
