"""Pages for people, and the forms on them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, quote

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from covey.errors import Refusal, require
from covey.job.run_index import filtered, member_runs
from covey.page.html_page import escape
from covey.serve.access import COOKIE, RequestGate
from covey.serve.api_routes import ServeActions, job_view
from covey.serve.form_fields import FormField, filled_request
from covey.serve.form_view import KINDS, form_page, mix_page
from covey.serve.job_request import ondemand_request
from covey.serve.live_view import live_page
from covey.serve.model_order import base_run, has_sites
from covey.serve.page_shell import notice, script, shell, style
from covey.serve.round_stream import state_of
from covey.serve.round_tail import RoundTail
from covey.serve.runs_view import ORDERS, job_page, jobs_page, runs_page

_REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data: blob:; font-src data:; frame-ancestors 'none'"
)
"""A report has its script in it; in a sandbox it cannot act for the reader here."""

_LOG = 20_000
"""Characters of a job's log that its page shows."""

_MOST_BASES = 500


def add(app: FastAPI, do: ServeActions, gate: RequestGate, forms: Mapping[str, Sequence[FormField]]) -> None:
    """Add the pages to an application."""
    looks, behaviour = style(), script()

    async def form_of(request: Request) -> dict[str, str]:
        """Return a filled form; refuse one that does not come from a page of this server."""
        kind = request.headers.get("content-type", "").partition(";")[0]
        require(kind == "application/x-www-form-urlencoded", "This is a form's address.")
        try:
            pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=2000)
        except ValueError as error:
            raise Refusal("The form cannot be read.") from error
        form = dict(pairs)
        if not gate.knows(form.pop("word", "")):
            raise HTTPException(403, "The form does not come from this server: load the page again.")
        return form

    @app.get("/static/serve.css", include_in_schema=False)
    def stylesheet() -> Response:
        return Response(looks, media_type="text/css", headers={"Cache-Control": "no-cache"})

    @app.get("/static/serve.js", include_in_schema=False)
    def javascript() -> Response:
        return Response(behaviour, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    @app.get("/login", include_in_schema=False)
    def login() -> Response:
        return HTMLResponse(shell("Log in", _LOGIN))

    @app.post("/login", include_in_schema=False)
    async def log_in(request: Request) -> Response:
        form: dict[str, str] = {}
        with suppress(ValueError):
            form = dict(parse_qsl((await request.body()).decode(errors="replace"), max_num_fields=10))
        if not gate.admits(form.get("token", "").strip()):
            return HTMLResponse(shell("Log in", notice("That is not the server's token.") + _LOGIN), 401)
        answer = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, gate.session, max_age=30 * 86400, httponly=True, samesite="strict", secure=secure)
        return answer

    @app.get("/", include_in_schema=False)
    def runs(request: Request) -> Response:
        known = ("text", "kind", "state", "order", "descending", "page")
        asked = {key: value for key, value in request.query_params.items() if key in known}
        order, page = asked.get("order", "changed"), asked.get("page", "1")
        require(order in ORDERS and page.isdecimal() and 0 < len(page) < 7, "The list has no such order or page.")
        lines = do.index.all()
        wanted = {key: asked.get(key, "") for key in ("text", "kind", "state")}
        found = filtered(lines, **wanted, order=order, descending=asked.get("descending", "1") != "0")
        return HTMLResponse(runs_page(found, do.queue.all(), asked, gate.word, len(lines)))

    @app.get("/queue", include_in_schema=False)
    def jobs(page: str = "1") -> Response:
        require(page.isdecimal() and 0 < len(page) < 7, "The list has no such page.")
        return HTMLResponse(jobs_page(do.queue.all(), gate.word, int(page)))

    @app.get("/job/{id_}", include_in_schema=False)
    def job(id_: str) -> Response:
        found = do.queue.job(id_)
        path = do.queue.place(id_) / "log.txt"
        log = path.read_text(encoding="utf-8", errors="replace")[-_LOG:] if path.is_file() else ""
        return HTMLResponse(job_page(found, job_view(found, do), log, gate.word, do.folder))

    @app.get("/job/{id_}/page", include_in_schema=False)
    def job_result(id_: str) -> Response:
        path = do.queue.place(do.queue.job(id_).id) / "page.html"
        require(path.is_file(), f"There is no page of the job '{id_}'.")
        return _with_way_back(path, f"/job/{quote(id_)}", "Back to the job")

    @app.post("/job/{id_}/{act}", include_in_schema=False)
    async def job_act(id_: str, act: str, request: Request) -> Response:
        await form_of(request)
        require(act in ("cancel", "retry"), f"There is no '{act[:20]}' of a job.")
        known = await run_in_threadpool(do.queue.job, id_)
        # A page that has been open for a while may offer what is no longer possible: the job's page shows what is.
        with suppress(Refusal):
            await run_in_threadpool(do.queue.cancel if act == "cancel" else do.queue.retry, known.id)
        return RedirectResponse(f"/job/{quote(id_)}", 303)

    @app.get("/report", include_in_schema=False)
    def report(request: Request) -> Response:
        paths = request.query_params.getlist("run")
        try:
            page = do.report(paths)
        except Refusal as refusal:
            return HTMLResponse(shell("No report", notice(str(refusal))), 422)
        return _with_way_back(page, "/", "Back to all runs")

    @app.get("/new/{kind}", include_in_schema=False)
    def new(kind: str, request: Request) -> Response:
        require(kind in KINDS and kind in forms, f"There is no form for '{kind[:20]}'.")
        filled = {field.name: request.query_params.get(field.name, "") for field in forms[kind]}
        return HTMLResponse(form_page(kind, forms[kind], filled, _bases(do), gate.word))

    @app.post("/new/{kind}", include_in_schema=False)
    async def begin(kind: str, request: Request) -> Response:
        form = await form_of(request)
        require(kind in KINDS and kind in forms, f"There is no form for '{kind[:20]}'.")

        def submitted() -> Response:
            try:
                job = do.queue.submit(filled_request(kind, forms[kind], form, do.folder))
            except Refusal as refusal:
                page = form_page(kind, forms[kind], form, _bases(do), gate.word, str(refusal))
                return HTMLResponse(page, 422)
            place = job.meaning.place
            return RedirectResponse(f"/live/{quote(place)}" if place and kind != "ondemand" else f"/job/{job.id}", 303)

        return await run_in_threadpool(submitted)

    @app.get("/mix", include_in_schema=False)
    def mix(base: str = "") -> Response:
        bases = _bases(do)
        if not base:
            return HTMLResponse(mix_page(base, bases, None, gate.word))
        try:
            return HTMLResponse(mix_page(base, bases, do.shares_of(base), gate.word))
        except Refusal as refusal:
            return HTMLResponse(mix_page(base, bases, None, gate.word, str(refusal)), 422)

    @app.post("/mix", include_in_schema=False)
    async def order(request: Request) -> Response:
        form = await form_of(request)

        def ordered() -> Response:
            base, rounds = form.get("base", ""), form.get("rounds", "")
            found = do.shares_of(base)
            try:
                shares = {number: float(form.get(f"class-{number}") or 0) for number in range(len(found.class_names))}
            except ValueError:
                raise Refusal("The share of a class is a number.") from None
            total = sum(shares.values())
            names = [name if "," not in name else str(number) for number, name in enumerate(found.class_names)]
            target = (
                {names[number]: share / total for number, share in shares.items() if share > 0} if total > 0 else {}
            )
            require(rounds.isdecimal() and 0 < int(rounds) <= 100_000, "rounds is a whole number from 1 to 100,000.")
            request_ = ondemand_request(do.folder, base, target, estimator="analytic", rounds=int(rounds))
            return RedirectResponse(f"/job/{do.queue.submit(request_).id}", 303)

        return await run_in_threadpool(ordered)

    @app.get("/live/{path:path}", include_in_schema=False)
    def live(path: str) -> Response:
        place, line = do.folder.place(path), do.index.one(path)
        if line is None and do.queue.writing(path) is None:
            raise HTTPException(404, f"There is no run '{path[:80]}'.")
        rows: list[dict[str, object]] = []
        for _, run in member_runs(place)[:1]:
            rows = RoundTail(run / "metrics.jsonl").read()
        return HTMLResponse(live_page(path, line, state_of(path, line, do.queue), rows, gate.word))

    @app.post("/live/{rest:path}", include_in_schema=False)
    async def act(rest: str, request: Request) -> Response:
        await form_of(request)
        path, _, act_ = rest.rpartition("/")
        require(act_ in ("stop", "resume"), f"There is no '{act_[:20]}' of a run.")
        try:
            await run_in_threadpool(do.stop if act_ == "stop" else do.resume, path)
        except Refusal:
            # The run may have ended, or begun again, since the page was loaded: the live page shows it as it is.
            if do.index.one(path) is None and do.queue.writing(path) is None:
                raise
        return RedirectResponse(f"/live/{quote(path)}", 303)


