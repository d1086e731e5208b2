"""The gate before a fleet's SuperLink: only sites and the fleet's server pass, and the audit log says who called.

Flower 1.41 serves all its interfaces on one port, and its open version lets everybody register nodes, open runs and
stop them. Sites need the fleet interface alone, in which every call is signed with a site's key. All other calls need
the server's token here. Flower checks a signature after it has read the whole call. The gate checks it before, of large
calls and where calls are many, and so lets through few calls, and no large ones, that no site has signed.
"""

import base64
import hmac
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException

from covey.errors import Refusal
from covey.fleet.audit_log import note_event
from covey.fleet.fleet_folder import Fleet
from covey.fleet.fleet_grid import GATE_MARK, control_token
from covey.fleet.site_keys import pinned_keys
from covey.flower.public_keys import LONGEST, fingerprint, has_signed

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTROL, FLEET_CALLS, RUNTIME = "/v1/control/", "/v1/fleet/", "/v1/runtime/"

_EVENTS = {
    f"{CONTROL}register-node": "registered",
    f"{CONTROL}unregister-node": "removed",
    f"{CONTROL}start-run": "run opened",
    f"{CONTROL}stop-run": "run stopped",
    f"{FLEET_CALLS}activate-node": "joined",
    f"{FLEET_CALLS}deactivate-node": "left",
}
"""Calls that are noted when they succeed."""

_KEY_HEADER, _TIME_HEADER, _SIGNATURE_HEADER = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
"""A site signs the time of each call."""

_FRESH = 600.0
"""Seconds between a call's time and now, either way; Flower is stricter."""

_MARK = (GATE_MARK.encode(), b"1")

_MINUTE, _LINES = 60.0, 30
"""So many refusals, and calls of one site, are noted in a minute: nobody can fill the disk. The rest are counted."""


_SMALL, _LARGE = 64 << 10, 64 << 20
"""Bytes of a call that no site has signed, and of one that a site has; Flower sends arrays in parts of 5 MiB."""

_UNCHECKED = 20
"""Calls in a second whose signature is not checked here; of more, those that no site has signed are refused unread."""

_LENGTH = re.compile(rb"[0-9]{1,20}")

_KNOWN_FOR = 2.0
"""Seconds after which pinned keys are read again."""


