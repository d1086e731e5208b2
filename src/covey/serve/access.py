"""Who may ask: the gate before every request, as ASGI middleware.

- The host that a request names must be one that is served, so that no other site's name leads here (DNS rebinding).
- From another machine, or if the server has a token, every request needs it: in `Authorization: Bearer`, or as the
  cookie that the login form sets. It is never part of an address, so no log has it.
- A request that changes something must come from a page of this server, or carry JSON, which no form of another site
  can send. Forms carry a word that only pages of this server know.
- A body is at most `LARGEST` bytes.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from covey.storage import write_private

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LARGEST = 1 << 20
"""Most bytes of a request's body."""

_READ_ON = 32 * LARGEST
"""Bytes of a body that is too large that are read and dropped, so that its sender hears why."""

_LINGER = 2.0
"""Seconds for them."""

COOKIE = "covey_session"

_OPEN = ("/healthz", "/login", "/static/serve.css", "/static/serve.js")
"""Paths that need no token: the page on which it is asked for, with its style and script."""

_WORKING = ("/mix", "/report")
"""Pages that have work done when they are opened."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""The browser runs our script alone and asks nobody else."""

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # With no-referrer, browsers would not say either that a form comes from this very server.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def secret_of(path: Path) -> str:
    """Return the secret in a file that its owner alone may read; a new one if there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, f"{secrets.token_urlsafe(32)}\n".encode())
    return path.read_text(encoding="utf-8").strip()


def is_loopback(host: str) -> bool:
    """True for an address or a name of this very machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class RequestGate:
    """The rules above, before an application."""

    def __init__(
        self,
        app: Application,
        *,
        token: str | None,
        secret: str,
        hosts: Collection[str],
        on_request: Callable[[], None] = lambda: None,
    ) -> None:
        self.app, self.token, self._secret, self._on_request = app, token, secret.encode(), on_request
        self.hosts = frozenset(host.lower() for host in hosts)

    @property
    def session(self) -> str:
        """The cookie of those who have shown the token."""
        return self._keyed(f"session {self.token}")

    @property
    def word(self) -> str:
        """What forms of this server carry."""
        return self._keyed(f"form {self.token}")

    def admits(self, token: str) -> bool:
        """True for the server's token; takes as long for any other."""
        return self.token is not None and _equal(token, self.token)

    def knows(self, word: str) -> bool:
        """True for the word that forms of this server carry."""
        return _equal(word, self.word)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request that breaks a rule; pass on every other."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self._on_request()
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is None and scope["method"] not in ("GET", "HEAD"):
            receive, refusal = await _bounded(receive)
        if refusal is not None:
            await _refuse(*refusal, receive, send, login=refusal[0] == 401 and "text/html" in headers.get("accept", ""))
            return
        await self.app(scope, receive, _guarded(send))

    def _refusal(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> tuple[int, str] | None:
        path, host = scope["path"], headers.get("host", "")
        name = _host_in(f"//{host}")
        if path == "/healthz" and scope["method"] == "GET":
            return None
        if name not in self.hosts and not _is_address_here(name, scope):
            return 421, f"This server does not go by the name '{name[:80]}'. To allow it: covey serve --allow-host NAME"
        if path not in _OPEN and not self._admitted(scope, headers):
            return 401, "This needs the server's token: in the header Authorization: Bearer TOKEN, or log in at /login."
        if scope["method"] in ("GET", "HEAD"):
            # A link of another site may lead here, but not to pages that ask clients or compute.
            plain = headers.get("sec-fetch-mode") == "navigate" and not path.startswith(_WORKING)
            foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not plain
            return (403, "This request comes from a page of another site.") if foreign else None
        if scope["method"] not in ("POST", "DELETE"):
            return 405, f"The method {scope['method'][:20]} is not used here."
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and origin.partition("://")[2] != host) or site not in ("same-origin", "none"):
            return 403, "This request comes from a page of another site."
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("application/json", "application/x-www-form-urlencoded"):
            return 415, "What changes something is sent as JSON: Content-Type: application/json."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST:
            return 413, f"A request has at most {LARGEST:,} bytes."
        return None

    def _admitted(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> bool:
        client = scope.get("client") or ("", 0)
        if self.token is None:
            return is_loopback(str(client[0]))
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.admits(given.strip())
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and _equal(morsel.value, self.session)

    def _keyed(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()


def _host_in(address: str) -> str:
    """Return the host that an address names, in small letters; nothing for what is no address."""
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


def _is_address_here(name: str, scope: MutableMapping[str, Any]) -> bool:
    """True if a name is the very address at which the request arrived, which no other site's name can stand for."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(str((scope.get("server") or ("",))[0]))
    except ValueError:
        return False


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(hashlib.sha256(one.encode()).digest(), hashlib.sha256(other.encode()).digest())


async def _bounded(receive: Receive) -> tuple[Receive, tuple[int, str] | None]:
    """Read a body of bounded size, and return what hands it on."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return receive, (400, "The request was cut off.")
        body += message.get("body", b"")
        if len(body) > LARGEST:
            return receive, (413, f"A request has at most {LARGEST:,} bytes.")
        if not message.get("more_body", False):
            break
    whole = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return whole.pop() if whole else await receive()

    return again, None


def _guarded(send: Send) -> Send:
    """Add the headers that every answer has, unless it brings its own policy."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            headers += [pair for pair in _HEADERS if pair[0] not in names]
            if b"content-security-policy" not in names:
                headers.append((b"content-security-policy", _POLICY.encode()))
            message["headers"] = headers
        await send(message)

    return guarded


async def _refuse(status: int, sentence: str, receive: Receive, send: Send, *, login: bool) -> None:
    body = json.dumps({"detail": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if login:
        status, body = 303, b""
        headers = [(b"location", b"/login"), (b"content-length", b"0")]
    elif status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    elif status == 413:
        headers.append((b"connection", b"close"))
    guarded = _guarded(send)
    await guarded({"type": "http.response.start", "status": status, "headers": headers})
    await guarded({"type": "http.response.body", "body": body, "more_body": status == 413})
    if status == 413:
        # A connection that is closed while its other end sends takes the answer with it.
        await _read_on(receive)
        await guarded({"type": "http.response.body", "body": b""})


async def _read_on(receive: Receive) -> None:
    read = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while read < _READ_ON:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                read += len(message.get("body", b""))