def _with_way_back(page: Path, address: str, label: str) -> Response:
    """Return a page that stands alone, with a link to where its reader came from."""
    link = f'<p><a href="{escape(address)}">{escape(label)}</a></p>'
    text = page.read_text(encoding="utf-8").replace("<header>", f"<header>{link}", 1)
    return HTMLResponse(text, headers={"Content-Security-Policy": _REPORT_POLICY})


def _bases(do: ServeActions) -> list[str]:
    """Return the runs, and fleets, that models can begin at."""
    found: list[str] = []
    for line in do.index.all():
        # Another metric than accuracy: its task has no classes to mix.
        if line.kind in ("run", "fleet") and line.done and line.metric is None and len(found) < _MOST_BASES:
            # Of a fleet's run without the fleet there is nobody to ask.
            with suppress(Refusal):
                found += [line.path] if not has_sites(line.runtime) or base_run(do.folder, line.path) else []
    return found


_LOGIN = (
    '<form method="post" action="/login" class="fields"><div class="field"><label for="token">Token</label>'
    '<input id="token" name="token" type="password" autocomplete="current-password" required>'
    '<span class="help">The person who started the server has it.</span></div>'
    '<p class="tools"><button class="main">Log in</button></p></form>'
    '<p class="quiet">Logged in already, and here from a report? <a href="/">All runs</a></p>'
)
