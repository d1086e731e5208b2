"""The application and its server."""

import errno
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

import covey
from covey.config.schema import Config
from covey.core.printable_text import printable
from covey.errors import Refusal
from covey.serve import api_routes, page_routes
from covey.serve.access import RequestGate, is_loopback, secret_of
from covey.serve.api_routes import ServeActions
from covey.serve.form_fields import FormField
from covey.serve.job_queue import JobQueue
from covey.serve.page_shell import notice, shell
from covey.serve.served_folder import ServedFolder
from covey.storage import FolderLock

NAMES = ("localhost", "127.0.0.1", "::1")
"""Names of this machine, by which a server is always reached."""


_MISSING = ("There is no run ", "There is no job ", "There is no page ", "There is no '", "There is no form ")
"""How refusals begin that are about an address; others are about what was sent."""


@dataclass(frozen=True)
class ServeOptions:
    """How a folder is served."""

    host: str = "127.0.0.1"
    port: int = 8484
    workers: int = 1
    retries: int = 3
    token: str | None = None
    """Needed by every request; without one, this machine alone is answered."""
    allowed: Collection[str] = ()
    """Names by which the server may be reached, beside those of this machine and its own address."""
    forms: dict[str, Sequence[FormField]] = field(default_factory=dict)
    """Kind of job → fields of its form."""


@dataclass(frozen=True)
class Service:
    """An application with what it is made of."""

    app: RequestGate
    do: ServeActions


def create_service(folder: Path, options: ServeOptions | None = None) -> Service:
    """Return the application that serves a folder. Its jobs begin when it starts up."""
    options = options or ServeOptions()
    served = ServedFolder(folder)
    served.claim()
    do = ServeActions(served, JobQueue(served, options.workers, options.retries))

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        do.queue.start()
        # The first request does not wait for what a configuration imports.
        await run_in_threadpool(Config.of, {})
        try:
            yield
        finally:
            await run_in_threadpool(do.queue.stop)

    app = FastAPI(
        title="Covey",
        summary="Runs, jobs and models on demand of one folder.",
        version=covey.__version__,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )
    hosts = {*NAMES, *options.allowed, *([] if options.host in ("0.0.0.0", "::") else [options.host])}
    gate = RequestGate(
        app, token=options.token, secret=secret_of(served.own / "secret"), hosts=hosts, on_request=do.counters.asked
    )

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return _said(request, str(refusal), 404 if str(refusal).startswith(_MISSING) else 422)

    @app.exception_handler(OSError)
    async def unwritable(request: Request, error: OSError) -> Response:
        sentence = f"The server cannot use its folder: {error.strerror or error}."
        print(f"covey: {sentence} ({error.filename or request.url.path})", file=sys.stderr, flush=True)
        return _said(request, sentence, 507 if error.errno in (errno.ENOSPC, errno.EDQUOT) else 500)

    @app.exception_handler(RequestValidationError)
    async def misshapen(request: Request, error: RequestValidationError) -> Response:
        faults = [f"{'.'.join(map(str, one['loc'][1:])) or 'the body'}: {one['msg']}" for one in error.errors()[:5]]
        return _said(request, f"The request is not as it should be: {'; '.join(faults)}.", 422)

    @app.exception_handler(HTTPException)
    async def impossible(request: Request, error: HTTPException) -> Response:
        answer = _said(request, str(error.detail), error.status_code)
        answer.headers.update(error.headers or {})
        return answer

    page_routes.add(app, do, gate, options.forms)
    app.include_router(api_routes.routes(do))
    return Service(gate, do)


def _said(request: Request, sentence: str, status: int) -> Response:
    """Return an answer with a sentence, a page for people; it may repeat text of a request that UTF-8 cannot hold."""
    if "text/html" in request.headers.get("accept", ""):
        body = notice(printable(sentence)) + '<p><a href="/">All runs</a>, <a href="/queue">all jobs</a></p>'
        return HTMLResponse(shell("Not found" if status == 404 else "Not possible", body), status)
    return Response(json.dumps({"detail": sentence}), status, media_type="application/json")


def serve(folder: Path, options: ServeOptions, *, on_start: Callable[[str], None] | None = None) -> None:
    """Serve a folder until it is interrupted."""
    if options.token is None and not is_loopback(options.host):
        raise Refusal(f"Others reach {options.host}, so the server needs a token there.")
    served = ServedFolder(folder)
    served.claim()
    with FolderLock(served.own, "folder of the server"):
        service = create_service(folder, options)
        config = uvicorn.Config(
            service.app,
            # Of the two that it may use, the one that bounds the size of headers.
            http="h11",
            log_level="warning",
            # Its own set-up of logging would close the handlers of other libraries, and some close the terminal then.
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=1,
            limit_concurrency=1000,
        )
        with _listening(options.host, options.port) as listener:
            if on_start is not None:
                host, port = listener.getsockname()[:2]
                on_start(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Refusal(f"Nothing can be served at {host}, port {port}: {reason}. Choose another --port.") from error
