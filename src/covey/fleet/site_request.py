"""Sites that make their own keys: a request by the site, accepted by the operator. No private key ever travels."""

import base64
import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_private_key

from covey.core.printable_text import printable
from covey.errors import Refusal, require
from covey.fleet.audit_log import note_event
from covey.fleet.certificates import read_authority, write_node_keys
from covey.fleet.fleet_folder import Fleet, Site
from covey.fleet.site_keys import pin, pinned_keys
from covey.fleet.superlink import Link
from covey.flower.public_keys import fingerprint, parsed_key, public_bytes
from covey.storage import read_json, write_json, write_private

_KIND = "covey site request 1"

_LARGEST = 1 << 16
"""Bytes of a request at most."""


@dataclass(frozen=True)
class SiteRequest:
    """A site's wish to be known by a key."""

    path: Path
    site: str
    key: str
    """The public key in OpenSSH's form."""
    contact: str
    made: str

    @property
    def public(self) -> bytes:
        """The public key in the SuperLink's form."""
        return parsed_key(self.key.encode())

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)

    @property
    def signed(self) -> bytes:
        """What the site signs with its key."""
        return json.dumps([_KIND, self.site, self.key, self.contact, self.made]).encode()


def make_request(folder: Path, *, contact: str = "", replace: bool = False) -> SiteRequest:
    """Make a key pair in a site's folder, and write the request for its public key there."""
    site = Site.read(folder)
    read_authority(folder / "ca.crt")
    private = folder / "node.key"
    require(
        replace or not private.exists(),
        f"The site {site.name} has a key already: {private}. To make another one in its place: --replace, after which "
        "the operator has to accept that one.",
    )
    try:
        write_node_keys(folder, replace=replace)
        if not (folder / "secret").exists():
            write_private(folder / "secret", secrets.token_hex(32).encode())
        public = " ".join((folder / "node.pub").read_text(encoding="ascii").split()[:2])
        made = datetime.now(UTC).isoformat(timespec="seconds")
        request = SiteRequest(folder / f"{site.name}.request.json", site.name, public, printable(contact), made)
        key = load_ssh_private_key(private.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        signature = base64.b64encode(key.sign(request.signed, ec.ECDSA(hashes.SHA384()))).decode()
        said = {"kind": _KIND, "site": site.name, "key": public, "contact": request.contact, "made": made}
        write_json(request.path, {**said, "signature": signature})
    except OSError as error:
        raise Refusal(f"The folder {folder} cannot be written: {error.strerror or error}.") from error
    return request


def read_request(path: Path) -> SiteRequest:
    """Return a request; one that is damaged, or not signed with its own key, is refused."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        require(len(text) <= _LARGEST, f"{path} is too large for a site's request.")
        given: Any = read_json(text)
        require(isinstance(given, dict) and given.get("kind") == _KIND, f"{path} is not a site's request.")
        for field in ("site", "key", "contact", "made", "signature"):
            require(isinstance(given.get(field), str), f"{path} does not say the site's {field}.")
        request = SiteRequest(path, given["site"], given["key"], given["contact"], given["made"])
        key = load_pem_public_key(request.public)
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(base64.b64decode(given["signature"]), request.signed, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise Refusal(
            f"{path} is not signed with the key that it is for: it was altered, or is somebody else's."
        ) from None
    except Refusal:
        raise
    except (OSError, ValueError) as error:
        raise Refusal(f"{path} cannot be read: {error}.") from error
    return request


def accept_request(fleet: Fleet, path: Path, *, replace: bool = False) -> SiteRequest:
    """Pin the key of a request. A site that has another key keeps it, unless told to replace."""
    request = read_request(path)
    site, name = printable(request.site), request.site
    require(name in fleet.sites, f"'{site}' is none of the sites in {fleet.folder / 'fleet.toml'}: add it there first.")
    pinned = pinned_keys(fleet)
    holder = pinned.get(request.public)
    require(holder in (None, name), f"The key in {path} is that of the site {holder}: each site needs one of its own.")
    former = next((key for key, owner in pinned.items() if owner == name), None)
    facts = {"site": name, "key": request.fingerprint, "contact": request.contact or None}
    if former not in (None, request.public) and not replace:
        note_event(fleet.folder, "refused", call="accept", **facts)
        raise Refusal(
            f"The site {name} has another key, {fingerprint(former or b'')}. Ask the site whether it made a new one, "
            "and by another way than this request came; then: --replace"
        )
    pin(fleet, name, request.public)
    replaced = fingerprint(former) if former not in (None, request.public) and former else None
    note_event(fleet.folder, "accepted", **facts, replaced=replaced)
    return request


def remove_site(fleet: Fleet, name: str, link: Link) -> int:
    """Take a site's key away, from the SuperLink and from the fleet's folder; return how many nodes that ends."""
    require(name in fleet.sites, f"'{printable(name)}' is none of the fleet's sites: {', '.join(fleet.sites)}.")
    path = fleet.key(name)
    key = public_bytes(path) if path.is_file() else None
    removed = link.remove(name, key)
    path.unlink(missing_ok=True)
    note_event(fleet.folder, "key taken away", site=name, key=None if key is None else fingerprint(key))
    return removed