class ControlGate:
    """Passes on what sites and the fleet's server may ask of the SuperLink, and refuses the rest."""

    def __init__(self, app: Application, fleet: Fleet) -> None:
        self._app = app
        self._fleet = fleet
        self._token = f"Bearer {control_token(fleet.secret)}".encode()
        self._since = 0.0
        self._noted: Counter[bytes | None] = Counter()
        """Lines of this minute by a site's key; None stands for refusals."""
        self._read_at, self._pinned = -_KNOWN_FOR, dict[bytes, str]()
        self._second, self._calls = 0.0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._call(scope, receive, send)

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        status, reason = self._objection(scope, path)
        if status:
            self._note(scope, path, status)
            await _refuse(send, status, reason)
            return

        async def noting(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, path, int(message["status"]))
                message["headers"] = [*message.get("headers", ()), _MARK]
            await send(message)

        await self._app(scope, receive, noting)

    def _objection(self, scope: Scope, path: str) -> tuple[int, str]:
        """Return the status and the reason with which a call is refused before it is read; 0 if it is not."""
        if path.startswith((CONTROL, RUNTIME)):
            allowed = self._authorized(scope)
            return (0, "") if allowed else (401, "A call other than a site's needs the token of the fleet's server.")
        if not path.startswith(FLEET_CALLS):
            return 404, "There is nothing here."
        lengths = _headers(scope, b"content-length")
        # A call in chunks has any length, whatever it states.
        stated = len(lengths) == 1 and _LENGTH.fullmatch(lengths[0]) and not _headers(scope, b"transfer-encoding")
        if not stated:
            return 411, "A call says how long it is."
        length = int(lengths[0])
        if length > _SMALL and (length > _LARGE or not self._signed(scope)):
            return 413, "The call is too large."
        # Checking a signature takes ten times as long as all else here, so it is done when calls are many.
        if not self._few() and not self._signed(scope):
            return 429, "Too many calls that no site has signed."
        return 0, ""

    def _signed(self, scope: Scope) -> bool:
        """True if a site has signed a call, by the key that is pinned for it."""
        key, times = _key(scope), _headers(scope, _TIME_HEADER)
        if key is None or self._site(key) is None or len(times) != 1:
            return False
        try:
            age = (datetime.now(UTC) - datetime.fromisoformat(times[0].decode("ascii"))).total_seconds()
            signature = base64.b64decode(_headers(scope, _SIGNATURE_HEADER)[0], validate=True)
        except (IndexError, TypeError, ValueError):
            return False
        return abs(age) < _FRESH and has_signed(key, times[0], signature)

    def _few(self) -> bool:
        """True for the first calls of a second, whoever makes them."""
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._calls = now, 0
        self._calls += 1
        return self._calls <= _UNCHECKED

    def _authorized(self, scope: Scope) -> bool:
        shown = _headers(scope, b"authorization")
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._token)

    def _note(self, scope: Scope, path: str, status: int) -> None:
        """Note a call before its caller is answered. The answer does not depend on whether the log can be written."""
        try:
            self._choose(scope, path, status)
        except Refusal as error:
            print(error, file=sys.stderr, flush=True)

    def _choose(self, scope: Scope, path: str, status: int) -> None:
        """Write a line if a call is of a kind that the log has."""
        if status in (401, 403, 411, 413, 429) or (status >= 400 and path in _EVENTS):
            if self._room(None):
                self._write(scope, path, "refused", call=path.removeprefix("/v1/")[:LONGEST], status=status)
        elif status < 400 and path in _EVENTS and (path.startswith(CONTROL) or self._room(_key(scope))):
            self._write(scope, path, _EVENTS[path])

    def _room(self, whose: bytes | None) -> bool:
        """True if another line may be written; how many were not is noted when a minute is over."""
        now = time.monotonic()
        if now - self._since > _MINUTE:
            left_out = sum(max(count - _LINES, 0) for count in self._noted.values())
            if left_out:
                note_event(self._fleet.folder, "too many calls", left_out=left_out)
            self._since = now
            self._noted.clear()
        self._noted[whose] += 1
        return self._noted[whose] <= _LINES

    def _write(self, scope: Scope, path: str, event: str, **facts: Any) -> None:
        asked = scope.get("state", {}).get("protobuf_request")
        key = _key(scope) if path.startswith(FLEET_CALLS) else bytes(getattr(asked, "public_key", b"")) or None
        peer = scope.get("client")
        note_event(
            self._fleet.folder,
            event,
            # A refused call only states its key.
            site=None if event == "refused" else self._site(key),
            name=str(getattr(asked, "name", "")) or None,
            key=None if key is None else fingerprint(key),
            run=int(getattr(asked, "run_id", 0)) or None,
            node=int(getattr(asked, "node_id", 0)) or None,
            peer=None if not peer else str(peer[0]),
            **facts,
        )

    def _site(self, key: bytes | None) -> str | None:
        """Return the site that a key is pinned for."""
        if time.monotonic() - self._read_at > _KNOWN_FOR:
            with suppress(Refusal):
                self._pinned = pinned_keys(self._fleet)
            self._read_at = time.monotonic()
        return None if key is None else self._pinned.get(key)


def of_its_own(push: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's handler of answers, restricted: Flower checks who calls, not whose answer it is."""

    def checked(request: Any, state: Any) -> Any:
        if any(message.metadata.src_node_id != request.node.node_id for message in request.messages_list):
            raise HTTPException(403, "A node answers for itself alone.")
        return push(request=request, state=state)

    return checked


def _headers(scope: Scope, name: bytes) -> list[bytes]:
    return [bytes(value) for header, value in scope["headers"] if header.lower() == name]


def _key(scope: Scope) -> bytes | None:
    """Return the public key with which a call was signed, as it states."""
    try:
        return base64.b64decode(_headers(scope, _KEY_HEADER)[0], validate=True)
    except (IndexError, ValueError):
        return None


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), _MARK]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
