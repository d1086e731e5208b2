"""Public keys of nodes: SuperNodes sign every call with theirs, and the SuperLink checks the signature."""

import base64
import hashlib
from collections.abc import Collection
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from covey.core.printable_text import printable
from covey.core.round_record import RefusedNode
from covey.errors import Refusal
from covey.flower.private_api import public_key_to_bytes

LONGEST = 200
"""Characters of a node's name; the rest is cut off."""


def public_bytes(path: Path) -> bytes:
    """Return a public key from an OpenSSH file, in the SuperLink's form."""
    try:
        return parsed_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Refusal(f"The public key {path} cannot be read: {error}.") from error


def parsed_key(text: bytes) -> bytes:
    """Return a public key from OpenSSH's form in the SuperLink's."""
    try:
        key = load_ssh_public_key(text)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("it is not an ECDSA key")
    return public_key_to_bytes(key)


def openssh_form(public: bytes) -> bytes:
    """Return a key in the SuperLink's form in OpenSSH's: its type and its numbers, without a comment."""
    return load_pem_public_key(public).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def fingerprint(public: bytes) -> str:
    """Return the fingerprint of a key in the SuperLink's form, as `ssh-keygen -l` shows it."""
    try:
        blob = base64.b64decode(openssh_form(public).split()[1])
    except (ValueError, UnsupportedAlgorithm):
        blob = public
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def has_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """True if a signature of a message, as SuperNodes make it, is that of a key in the SuperLink's form."""
    key = load_pem_public_key(public)
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(SHA256()))
            return True
    except InvalidSignature:
        pass
    return False


def unpinned(name: str, key: bytes, clients: Collection[str]) -> RefusedNode:
    """Return why a node is refused whose key is pinned for no client, registered under a name."""
    shown = printable(name)[:LONGEST]
    if name in clients:
        reason = f"it is registered as {shown}, and its key is not the one pinned for {shown}"
    else:
        reason = f"it is registered as {shown or 'nobody'}, and its key is pinned for nobody"
    return RefusedNode(name=shown, key=fingerprint(key), reason=reason)
