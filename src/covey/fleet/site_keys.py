"""The keys of a fleet's sites: a site is whoever holds the private half of the public key that is pinned here."""

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from covey.core.round_record import RefusedNode
from covey.errors import Refusal, require
from covey.fleet.fleet_folder import Fleet
from covey.flower.printable_text import printable
from covey.flower.private_api import NodeInfo, public_key_to_bytes
from covey.flower.roster import Stranger
from covey.storage import replace_file


def public_bytes(path: Path) -> bytes:
    """Return a public key from an OpenSSH file, in the SuperLink's form."""
    try:
        return parsed_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Refusal(f"The public key {path} cannot be read: {error}.") from error


def parsed_key(text: bytes) -> bytes:
    """Return a public key from OpenSSH's form in the SuperLink's."""
    key = load_ssh_public_key(text)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("a site's key is an ECDSA key")
    return public_key_to_bytes(key)


def fingerprint(public: bytes) -> str:
    """Return the fingerprint of a key in the SuperLink's form, as `ssh-keygen -l` shows it."""
    try:
        key = load_pem_public_key(public).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        blob = base64.b64decode(key.split()[1])
    except ValueError:
        blob = public
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


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


def pin(fleet: Fleet, name: str, key: bytes) -> None:
    """Make a public key (OpenSSH's form) that of a site."""
    keys = fleet.folder / "keys"
    if not keys.is_dir():
        # A folder of an earlier version: its keys are with the sites' files.
        known = {site: fleet.key(site).read_bytes() for site in fleet.sites if fleet.key(site).is_file()}
        keys.mkdir(mode=0o700)
        for site, public in known.items():
            replace_file(fleet.key(site), public)
    replace_file(fleet.key(name), key.strip() + b"\n")


def refusals(strangers: Iterable[Stranger], fleet: Fleet) -> list[RefusedNode]:
    """Return why nodes with keys of no site are refused, in the order of their names."""
    found = []
    for one in _in_order(strangers):
        if one.name in fleet.sites:
            reason = f"it is registered as {one.name}, and its key is not the one pinned for {one.name}"
        else:
            reason = f"it is registered as {one.name or 'nobody'}, which is none of the fleet's sites"
        found.append(RefusedNode(name=one.name, key=fingerprint(one.key), reason=reason))
    return found


def _in_order(strangers: Iterable[Stranger]) -> list[Stranger]:
    return sorted(strangers, key=lambda one: (one.name, one.key))


def site_rows(fleet: Fleet, nodes: Iterable[NodeInfo]) -> list[dict[str, str]]:
    """Return each site with its state and the fingerprint of its key, then the nodes that are no site's."""
    pinned = pinned_keys(fleet)
    nodes = list(nodes)
    key_of = {name: key for key, name in pinned.items()}
    states = {pinned[node.public_key]: str(node.status) for node in nodes if node.public_key in pinned}
    rows = []
    for name in fleet.sites:
        if name in key_of:
            rows.append({"site": name, "status": states.get(name, "not registered"), "key": fingerprint(key_of[name])})
        else:
            rows.append({"site": name, "status": "has no key yet", "key": ""})
    others = {
        Stranger(printable(node.name), node.public_key): str(node.status)
        for node in nodes
        if node.public_key not in pinned
    }
    for refused, stranger in zip(refusals(others, fleet), _in_order(others), strict=True):
        status = f"refused ({others[stranger]})"
        rows.append({"site": refused["name"], "status": status, "key": refused["key"], "reason": refused["reason"]})
    return rows
